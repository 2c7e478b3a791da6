import type { Whoami } from "../api/client";
import { AddHost } from "../parts/AddHost";
import { Agents } from "../parts/Agents";
import { Calls } from "../parts/Calls";
import { ConnectClaude } from "../parts/ConnectClaude";
import { Header } from "../parts/Header";
import { LostBanner } from "../parts/LostBanner";

export function Overview({ who }: { who: Whoami }) {
  const origin = window.location.origin;
  return (
    <>
      <Header who={who} />
      <main className="mx-auto max-w-5xl px-4 pb-16">
        <h1 className="sr-only">Fleet overview</h1>
        <LostBanner />
        <Agents />
        <Calls admin={who.admin} />
        <ConnectClaude origin={origin} />
        <AddHost origin={origin} command={who.enroll_command} />
      </main>
    </>
  );
}

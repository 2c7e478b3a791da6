import { agentRun, databaseVariable, enrollCreate, isLoopback, needsPlaintext } from "../lib/commands";
import { CopyLine } from "./CopyLine";
import { Notice } from "./Notice";
import { Section } from "./Section";

type Props = { origin: string; command?: string };

export function AddHost({ origin, command }: Props) {
  return (
    <Section id="host" title="Add a host">
      <p className="max-w-2xl text-muted text-sm">
        Make a one-time token on the server's machine, then start the agent on the host. It makes its own key there and
        dials out; no port is opened. Commands will run as the user who starts it.
      </p>
      <CopyLine label="1. Where the server runs" text={enrollCreate(command)} />
      {command?.includes(databaseVariable) && (
        <p className="mt-3 max-w-2xl text-muted text-sm">
          The database's URL isn't shown, since it may hold a password: set <code>{databaseVariable}</code> in that
          shell as the server has it.
        </p>
      )}
      <CopyLine label="2. On the host, with the token that it printed" text={agentRun(origin)} />
      {isLoopback(origin) && (
        <p className="mt-3 max-w-2xl text-muted text-sm">
          <code className="wrap-anywhere">{origin}</code> is the server on its own machine alone. Another machine needs
          a name under which it reaches the server: start that with{" "}
          <code className="whitespace-nowrap">--public-url https://NAME</code>, behind TLS (docs/deploy.md), and open
          this page there.
        </p>
      )}
      {needsPlaintext(origin) && (
        <div className="mt-3">
          <Notice tone="warn" title="This page came over plain http">
            Whoever is on the way can read every command and its output. Put TLS in front (docs/deploy.md) and leave{" "}
            <code>--plaintext</code> away.
          </Notice>
        </div>
      )}
    </Section>
  );
}

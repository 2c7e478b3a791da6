import type { Whoami } from "../api/client";
import { useSignOut } from "../api/queries";
import { Mark } from "./Mark";
import { Said } from "./Said";

export function Header({ who }: { who: Whoami }) {
  const signOut = useSignOut();
  return (
    <header className="border-line border-b bg-card">
      <div className="mx-auto flex max-w-5xl flex-wrap items-center justify-between gap-x-6 gap-y-2 px-4 py-3">
        <Mark />
        <div className="flex items-center gap-4 text-sm">
          <span className="text-muted">
            <Said>{who.name}</Said>
            {who.admin && " · admin"}
          </span>
          <button
            type="button"
            onClick={() => signOut.mutate()}
            className="cursor-pointer rounded border border-line px-3 py-1.5 hover:border-accent"
          >
            Sign out
          </button>
        </div>
      </div>
    </header>
  );
}

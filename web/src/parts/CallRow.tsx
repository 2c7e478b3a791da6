import type { Call } from "../api/client";
import { plain } from "../lib/text";
import { Said } from "./Said";
import { State } from "./State";
import { Until } from "./Until";
import { When } from "./When";

/** What was asked, in a line: the command or path where there is one, else the arguments. */
function asked(call: Call): string {
  const args = call.args as Record<string, unknown>;
  const main = args.command ?? args.script ?? args.path;
  if (typeof main === "string") return main;
  if (Array.isArray(args.argv)) return args.argv.join(" ");
  const all = JSON.stringify(args);
  return all === "{}" ? "" : all;
}

export function CallRow({ call }: { call: Call }) {
  const exit = typeof call.exit_code === "number" ? `exit ${call.exit_code}` : null;
  const code = call.error && call.error.code !== call.state ? (call.error.reason ?? call.error.code) : null;
  return (
    <li className="grid gap-x-4 gap-y-1 px-4 py-3 text-sm sm:grid-cols-[minmax(0,1.4fr)_minmax(0,1.4fr)_minmax(0,1fr)_6rem]">
      <p className="min-w-0">
        <span className="font-mono">{call.tool}</span>
        <span className="text-muted"> on </span>
        <span className="wrap-anywhere font-mono">{call.agent_id}</span>
        <span className="block truncate font-mono text-muted text-xs" title={plain(asked(call))}>
          <Said>{asked(call)}</Said>
        </span>
      </p>
      <p className="min-w-0 text-muted">
        <Said>{call.name || call.principal}</Said>
        {call.client && (
          <>
            {" · "}
            <Said>{call.client}</Said>
          </>
        )}
      </p>
      <p className="flex flex-wrap items-baseline gap-x-2">
        <State>{call.state}</State>
        {call.state === "queued" && call.queued_until && (
          <span className="text-muted">
            for <Until at={call.queued_until} /> more
          </span>
        )}
        {exit && <span className={call.exit_code === 0 ? "text-muted" : "text-warn"}>{exit}</span>}
        {code && (
          <span className="text-muted" title={call.error?.message}>
            <Said>{code}</Said>
          </span>
        )}
      </p>
      <p className="text-muted sm:text-right">
        <When at={call.created_at} />
      </p>
      {call.evidence && (
        <p className="min-w-0 border-line border-l-2 pl-3 text-muted sm:col-span-4">
          Learnt since: <Said>{call.evidence}</Said>
        </p>
      )}
    </li>
  );
}

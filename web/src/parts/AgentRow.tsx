import type { Agent } from "../api/client";
import { clockOff } from "../lib/time";
import { Labels } from "./Labels";
import { Said } from "./Said";
import { State } from "./State";
import { When } from "./When";

export function AgentRow({ agent }: { agent: Agent }) {
  const clock = clockOff(agent.clock_ahead_ms);
  return (
    <li className="grid gap-x-4 gap-y-1 px-4 py-3 sm:grid-cols-[minmax(0,2fr)_minmax(0,3fr)_9rem]">
      <div className="min-w-0">
        <p className="wrap-anywhere font-medium font-mono">{agent.agent_id}</p>
        {agent.description && (
          <p className="text-muted text-sm">
            <Said>{agent.description}</Said>
          </p>
        )}
        <Labels labels={agent.labels} />
      </div>
      <p className="min-w-0 text-sm">
        <Said>{agent.hostname || "hostname not known yet"}</Said>
        <span className="block text-muted">
          <Said>
            {[agent.os_version || agent.os, agent.run_as && `runs as ${agent.run_as}`].filter(Boolean).join(" · ")}
          </Said>
        </span>
        {clock && <span className="block text-warn">clock {clock}</span>}
      </p>
      <div className="flex items-baseline gap-3 text-sm sm:block sm:text-right">
        <State>{agent.state}</State>
        <span className="text-muted sm:block">{seen(agent)}</span>
      </div>
    </li>
  );
}

function seen(agent: Agent) {
  if (agent.state === "online") return null;
  if (agent.quarantine) return <Said>{agent.quarantine}</Said>;
  if (!agent.last_seen) return "never connected";
  return (
    <>
      last seen <When at={agent.last_seen} />
    </>
  );
}

import { useAgents } from "../api/queries";
import { AgentRow } from "./AgentRow";
import { Notice } from "./Notice";
import { Section } from "./Section";

export function Agents() {
  const { data, error } = useAgents();
  const agents = data?.agents ?? [];
  const online = agents.filter((a) => a.state === "online").length;
  const more = (data?.total ?? 0) - agents.length;
  return (
    <Section
      id="agents"
      title="Agents"
      note={data && agents.length > 0 ? `${online} of ${data.total} online` : undefined}
    >
      {error && (
        <Notice tone="bad" title="The list of agents can't be read">
          {error.message}
        </Notice>
      )}
      {data?.offline_why && (
        <div className="mb-3">
          <Notice tone="warn" title="Agents that are shown as offline may be online">
            {data.offline_why}
          </Notice>
        </div>
      )}
      {!data && !error && <p className="text-muted">Loading…</p>}
      {data && agents.length === 0 && (
        <Notice tone="plain" title="No agents yet">
          Nothing is enrolled that this PAT may see. “Add a host” below has the two lines for it.
        </Notice>
      )}
      {agents.length > 0 && (
        <ul className="divide-y divide-line rounded-lg border border-line bg-card">
          {agents.map((agent) => (
            <AgentRow key={agent.agent_id} agent={agent} />
          ))}
        </ul>
      )}
      {more > 0 && (
        <p className="mt-2 text-muted text-sm">
          {more} more: <code>drover agents list</code> shows all.
        </p>
      )}
    </Section>
  );
}

import { useCalls } from "../api/queries";
import { CallRow } from "./CallRow";
import { Notice } from "./Notice";
import { Section } from "./Section";

export function Calls({ admin }: { admin: boolean }) {
  const { data, error } = useCalls();
  const calls = data?.calls ?? [];
  return (
    <Section id="calls" title="Latest calls" note={admin ? "everyone's" : "made with this PAT"}>
      {error && (
        <Notice tone="bad" title="The calls can't be read">
          {error.message}
        </Notice>
      )}
      {!data && !error && <p className="text-muted">Loading…</p>}
      {data && calls.length === 0 && (
        <Notice tone="plain" title="No calls yet">
          Ask Claude something like “list my agents, then show the disk use of web-01”.
        </Notice>
      )}
      {calls.length > 0 && (
        <ul className="divide-y divide-line rounded-lg border border-line bg-card">
          {calls.map((call) => (
            <CallRow key={call.call_id} call={call} />
          ))}
        </ul>
      )}
    </Section>
  );
}

import { Said } from "./Said";

export function Labels({ labels }: { labels?: Record<string, string> | null }) {
  const entries = Object.entries(labels ?? {}).sort(([a], [b]) => a.localeCompare(b));
  if (entries.length === 0) return null;
  return (
    <ul aria-label="Labels" className="mt-1 flex flex-wrap gap-1 text-xs">
      {entries.map(([key, value]) => (
        <li key={key} className="rounded bg-code px-1.5 py-0.5 text-muted">
          <Said>{`${key}=${value}`}</Said>
        </li>
      ))}
    </ul>
  );
}

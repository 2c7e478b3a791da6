const colours: Record<string, string> = {
  online: "text-good",
  succeeded: "text-good",
  offline: "text-muted",
  cancelled: "text-muted",
  not_started: "text-muted",
  outcome_unknown: "text-warn",
  timed_out: "text-warn",
  quarantined: "text-bad",
  denied: "text-bad",
  expired: "text-bad",
  failed: "text-bad",
};

/** States that wait for something: a chip, so that they stand out among what has ended. */
const waiting = ["queued", "pending_approval"];

/** A state as a word with a coloured dot; the word alone says it all. */
export function State({ children }: { children: string }) {
  const chip = waiting.includes(children) ? "rounded-full border border-current px-2" : "";
  return (
    <span
      className={`inline-flex items-center gap-1.5 whitespace-nowrap text-sm ${colours[children] ?? "text-accent"} ${chip}`}
    >
      <span aria-hidden="true" className="size-2 shrink-0 rounded-full bg-current" />
      {children.replaceAll("_", " ")}
    </span>
  );
}

const steps: [limit: number, seconds: number, unit: string][] = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86_400, 3600, "h"],
  [Number.POSITIVE_INFINITY, 86_400, "d"],
];

/** Tells how long ago a moment was: "12 s ago". A clock that's ahead counts as now. */
export function ago(iso: string, now: number): string {
  const then = Date.parse(iso);
  if (Number.isNaN(then)) return "at an unknown time";
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 5) return "just now";
  for (const [limit, size, unit] of steps) {
    if (seconds < limit) return `${Math.floor(seconds / size)} ${unit} ago`;
  }
  return "long ago";
}

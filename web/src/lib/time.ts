type Step = [limit: number, seconds: number, unit: string];
const longest: Step = [Number.POSITIVE_INFINITY, 86_400, "d"];
const steps: Step[] = [[60, 1, "s"], [3600, 60, "min"], [86_400, 3600, "h"], longest];

/** Tells how long ago a moment was: "12 s ago". A clock that's ahead counts as now. */
export function ago(iso: string, now: number): string {
  const then = Date.parse(iso);
  if (Number.isNaN(then)) return "at an unknown time";
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 5) return "just now";
  return `${span(seconds)} ago`;
}

/** Tells how long it is until a moment: "12 min". One that has passed is "no time". */
export function left(iso: string, now: number): string {
  const seconds = Math.floor((Date.parse(iso) - now) / 1000);
  return seconds > 0 ? span(seconds) : "no time";
}

/** How far a clock is off, if it's by more than a minute: "3 min ahead". */
export function clockOff(aheadMs: number | undefined): string | null {
  if (!aheadMs || Math.abs(aheadMs) <= 60_000) return null;
  return `${span(Math.round(Math.abs(aheadMs) / 1000))} ${aheadMs > 0 ? "ahead" : "behind"}`;
}

function span(seconds: number): string {
  const [, size, unit] = steps.find(([limit]) => seconds < limit) ?? longest;
  return `${Math.floor(seconds / size)} ${unit}`;
}

import { useNow } from "../lib/now";
import { left } from "../lib/time";

/** A moment to come as what is left until then; the exact time is in its title. */
export function Until({ at }: { at: string }) {
  const now = useNow();
  return (
    <time dateTime={at} title={at} className="whitespace-nowrap">
      {left(at, now)}
    </time>
  );
}

import { useNow } from "../lib/now";
import { ago } from "../lib/time";

/** A moment as its distance from now; the exact time is in its title. */
export function When({ at }: { at: string }) {
  const now = useNow();
  return (
    <time dateTime={at} title={at} className="whitespace-nowrap">
      {ago(at, now)}
    </time>
  );
}

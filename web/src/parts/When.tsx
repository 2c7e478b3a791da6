import { useEffect, useState } from "react";
import { ago } from "../lib/time";

/** A moment as its distance from now; the exact time is in its title. */
export function When({ at }: { at: string }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 5000);
    return () => clearInterval(timer);
  }, []);
  return (
    <time dateTime={at} title={at} className="whitespace-nowrap">
      {ago(at, Math.max(now, Date.now()))}
    </time>
  );
}

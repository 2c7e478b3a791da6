import type { ReactNode } from "react";

const tones = { bad: "border-bad text-bad", warn: "border-warn text-warn", plain: "border-line text-ink" };

type Props = { tone: keyof typeof tones; title: string; children?: ReactNode };

/** Says something that the reader should act on; screen readers hear it at once. */
export function Notice({ tone, title, children }: Props) {
  return (
    <div role={tone === "plain" ? undefined : "alert"} className={`rounded-lg border-l-4 bg-page p-4 ${tones[tone]}`}>
      <p className="font-semibold text-sm">{title}</p>
      {children && <div className="mt-1 text-ink text-sm">{children}</div>}
    </div>
  );
}

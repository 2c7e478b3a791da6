import type { ReactNode } from "react";

type Props = { id: string; title: string; note?: string; children: ReactNode };

export function Section({ id, title, note, children }: Props) {
  return (
    <section aria-labelledby={id} className="mt-10">
      <div className="mb-3 flex flex-wrap items-baseline gap-x-3">
        <h2 id={id} className="font-semibold text-lg">
          {title}
        </h2>
        {note && <p className="text-muted text-sm">{note}</p>}
      </div>
      {children}
    </section>
  );
}

import { useState } from "react";

/** A command in a box with a button that copies it. Long lines scroll inside the box. */
export function CopyLine({ label, text }: { label: string; text: string }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      // Browsers offer the clipboard to https and localhost pages alone.
      setSaid("Select the text and copy it");
    }
    setTimeout(() => setSaid(""), 3000);
  };
  return (
    <div className="mt-2 rounded-lg border border-line bg-code">
      <div className="flex items-center justify-between gap-2 border-line border-b px-3 py-1 text-muted text-xs">
        <span>{label}</span>
        <span className="flex items-center gap-2">
          <span aria-live="polite">{said}</span>
          <button
            type="button"
            onClick={copy}
            aria-label={`Copy: ${label}`}
            className="cursor-pointer rounded px-2 py-1 font-medium text-accent hover:underline"
          >
            Copy
          </button>
        </span>
      </div>
      <pre
        className="overflow-x-auto p-3 text-sm"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a box that scrolls has to be reachable by keyboard.
        tabIndex={0}
      >
        <code>{text}</code>
      </pre>
    </div>
  );
}

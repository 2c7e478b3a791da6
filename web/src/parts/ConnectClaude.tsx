import { claudeCode, claudeDesktop, patPlaceholder } from "../lib/commands";
import { CopyLine } from "./CopyLine";
import { Section } from "./Section";

export function ConnectClaude({ origin }: { origin: string }) {
  return (
    <Section id="claude" title="Connect Claude">
      <p className="max-w-2xl text-muted text-sm">
        Put a PAT where {patPlaceholder} stands. A PAT is shown once, when <code>drover pat create</code> makes it; this
        page can't show it again.
      </p>
      <CopyLine label="Claude Code, in a terminal" text={claudeCode(origin)} />
      <details className="mt-3">
        <summary className="cursor-pointer text-sm">Claude Desktop</summary>
        <CopyLine label="claude_desktop_config.json" text={claudeDesktop(origin)} />
      </details>
      <p className="mt-3 max-w-2xl text-muted text-sm">
        “Always allow” in Claude Code means a tool's name, not a host: allowing <code>shell_exec</code> allows it on
        every host that the PAT reaches. Make one PAT for each circle of hosts and add each under its own name.
      </p>
    </Section>
  );
}

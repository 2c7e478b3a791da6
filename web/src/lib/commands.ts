/** Stands where a token has to be typed in: a token that was made is never shown again. */
export const patPlaceholder = "drv_pat_…";

export function claudeCode(origin: string): string {
  return `claude mcp add --transport http drover ${origin}/mcp --header "Authorization: Bearer ${patPlaceholder}"`;
}

export function claudeDesktop(origin: string): string {
  const args = ["-y", "mcp-remote", `${origin}/mcp`, "--header", `Authorization:\${DROVER_AUTH}`];
  if (needsPlaintext(origin)) args.push("--allow-http");
  const drover = { command: "npx", args, env: { DROVER_AUTH: `Bearer ${patPlaceholder}` } };
  return JSON.stringify({ mcpServers: { drover } }, null, 2);
}

/** Stands in a command for the URL of the server's database, where that may hold a password. */
export const databaseVariable = "DROVER_DATABASE_URL";

/** What makes a token where the server runs; the server tells its administrators how it's called there. */
export function enrollCreate(command = "drover enroll create"): string {
  return `${command} --agent-id web-01`;
}

export function agentRun(origin: string): string {
  const plaintext = needsPlaintext(origin) ? " --plaintext" : "";
  return `DROVER_ENROLL_TOKEN=drv_enr_… drover-agent run --server ${origin}${plaintext}`;
}

/** Tells whether the server is reached unencrypted from another machine. */
export function needsPlaintext(origin: string): boolean {
  return new URL(origin).protocol === "http:" && !isLoopback(origin);
}

/** Tells whether an address means another server, or none, on another machine. */
export function isLoopback(origin: string): boolean {
  const { hostname } = new URL(origin);
  return hostname === "localhost" || hostname === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(hostname);
}

import createClient from "openapi-fetch";
import { ApiError } from "./error";
import type { components, paths } from "./schema";

export type Agent = components["schemas"]["AgentInfo"];
export type Call = components["schemas"]["CallSummary"];
export type Whoami = components["schemas"]["Whoami"];

const base = `${globalThis.location.origin}/api/v1`;

// The session cookie is HttpOnly; nothing here ever holds a PAT beyond the sign-in form.
// fetch is looked up at each call, so that a test can stand in for the network.
export const client = createClient<paths>({
  baseUrl: base,
  credentials: "same-origin",
  fetch: (request) => globalThis.fetch(request),
});

/** Waits for an answer and throws what isn't a success. */
export async function unwrap<T>(answer: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await answer;
  if (!response.ok) throw new ApiError(response.status, error);
  return data as T;
}

/** Exchanges a PAT for the page's session cookie. The session isn't part of the documented API: no other program needs it. */
export async function openSession(pat: string): Promise<void> {
  await session("POST", JSON.stringify({ pat }));
}

export async function closeSession(): Promise<void> {
  await session("DELETE");
}

async function session(method: string, body?: string): Promise<void> {
  const headers = { "Content-Type": "application/json" };
  const response = await globalThis.fetch(new Request(`${base}/session`, { method, body, headers }));
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => undefined));
}

import { QueryClientProvider } from "@tanstack/react-query";
import { cleanup, fireEvent, render, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { App } from "./App";
import { makeQueries } from "./api/cache";

type Answer = { status: number; body?: unknown };
type Answers = Record<string, Answer | (() => Answer)>;

const who = { principal: "pat:1", name: "laptop", kind: "pat", admin: false };
const refused = { status: 401, body: { error: { code: "unauthenticated", message: "this PAT is revoked" } } };
const hostile = '<img src=x onerror="document.title=1">';
const agent = {
  agent_id: "web-01",
  state: "offline",
  hostname: hostile,
  os: "linux",
  run_as: "root",
  labels: {},
  description: "",
};

function show(answers: Answers) {
  vi.stubGlobal("fetch", async (request: Request) => {
    const answer = answers[`${request.method} ${new URL(request.url).pathname}`];
    if (!answer) throw new TypeError("Failed to fetch");
    const { status, body } = typeof answer === "function" ? answer() : answer;
    const headers = { "content-type": "application/json", ...(body === undefined && { "content-length": "0" }) };
    return new Response(body === undefined ? null : JSON.stringify(body), { status, headers });
  });
  render(
    <QueryClientProvider client={makeQueries()}>
      <App />
    </QueryClientProvider>,
  );
}

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

test("nothing of the fleet shows before a PAT was accepted", async () => {
  let signedIn = false;
  show({
    "GET /api/v1/whoami": () => (signedIn ? { status: 200, body: who } : refused),
    "POST /api/v1/session": () => {
      signedIn = true;
      return { status: 204 };
    },
    "GET /api/v1/agents": { status: 200, body: { agents: [agent], total: 1 } },
    "GET /api/v1/calls": { status: 200, body: { calls: [] } },
  });
  const field = await screen.findByLabelText("Personal access token");
  expect(screen.queryByText("Agents")).toBeNull();
  fireEvent.change(field, { target: { value: " drv_pat_x " } });
  fireEvent.click(screen.getByRole("button", { name: "Sign in" }));
  await screen.findByText("web-01");
  expect(screen.queryByLabelText("Personal access token")).toBeNull();
  expect(document.body.textContent).not.toContain("drv_pat_x");
});

test("a refused PAT is told apart from a lost server", async () => {
  show({ "GET /api/v1/whoami": refused, "POST /api/v1/session": refused });
  fireEvent.change(await screen.findByLabelText("Personal access token"), { target: { value: "drv_pat_x" } });
  fireEvent.click(screen.getByRole("button", { name: "Sign in" }));
  expect((await screen.findByRole("alert")).textContent).toContain("this PAT is revoked");
});

test("what a host says is text", async () => {
  show({
    "GET /api/v1/whoami": { status: 200, body: who },
    "GET /api/v1/agents": { status: 200, body: { agents: [agent], total: 1 } },
    "GET /api/v1/calls": { status: 200, body: { calls: [] } },
  });
  await screen.findByText(hostile);
  expect(document.querySelector("img[src=x]")).toBeNull();
  expect(screen.getByText("No calls yet")).toBeTruthy();
});

test("why agents may be shown as offline is said while it's so", async () => {
  let offline_why: string | undefined = "this replica can't reach NATS";
  show({
    "GET /api/v1/whoami": { status: 200, body: who },
    "GET /api/v1/agents": () => ({ status: 200, body: { agents: [agent], total: 1, offline_why } }),
    "GET /api/v1/calls": { status: 200, body: { calls: [] } },
  });
  expect((await screen.findByRole("alert")).textContent).toContain(offline_why);
  offline_why = undefined;
  await waitFor(() => expect(screen.queryByRole("alert")).toBeNull(), { timeout: 25_000 });
}, 30_000);

const call = {
  call_id: "1",
  agent_id: "web-01",
  tool: "shell_exec",
  args: { command: "uptime" },
  principal: "pat:1",
  name: "laptop",
  edge: "rest",
  created_at: new Date().toISOString(),
};

test("a queued call, evidence and a clock that is off are shown", async () => {
  const queued = { ...call, state: "queued", queued_until: new Date(Date.now() + 3_590_000).toISOString() };
  const unknown = { ...call, call_id: "2", state: "outcome_unknown", evidence: `it had ended ${hostile}` };
  show({
    "GET /api/v1/whoami": { status: 200, body: who },
    "GET /api/v1/agents": { status: 200, body: { agents: [{ ...agent, clock_ahead_ms: -190_000 }], total: 1 } },
    "GET /api/v1/calls": { status: 200, body: { calls: [queued, unknown] } },
  });
  await screen.findByText("queued");
  expect(screen.getByText("59 min").getAttribute("datetime")).toBe(queued.queued_until);
  expect(screen.getByText(`it had ended ${hostile}`).closest("p")?.textContent).toContain("Learnt since: ");
  expect(document.querySelector("img[src=x]")).toBeNull();
  expect(screen.getByText("clock 3 min behind")).toBeTruthy();
});

test("when the session ends, the fleet goes", async () => {
  let revoked = false;
  const unlessRevoked = (body: unknown) => () => (revoked ? refused : { status: 200, body });
  show({
    "GET /api/v1/whoami": unlessRevoked(who),
    "GET /api/v1/agents": unlessRevoked({ agents: [agent], total: 1 }),
    "GET /api/v1/calls": unlessRevoked({ calls: [] }),
  });
  await screen.findByText("web-01");
  revoked = true;
  await screen.findByLabelText("Personal access token", {}, { timeout: 25_000 });
  expect(screen.queryByText("web-01")).toBeNull();
}, 30_000);

test("a list that can't be read says why", async () => {
  const body = { error: { code: "unavailable", message: "the store is full" } };
  show({
    "GET /api/v1/whoami": { status: 200, body: who },
    "GET /api/v1/agents": { status: 503, body },
    "GET /api/v1/calls": { status: 200, body: { calls: [] } },
  });
  expect((await screen.findByRole("alert")).textContent).toContain("the store is full");
});

test("a server that's gone is shown as gone", async () => {
  show({});
  expect((await screen.findByRole("alert", {}, { timeout: 25_000 })).textContent).toContain(
    "The server doesn't answer",
  );
}, 30_000);

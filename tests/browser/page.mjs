// Opens the page as a person would and checks what must never show or run. Driven by
// page_test.go; the environment says where the page is.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const { URL: base, PAT: pat, MARKUP: markup, PLANTED: planted, CHROMIUM: executablePath, SHOTS: shots } = process.env;
const args = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];

const browser = await chromium.launch({ executablePath, args });
try {
  await signedOut();
  await call();
  for (const width of [1280, 360]) for (const colorScheme of ["light", "dark"]) await overview(width, colorScheme);
  await policy();
  await lostServer();
  await signOut();
} finally {
  await browser.close();
}

async function open(options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(90_000); // machines that test are often busy
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(`error: ${error}`));
  page.on("dialog", (dialog) => trouble.push(`dialog: ${dialog.message()}`));
  page.on("console", (message) => {
    // Chromium says this of every 401, and the page's first question is answered by one.
    if (message.type() === "error" && !message.text().includes("401")) trouble.push(message.text());
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(`${base}/`)) trouble.push(`a request to ${request.url()}`);
  });
  await page.goto(`${base}/`);
  return { context, page, trouble };
}

/** Signs in by keyboard alone. */
async function signIn(page, token) {
  await page.getByLabel("Personal access token").focus();
  await page.keyboard.type(token);
  await page.keyboard.press("Enter");
}

async function signedOut() {
  const { context, page, trouble } = await open();
  await page.getByLabel("Personal access token").waitFor();
  assert.ok(!(await page.textContent("body")).includes("web-01"), "an agent shows before a PAT was given");
  for (const path of ["agents", "calls", "whoami"]) {
    const answer = await context.request.get(`${base}/api/v1/${path}`);
    assert.equal(answer.status(), 401, path);
  }
  await signIn(page, "drv_pat_wrong");
  await page.getByRole("alert").waitFor();
  assert.ok(!(await page.textContent("body")).includes("web-01"), "an agent shows after a wrong PAT");
  assert.deepEqual(trouble, []);
  await context.close();
  console.log("ok: nothing shows before a PAT");
}

/** Makes a call whose client calls itself by markup, as soon as the agent is online. */
async function call() {
  const headers = { Authorization: `Bearer ${pat}`, "Content-Type": "application/json", "User-Agent": markup };
  const body = JSON.stringify({ agent_id: "web-01", tool: "shell_exec", args: { command: "exit 3" } });
  for (let tries = 0; tries < 100; tries++) {
    const answer = await fetch(`${base}/api/v1/calls`, { method: "POST", headers, body });
    const { state, error } = await answer.json();
    if (state === "succeeded") return;
    assert.equal(error?.code, "offline", JSON.stringify(error));
    await new Promise((done) => setTimeout(done, 200));
  }
  assert.fail("the agent never came online");
}

async function overview(width, colorScheme) {
  const { context, page, trouble } = await open({ viewport: { width, height: 900 }, colorScheme });
  await signIn(page, pat);
  await page.getByText("online", { exact: true }).waitFor();
  await page.getByText("exit 3").last().waitFor();
  await page.getByText("queued", { exact: true }).waitFor();
  // The description, the client of the call and, where it could be planted, the hostname.
  const told = await page.getByText(markup, { exact: true }).count();
  assert.equal(told, planted === "hostname" ? 3 : 2, "what others say shows as text");
  assert.equal(await page.locator("img[src=x]").count(), 0, "markup became an element");
  assert.equal(await page.evaluate("window.pwned"), undefined, "a host's script ran");
  const overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth");
  assert.equal(overflow, 0, `the page is wider than ${width} px`);
  assert.ok(!(await page.content()).includes(pat), "the PAT is in the page");
  const kept = await page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]");
  assert.deepEqual(kept, ["", 0, 0], "a script can read what keeps the session");
  assert.ok((await page.textContent("body")).includes(`claude mcp add --transport http drover ${base}/mcp`));
  if (shots) await page.screenshot({ path: `${shots}/page-${width}-${colorScheme}.png`, fullPage: true });
  assert.deepEqual(trouble, []);
  await context.close();
  console.log(`ok: the page at ${width} px, ${colorScheme}`);
}

/** Plants a script in the living page: even then the policy keeps it from running. */
async function policy() {
  const { context, page } = await open();
  await page.getByLabel("Personal access token").waitFor();
  const refused = await page.evaluate(
    () =>
      new Promise((resolve) => {
        document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective), { once: true });
        const script = document.createElement("script");
        script.textContent = "window.pwned = 1";
        document.body.append(script);
      }),
  );
  assert.match(refused, /^script-src/);
  assert.equal(await page.evaluate("window.pwned"), undefined);
  await context.close();
  console.log("ok: the policy refuses an inline script");
}

async function lostServer() {
  const { context, page } = await open();
  await signIn(page, pat);
  await page.getByText("web-01", { exact: true }).first().waitFor();
  await context.setOffline(true);
  await page.getByText("No connection to the server").waitFor();
  await context.setOffline(false);
  await page.getByText("No connection to the server").waitFor({ state: "detached" });
  await context.close();
  console.log("ok: a lost server shows, and comes back");
}

async function signOut() {
  const { context, page } = await open();
  await signIn(page, pat);
  await page.getByText("web-01", { exact: true }).first().waitFor();
  const [cookie] = await context.cookies();
  assert.ok(cookie.httpOnly && cookie.sameSite === "Strict", JSON.stringify({ ...cookie, value: "" }));
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Personal access token").waitFor();
  assert.ok(!(await page.textContent("body")).includes("web-01"), "an agent shows after signing out");
  // The old cookie is worth nothing any more.
  const answer = await fetch(`${base}/api/v1/agents`, { headers: { Cookie: `${cookie.name}=${cookie.value}` } });
  assert.equal(answer.status, 401);
  await context.close();
  console.log("ok: signing out ends the session");
}

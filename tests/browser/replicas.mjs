// Signs in through a balancer that gives each request to the next of two replicas, and out
// again. Driven by replicas_test.go; the environment says where they are.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const { URL: base, REPLICAS: replicas, PAT: pat, CHROMIUM: executablePath, SHOTS: shots } = process.env;
const args = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];

const browser = await chromium.launch({ executablePath, args });
try {
  for (const width of [1280, 390]) await inAndOut(width);
} finally {
  await browser.close();
}

async function inAndOut(width) {
  const context = await browser.newContext({ viewport: { width, height: 844 } });
  const page = await context.newPage();
  page.setDefaultTimeout(90_000); // machines that test are often busy
  const refused = [];
  let signedIn = false;
  page.on("response", (answer) => {
    if (signedIn && answer.status() >= 400) refused.push(`${answer.status()} ${answer.url()}`);
  });
  await page.goto(`${base}/`);
  await page.getByLabel("Personal access token").focus();
  await page.keyboard.type(pat);
  const answered = page.waitForResponse((answer) => answer.url() === `${base}/api/v1/session`);
  await page.keyboard.press("Enter");
  assert.equal((await answered).status(), 204);
  signedIn = true;
  for (let round = 0; round < 5; round++) {
    await page.getByText("web-01", { exact: true }).first().waitFor();
    assert.equal(await page.getByLabel("Personal access token").count(), 0, `after ${round} reloads the page asks for the PAT`);
    if (round < 4) await page.reload();
  }
  const overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth");
  assert.equal(overflow, 0, `the page is wider than ${width} px`);
  if (shots) await page.screenshot({ path: `${shots}/replicas-${width}.png`, fullPage: true });
  const [cookie] = await context.cookies();
  for (const url of replicas.split(" ")) assert.equal(await whoami(url, cookie), 200, url);
  assert.deepEqual(refused, []);
  signedIn = false;

  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Personal access token").waitFor();
  await page.reload();
  await page.getByLabel("Personal access token").waitFor();
  // Within five seconds the old cookie is worth nothing on either.
  for (const url of replicas.split(" ")) {
    for (const end = Date.now() + 5_000; (await whoami(url, cookie)) !== 401; ) {
      assert.ok(Date.now() < end, `the cookie of before counts at ${url}`);
      await new Promise((done) => setTimeout(done, 20));
    }
  }
  await context.close();
  console.log(`ok: in and out at ${width} px`);
}

async function whoami(url, cookie) {
  return (await fetch(`${url}/api/v1/whoami`, { headers: { Cookie: `${cookie.name}=${cookie.value}` } })).status;
}

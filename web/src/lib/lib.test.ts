import { describe, expect, test } from "vitest";
import { agentRun, claudeCode, claudeDesktop, enrollCreate, isLoopback, needsPlaintext } from "./commands";
import { plain } from "./text";
import { ago, clockOff, left } from "./time";

describe("plain", () => {
  test.each([
    ["web-01.example.net", "web-01.example.net"],
    ["a\nb\u0000", "a‹U+000A›b‹U+0000›"],
    ["user\u202egnp.exe", "user‹U+202E›gnp.exe"],
    ["zero\u200bwidth", "zero‹U+200B›width"],
    ["<b>ü 漢</b>", "<b>ü 漢</b>"],
  ])("%j", (given, want) => expect(plain(given)).toBe(want));
});

test.each([
  [0, "just now"],
  [-30, "just now"],
  [59, "59 s ago"],
  [60, "1 min ago"],
  [3600, "1 h ago"],
  [200_000, "2 d ago"],
])("ago after %d s", (seconds, want) => {
  const now = Date.parse("2026-12-01T12:00:00Z");
  expect(ago(new Date(now - seconds * 1000).toISOString(), now)).toBe(want);
});

test.each([
  [-1, "no time"],
  [0, "no time"],
  [59, "59 s"],
  [119, "1 min"],
  [7200, "2 h"],
  [604_800, "7 d"],
])("left with %d s to go", (seconds, want) => {
  const now = Date.parse("2026-12-01T12:00:00Z");
  expect(left(new Date(now + seconds * 1000).toISOString(), now)).toBe(want);
});

test("an unreadable time leaves none", () => expect(left("tomorrow", 0)).toBe("no time"));

test.each([
  [undefined, null],
  [0, null],
  [60_000, null],
  [-60_000, null],
  [61_000, "1 min ahead"],
  [-7_300_000, "2 h behind"],
])("a clock that is %j ms ahead", (ms, want) => expect(clockOff(ms)).toBe(want));

test("an unreadable time says so", () => expect(ago("yesterday", 0)).toBe("at an unknown time"));

test.each([
  ["http://127.0.0.1:7400", false],
  ["http://localhost:7400", false],
  ["http://[::1]:7400", false],
  ["http://10.0.0.5:7400", true],
  ["http://127.evil.example", true],
  ["https://drover.example", false],
])("plaintext for %s", (origin, want) => {
  expect(needsPlaintext(origin)).toBe(want);
  expect(agentRun(origin).includes("--plaintext")).toBe(want);
  expect(claudeDesktop(origin).includes("--allow-http")).toBe(want);
});

test.each([
  ["http://127.0.0.1:7400", true],
  ["http://localhost:7400", true],
  ["https://[::1]:7400", true],
  ["http://10.0.0.5:7400", false],
  ["https://drover.example", false],
])("another machine's way to %s", (origin, want) => expect(isLoopback(origin)).toBe(want));

test("the line for a token is the server's own", () => {
  expect(enrollCreate("/srv/bin/drover enroll create --data /srv/.data")).toBe(
    "/srv/bin/drover enroll create --data /srv/.data --agent-id web-01",
  );
  expect(enrollCreate()).toBe("drover enroll create --agent-id web-01");
});

test("the Claude Code line names this origin and a placeholder", () => {
  expect(claudeCode("https://drover.example")).toBe(
    'claude mcp add --transport http drover https://drover.example/mcp --header "Authorization: Bearer drv_pat_…"',
  );
});

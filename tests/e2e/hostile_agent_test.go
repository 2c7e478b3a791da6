package e2e

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

const okProcess = `{"exit_code":0,"stdout":"forged","stderr":"","stdout_bytes":6,"stderr_bytes":0,"duration_ms":1}`

// inFlight starts a call in the background and returns where its answer arrives.
func inFlight(f *harness.Client, agent string) <-chan harness.CallResult {
	out := make(chan harness.CallResult, 1)
	go func() {
		_, res := f.REST(f.Admin).Call(agent, "shell_exec", map[string]any{"command": "echo $DROVER_AGENT_ID; cat", "timeout_seconds": 60})
		out <- res
	}()
	return out
}

// request reads the agent's next request; what the caller was told instead fails the test.
func request(t *testing.T, a *harness.RawAgent, answer <-chan harness.CallResult) *protocol.Request {
	t.Helper()
	req, err := a.Request()
	if err == nil {
		return req
	}
	select {
	case res := <-answer:
		t.Fatalf("%s got no request (%v); the caller got %+v", a.ID, err, res.Error)
	default:
		t.Fatalf("%s got no request: %v", a.ID, err)
	}
	return nil
}

// TestHostileAgent: an agent with a valid key that breaks every rule harms its own
// connection only: the others' calls go on, and nothing it says counts for another.
func TestHostileAgent(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("good-01")
	victim := f.RawAgent("victim-01")
	if err := victim.Connect(); err != nil {
		t.Fatal(err)
	}
	defer victim.Close()

	deep := strings.Repeat(`{"a":`, 1_000_000) + "1" + strings.Repeat("}", 1_000_000)
	// Each attack gets the id of a call that is open on the victim's connection.
	for name, attack := range map[string]func(a *harness.RawAgent, foreign string) error{
		"answers for another connection's call": func(a *harness.RawAgent, foreign string) error { return a.Answer(foreign, okProcess) },
		"answers a call that isn't": func(a *harness.RawAgent, _ string) error {
			return a.Answer("00000000-0000-7000-8000-000000000000", okProcess)
		},
		"progress for another's call": func(a *harness.RawAgent, foreign string) error {
			return a.Send(fmt.Sprintf(`{"type":"progress","id":%q,"seq":1,"message":"x"}`, foreign))
		},
		"deep nesting":   func(a *harness.RawAgent, foreign string) error { return a.Answer(foreign, deep[:12_000]) },
		"a million deep": func(a *harness.RawAgent, foreign string) error { return a.Answer(foreign, deep) },
		"not JSON":       func(a *harness.RawAgent, _ string) error { return a.Send("{{{{") },
		"null frame":     func(a *harness.RawAgent, _ string) error { return a.Send("null") },
		"array frame":    func(a *harness.RawAgent, _ string) error { return a.Send(`[{"type":"response"}]`) },
		"unknown type":   func(a *harness.RawAgent, _ string) error { return a.Send(`{"type":"takeover"}`) },
		"no type":        func(a *harness.RawAgent, _ string) error { return a.Send(`{"id":"x"}`) },
		"request": func(a *harness.RawAgent, foreign string) error {
			return a.Send(`{"type":"request","id":"x","tool":"shell_exec","args":{},"seal":"x","caller":{"principal":"a","user":"a","kind":"pat"},"deadline_ms":1}`)
		},
		"wrong types": func(a *harness.RawAgent, foreign string) error {
			return a.Send(`{"type":"response","id":7,"took_us":"x"}`)
		},
		"negative numbers": func(a *harness.RawAgent, _ string) error { return a.Send(`{"type":"credit","stream":-1,"bytes":-5}`) },
		"duplicate names": func(a *harness.RawAgent, foreign string) error {
			return a.Send(fmt.Sprintf(`{"type":"response","id":"x","id":%q,"took_us":1}`, foreign))
		},
		"wrong case": func(a *harness.RawAgent, foreign string) error {
			return a.Send(fmt.Sprintf(`{"type":"response","ID":%q,"took_us":1}`, foreign))
		},
		"empty binary": func(a *harness.RawAgent, _ string) error { return a.SendBinary(nil) },
		"stray chunk":  func(a *harness.RawAgent, _ string) error { return a.SendBinary([]byte{0, 0, 0, 9, 0, 1, 2, 3}) },
		"huge stream": func(a *harness.RawAgent, _ string) error {
			return a.Send(`{"type":"open","stream":1,"kind":"frame","id":"","size":536870912}`)
		},
		"512 MB frame": func(a *harness.RawAgent, _ string) error {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := a.Flood(512 << 20) // what still comes while the connection is being closed is dropped
			runtime.ReadMemStats(&after)
			if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 64 {
				t.Errorf("one frame made the server take %d MB of memory", used)
			}
			if _, rerr := a.Request(); rerr == nil {
				t.Error("the connection is still open")
			}
			return err
		},
		"unasked resume": func(a *harness.RawAgent, foreign string) error {
			return a.Send(fmt.Sprintf(`{"type":"resume","states":[{"id":%q,"state":"done"}]}`, foreign))
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer := inFlight(&f.Client, "victim-01")
			req := request(t, victim, answer)
			id := "hostile-" + strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' {
					return r
				}
				return '-'
			}, strings.ToLower(name)) + "x"
			hostile := f.RawAgent(id)
			if err := hostile.Connect(); err != nil {
				t.Fatal(err)
			}
			defer hostile.Close()
			_ = attack(hostile, req.ID) // the server may end the connection before it's written
			if _, res := f.REST(f.Admin).Call("good-01", "shell_exec", map[string]any{"command": "echo $DROVER_AGENT_ID"}); res.Stdout() != "good-01\n" {
				t.Errorf("a good agent answered %+v", res)
			}
			if err := victim.Answer(req.ID, strings.Replace(okProcess, "forged", "genuine", 1)); err != nil {
				t.Fatal(err)
			}
			if res := <-answer; res.State != "succeeded" || res.Stdout() != "genuine" {
				t.Errorf("the victim's call: %+v %+v", res, res.Error)
			}
		})
	}
}

// TestHostileAgentsOwnCalls: what a hostile agent says of its own calls ends them in one
// outcome and can't be taken back.
func TestHostileAgentsOwnCalls(t *testing.T) {
	f := harness.New(t, harness.Options{ResumeWait: time.Second})
	connect := func(id string) *harness.RawAgent {
		a := f.RawAgent(id)
		if err := a.Connect(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Close)
		return a
	}
	for _, c := range []struct{ name, result, state, code string }{
		{"a result of another shape", `{"exit_code":"0"}`, "failed", "tool_failed"},
		{"a list", `[1,2]`, "failed", "tool_failed"},
		{"an extra member", `{"exit_code":0,"stdout":"","stderr":"","stdout_bytes":0,"stderr_bytes":0,"duration_ms":1,"new":1}`, "succeeded", ""},
	} {
		a := connect(fmt.Sprintf("shape-%d", len(c.name)))
		answer := inFlight(&f.Client, a.ID)
		req := request(t, a, answer)
		if err := a.Answer(req.ID, c.result); err != nil {
			t.Fatal(err)
		}
		res := <-answer
		code := ""
		if res.Error != nil {
			code = res.Error.Code
		}
		if res.State != c.state || code != c.code {
			t.Errorf("%s: %s %s", c.name, res.State, code)
		}
	}

	a := connect("twice-01")
	answer := inFlight(&f.Client, a.ID)
	req := request(t, a, answer)
	first, second := strings.Replace(okProcess, "forged", "first", 1), strings.Replace(okProcess, "forged", "second", 1)
	_ = a.Answer(req.ID, first)
	_ = a.Answer(req.ID, second)
	if res := <-answer; res.Stdout() != "first" {
		t.Errorf("answered twice: %q", res.Stdout())
	}
	var again harness.CallResult
	if f.REST(f.Admin).JSON("GET", "/api/v1/calls/"+req.ID, nil, &again); again.Stdout() != "first" {
		t.Errorf("the kept result is %q", again.Stdout())
	}
	outcomes := 0
	for _, r := range f.AllRecords() {
		if r.CallID == req.ID && r.Kind == "outcome" {
			outcomes++
		}
	}
	if outcomes != 1 {
		t.Errorf("%d outcomes", outcomes)
	}

	// Late: the connection ends first, so the outcome is unknown and stays so.
	late := connect("late-01")
	answer = inFlight(&f.Client, late.ID)
	req = request(t, late, answer)
	late.Close()
	if res := <-answer; res.State != "outcome_unknown" || res.Error == nil || res.Error.Code != "outcome_unknown" {
		t.Errorf("after a cut: %+v", res)
	}
	if err := late.Connect(); err != nil {
		t.Fatal(err)
	}
	_ = late.Answer(req.ID, okProcess)
	if _, res := f.REST(f.Admin).Call("late-01", "nothing", nil); res.Error == nil {
		t.Error("an unknown tool ran")
	}
	if f.REST(f.Admin).JSON("GET", "/api/v1/calls/"+req.ID, nil, &again); again.State != "outcome_unknown" {
		t.Errorf("a late answer made it %s", again.State)
	}
}

// TestHostileText: markup, line breaks and escapes that a host says of itself stay text.
func TestHostileText(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("text-01")
	evil := "x\n{\"level\":\"info\",\"msg\":\"approved\"}\r\x1b[2J<img src=x onerror=alert(1)>\u202e" + strings.Repeat("A", 1_000)
	a.Facts = protocol.Facts{Hostname: evil, OS: evil, OSVersion: evil, Arch: evil, RunAs: evil, AgentVersion: evil}
	if err := a.Connect(); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	harness.Eventually(t, 10*time.Second, "the facts are stored", func() bool {
		_, b := f.REST(f.Admin).Do("GET", "/api/v1/agents/text-01", "")
		return strings.Contains(string(b), "onerror") || strings.Contains(string(b), "img")
	})
	_, b := f.REST(f.Admin).Do("GET", "/api/v1/agents", "")
	for _, bad := range []string{"\u001b", "\\u001b", "\u202e", "\\n{", "\\r", strings.Repeat("A", 300)} {
		if strings.Contains(string(b), bad) {
			t.Errorf("the list holds %q: %.300s", bad, b)
		}
	}
}

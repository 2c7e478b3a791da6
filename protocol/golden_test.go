package protocol_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
)

var update = flag.Bool("update", false, "write golden files that aren't there yet")

// golden are the frames of version 1. Files are added, never changed: agents in the field
// speak them.
func golden() map[string]any {
	facts := protocol.Facts{Hostname: "web-01.example.com", OS: "linux", OSVersion: "Debian GNU/Linux 12 (bookworm)", Arch: "amd64", RunAs: "root", AgentVersion: "0.1.0"}
	rooted := facts
	rooted.Roots = []string{"/srv", "/var/log"}
	caps := []protocol.Capability{{Name: "shell_exec", Version: 1}, {Name: "fs_read", Version: 2}}
	const id = "019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60"
	caller := protocol.Caller{Principal: "pat:k3v9", User: "ann", Kind: "pat", Client: "claude-code/2.1"}
	return map[string]any{
		"hello":     &protocol.Hello{Type: "hello", AgentID: "web-01", Versions: []int{1}, Generation: 1, Instance: "Zm9vYmFyYmF6cXV4MTIzNA", LastEpoch: 41, Nonce: strings.Repeat("A", 43), Facts: facts, Capabilities: caps},
		"challenge": &protocol.Challenge{Type: "challenge", Nonce: strings.Repeat("A", 43), Signature: strings.Repeat("A", 86)},
		"auth":      &protocol.Auth{Type: "auth", Signature: strings.Repeat("A", 86)},
		"welcome":   &protocol.Welcome{Type: "welcome", Version: 1, Epoch: 42, KeepAliveMS: 20000, ServerTime: 1796000000000000},
		"welcome-next-key": &protocol.Welcome{Type: "welcome", Version: 1, Epoch: 42, KeepAliveMS: 20000, ServerTime: 1796000000000000,
			NextServerKey: strings.Repeat("A", 43), NextServerKeySignature: strings.Repeat("A", 86)},
		"refuse":  &protocol.Refuse{Type: "refuse", Code: "denied", Reason: "removed", Message: "agent web-01 was removed by an operator; its id isn't used again", RetryAfterMS: 3600000},
		"request": &protocol.Request{Type: "request", ID: id, Tool: "shell_exec", Args: []byte(`{"command": "echo \u0061" , "timeout_seconds":5}`), Seal: strings.Repeat("A", 43), Caller: caller, DeadlineMS: 60000},
		"request-reserved": &protocol.Request{Type: "request", ID: id, Tool: "fs_stat", Args: []byte(`{}`), Seal: strings.Repeat("A", 43), Caller: protocol.Caller{Principal: "system:probe", User: "Drover", Kind: "system"}, DeadlineMS: 1,
			Progress: true, Approval: &protocol.Approval{Nonce: "n", KeyID: "k", Assertion: "a"}, ApprovalRequired: &protocol.ApprovalRequired{Nonce: "n"}, NotAfterMS: 2000, ToolVersion: 3,
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		"response":       &protocol.Response{Type: "response", ID: id, Result: []byte(`{"stdout":"a\n", "exit_code":0}`), TookUS: 1234},
		"response-error": &protocol.Response{Type: "response", ID: id, Error: &protocol.Error{Code: "tool_failed", Reason: "enoent", Message: "no such file: /x"}, TookUS: 55},
		"response-both":  &protocol.Response{Type: "response", ID: id, Result: []byte(`{"stdout":"partial"}`), Error: &protocol.Error{Code: "timed_out", Message: "it was ended after 5 s"}, Receipt: "r", TookUS: 5000000},
		"progress":       &protocol.Progress{Type: "progress", ID: id, Seq: 1, Message: "copied 10 of 20 files"},
		"cancel":         &protocol.Cancel{Type: "cancel", ID: id, Reason: "the caller cancelled"},
		"resume-ask":     &protocol.Resume{Type: "resume", IDs: []string{id}},
		"resume-answer":  &protocol.Resume{Type: "resume", Boot: "b", States: []protocol.ResumeState{{ID: id, State: "unseen"}}},
		"open":           &protocol.Open{Type: "open", Stream: 2, Kind: "frame", ID: id, Size: 20000},
		"credit":         &protocol.Credit{Type: "credit", Stream: 2, Bytes: 32768},
		"config":         &protocol.Config{Type: "config", KeepAliveMS: 20000},
		"facts":          &protocol.FactsUpdate{Type: "facts", Facts: rooted, Capabilities: caps},
		"log":            &protocol.Log{Type: "log", Level: "warn", Message: "the journal's disk is nearly full"},
		"goodbye":        &protocol.Goodbye{Type: "goodbye", Reason: "the server is restarting", RetryAfterMS: 2500},
		"ping":           &protocol.Ping{Type: "ping", N: 7},
		"pong":           &protocol.Pong{Type: "pong", N: 7},
		"epoch":          &protocol.Epoch{Type: "epoch", Epoch: 42},
	}
}

// golden2 are the frames that version 2 adds or changes.
func golden2() map[string]any {
	const id = "019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60"
	zero, killed := 0, 137
	facts := protocol.Facts{Hostname: "web-01.example.com", OS: "linux", OSVersion: "Debian GNU/Linux 12 (bookworm)", Arch: "amd64", RunAs: "root", AgentVersion: "0.2.0"}
	ahead, behind := facts, facts // not in a hello: the server may be of version 1
	ahead.ClockAheadMS, behind.ClockAheadMS = 3600123, -1500
	caps := []protocol.Capability{{Name: "shell_exec", Version: 1}}
	return map[string]any{
		"hello":       &protocol.Hello{Type: "hello", AgentID: "web-01", Versions: []int{2, 1}, Generation: 1, Instance: "Zm9vYmFyYmF6cXV4MTIzNA", LastEpoch: 41, Nonce: strings.Repeat("A", 43), Facts: facts, Capabilities: caps},
		"welcome":     &protocol.Welcome{Type: "welcome", Version: 2, Epoch: 42, KeepAliveMS: 20000, ServerTime: 1796000000000000},
		"facts-ahead": &protocol.FactsUpdate{Type: "facts", Facts: ahead, Capabilities: caps},
		"facts":       &protocol.FactsUpdate{Type: "facts", Facts: behind, Capabilities: caps},
		"request":     &protocol.Request{Type: "request", ID: id, Tool: "fs_stat", Args: []byte(`{"path":"/etc/hosts"}`), Seal: strings.Repeat("A", 43), Caller: protocol.Caller{Principal: "pat:k3v9", User: "ann", Kind: "pat"}, DeadlineMS: 60000, NotAfterMS: 2000},
		"resume-boot": &protocol.Resume{Type: "resume", Boot: "journal-7.boot-1"},
		"resume-ask":  &protocol.Resume{Type: "resume", IDs: []string{id}},
		"resume-answer": &protocol.Resume{Type: "resume", Boot: "journal-7.boot-1", States: []protocol.ResumeState{
			{ID: id, State: protocol.FateRunning, PID: 4711, AgoMS: 61000},
			{ID: "a", State: protocol.FateDone, PID: 4712, AgoMS: 90000, Ended: true, ExitCode: &zero},
			{ID: "b", State: protocol.FateUnseen},
		}},
		"resume-lost": &protocol.Resume{Type: "resume", Boot: "journal-7.boot-2", States: []protocol.ResumeState{
			{ID: id, State: protocol.FateLost, PID: 4713, AgoMS: 120000, Ended: true, ExitCode: &killed, Note: "the agent was restarted; what it had left running was killed"},
		}},
		"open-file":         &protocol.Open{Type: "open", Stream: 3, Kind: protocol.KindFile, ID: id, Size: 50000000},
		"open-file-unsized": &protocol.Open{Type: "open", Stream: 4, Kind: protocol.KindFile, ID: id, Size: -1},
	}
}

// golden3 are the frames that version 3 adds or changes.
func golden3() map[string]any {
	const id = "019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60"
	return map[string]any{
		"welcome": &protocol.Welcome{Type: "welcome", Version: 3, Epoch: 42, KeepAliveMS: 20000, ServerTime: 1796000000000000},
		"request": &protocol.Request{Type: "request", ID: id, Tool: "fs_stat", Args: []byte(`{"path":"/etc/hosts"}`), Seal: strings.Repeat("A", 43), Caller: protocol.Caller{Principal: "pat:k3v9", User: "ann", Kind: "pat", Admin: true}, DeadlineMS: 60000,
			Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
}

// decode reads any frame, the handshake's too.
func decode(t *testing.T, b []byte) any {
	t.Helper()
	typ, err := protocol.PeekType(b)
	if err != nil {
		t.Fatal(err)
	}
	shake := map[protocol.Type]any{"hello": new(protocol.Hello), "challenge": new(protocol.Challenge), "auth": new(protocol.Auth), "welcome": new(protocol.Welcome), "refuse": new(protocol.Refuse)}
	if v := shake[typ]; v != nil {
		if err := protocol.DecodeInto(b, v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	v, err := protocol.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestGoldenFrames(t *testing.T) {
	for version, frames := range map[string]map[string]any{"v1": golden(), "v2": golden2(), "v3": golden3()} {
		dir := filepath.Join("testdata", version)
		files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
		if n := len(frames); len(files) != n && !*update {
			t.Errorf("%s: %d files, %d frames", version, len(files), n)
		}
		for name, want := range frames {
			checkGolden(t, filepath.Join(dir, name+".json"), want)
		}
	}
}

// checkGolden reads a frame from its file, and writes it again to the same bytes.
func checkGolden(t *testing.T, path string, want any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *update {
		b, err = protocol.Encode(want)
		b = append(b, '\n')
		if err == nil {
			err = os.WriteFile(path, b, 0o644)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	b = []byte(strings.TrimSuffix(string(b), "\n"))
	got := decode(t, b)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: %s", path, d)
	}
	again, err := protocol.Encode(got)
	if err != nil || string(again) != string(b) {
		t.Errorf("%s: encoded again: %s %v", path, again, err)
	}
}

// Each line of refused.txt is a kind of fault, a tab and a frame that has it.
func TestRefusedFrames(t *testing.T) {
	for version, least := range map[string]int{"v1": 20, "v2": 10} {
		refused(t, filepath.Join("testdata", version, "refused.txt"), least)
	}
}

func refused(t *testing.T, path string, least int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		kind, frame, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !ok {
			continue
		}
		n++
		_, err := protocol.Decode([]byte(frame))
		var se *strict.Error
		switch {
		case kind == "unknown_type":
			if !errors.Is(err, protocol.ErrUnknownType) {
				t.Errorf("%s: %v", frame, err)
			}
		case !errors.As(err, &se) || string(se.Kind) != kind:
			t.Errorf("%s: got %v, want %s", frame, err, kind)
		}
	}
	if n < least {
		t.Errorf("%s: only %d frames", path, n)
	}
}

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		peer []int
		want int
		ok   bool
	}{{[]int{1}, 1, true}, {[]int{2, 1}, 2, true}, {[]int{1, 2}, 2, true}, {[]int{2}, 2, true}, {[]int{9, 1}, 1, true}, {[]int{9, 2, 1}, 2, true}, {[]int{9}, 0, false}, {nil, 0, false}, {[]int{0, -1}, 0, false}} {
		if v, ok := protocol.Negotiate(c.peer); v != c.want || ok != c.ok {
			t.Errorf("%v: %d %t", c.peer, v, ok)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, frames := range []map[string]any{golden(), golden2()} {
		for _, v := range frames {
			if b, err := protocol.Encode(v); err == nil {
				f.Add(b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := protocol.Decode(b)
		if err != nil {
			return
		}
		again, err := protocol.Encode(v)
		if err != nil {
			var se *strict.Error
			if errors.As(err, &se) && se.Kind == strict.Depth {
				return // the limit counts from the frame, not from the member
			}
			if r, ok := v.(*protocol.Request); ok && (len(r.Args) == 0 || r.Args[0] != '{') {
				return // refused later, by the session
			}
			t.Fatalf("%s was read and can't be written: %v", b, err)
		}
		w, err := protocol.Decode(again)
		if err != nil {
			t.Fatalf("%s became %s: %v", b, again, err)
		}
		if d := cmp.Diff(v, w); d != "" {
			t.Fatal(d)
		}
	})
}

func FuzzEnrolToken(f *testing.F) {
	var tok protocol.EnrolToken
	f.Add(tok.String())
	f.Add("drv_enr_")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := protocol.ParseEnrolToken(s)
		if err == nil && tok.String() != strings.TrimSpace(s) {
			t.Fatalf("%q has a second spelling: %q", tok.String(), s)
		}
	})
}

//go:build linux

package capability_test

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// printed runs a command line and returns its call's id beside its result.
func printed(t *testing.T, r *rig, a args) (string, spec.ProcessOut) {
	t.Helper()
	req := r.request(t, "shell_exec", a)
	out, _ := handled[spec.ProcessOut](t.Context(), t, r, req)
	return req.ID, out
}

func pageAt(t *testing.T, r *rig, a args) spec.ShellOutputOut {
	t.Helper()
	out, fault := call[spec.ShellOutputOut](t.Context(), t, r, "shell_output", a)
	if fault != nil {
		t.Fatalf("%v: %v", a, fault)
	}
	return out
}

// all pages through a stream to its end.
func all(t *testing.T, r *rig, id, stream string, limit int) string {
	t.Helper()
	var b strings.Builder
	for at, pages := int64(0), 0; ; pages++ {
		p := pageAt(t, r, args{"call_id": id, "stream": stream, "offset": at, "limit": limit})
		if p.Offset != at || p.NextOffset < at || p.NextOffset == at && !p.EOF || !utf8.ValidString(p.Text) || len(p.Text) > limit {
			t.Fatalf("page %d at %d: %d bytes from %d to %d of %d, end %v", pages, at, len(p.Text), p.Offset, p.NextOffset, p.Total, p.EOF)
		}
		b.WriteString(p.Text)
		if at = p.NextOffset; p.EOF {
			if at != p.Total {
				t.Errorf("the end at %d of %d", at, p.Total)
			}
			return b.String()
		}
	}
}

func TestShellOutputGivesEachLineOnce(t *testing.T) {
	r := newRig(t)
	id, out := printed(t, r, args{"command": "seq 100000; seq 100001 100300 >&2; exit 3", "max_output": 2000})
	if !out.Truncated || !out.Kept || out.KeptPartly || out.ExitCode != 3 {
		t.Fatalf("got %+v", out)
	}
	want := func(from, to int) [32]byte {
		h := sha256.New()
		for i := from; i <= to; i++ {
			fmt.Fprintln(h, i)
		}
		return [32]byte(h.Sum(nil))
	}
	if got := all(t, r, id, "stdout", 50_000); sha256.Sum256([]byte(got)) != want(1, 100_000) {
		t.Errorf("another standard output: %d bytes of %d", len(got), out.StdoutBytes)
	}
	if got := all(t, r, id, "stderr", 1000); sha256.Sum256([]byte(got)) != want(100_001, 100_300) {
		t.Errorf("another standard error: %d bytes of %d", len(got), out.StderrBytes)
	}
}

// Neither stream alone is more than is held, both are more than is returned.
func TestShellOutputKeepsBothStreams(t *testing.T) {
	r := newRig(t)
	for name, line := range map[string]string{
		"both":       "seq 500; seq 501 1000 >&2",
		"bit by bit": `seq 300; sleep 0.3; seq 301 500; sleep 0.3; seq 501 700; seq 501 1000 >&2`,
		"escapes":    `yes '"' | head -c 1900; seq 501 1000 >&2`,
	} {
		id, out := printed(t, r, args{"command": line, "max_output": 2000})
		if !out.Truncated || !out.Kept || out.KeptPartly {
			t.Fatalf("%s: %+v", name, out)
		}
		if got := all(t, r, id, "stdout", 1000); int64(len(got)) != out.StdoutBytes || !strings.HasPrefix(got, out.Stdout[:100]) {
			t.Errorf("%s: %d bytes of %d", name, len(got), out.StdoutBytes)
		}
		if got := all(t, r, id, "stderr", 1000); int64(len(got)) != out.StderrBytes || !strings.HasSuffix(got, "1000\n") {
			t.Errorf("%s: %d bytes of %d", name, len(got), out.StderrBytes)
		}
	}
}

// What an answer holds whole never touches the disk.
func TestSmallOutputIsNotKept(t *testing.T) {
	r := newRig(t)
	id, out := printed(t, r, args{"command": "seq 1000; seq 1000 >&2"})
	if out.Truncated || out.Kept || len(names(t, r.host.Output)) != 0 {
		t.Errorf("%+v, on the disk %v", out, names(t, r.host.Output))
	}
	_, fault := call[spec.ShellOutputOut](t.Context(), t, r, "shell_output", args{"call_id": id})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOENT)
}

func TestShellOutputIsForTheCallerAlone(t *testing.T) {
	r := newRig(t)
	id, _ := printed(t, r, args{"command": "seq 1000", "max_output": 1000})
	ask := func(id, principal string) *protocol.Error {
		req := r.request(t, "shell_output", args{"call_id": id})
		req.Caller.Principal = principal
		return r.Handle(t.Context(), req, mux.Detached(func(string) {})).Error
	}
	if fault := ask(id, "pat:0192"); fault != nil {
		t.Error(fault)
	}
	missing := ask("no-such-call", "pat:0192")
	wantFault(t, missing, protocol.CodeToolFailed, protocol.ReasonENOENT)
	for _, other := range []string{"pat:0193", "", "pat:019"} {
		if fault := ask(id, other); fault == nil || *fault != *missing {
			t.Errorf("to %q: %v, of a missing one: %v", other, fault, missing)
		}
	}
	wantFault(t, ask("../"+id, "pat:0192"), protocol.CodeToolFailed, protocol.ReasonENOENT)
}

func TestX12_PagesAreCutBetweenRunes(t *testing.T) {
	r := newRig(t)
	id, out := printed(t, r, args{"command": `for i in $(seq 2000); do printf 'a😀é'; done`, "max_output": 1000})
	whole := strings.Repeat("a😀é", 2000)
	for limit := 1000; limit < 1008; limit++ {
		if got := all(t, r, id, "stdout", limit); got != whole {
			t.Errorf("in pages of %d: %d bytes of %d", limit, len(got), out.StdoutBytes)
		}
	}
	for at, from := range []int64{0, 1, 5, 5, 5, 5, 7, 7, 8} {
		if p := pageAt(t, r, args{"call_id": id, "offset": at, "limit": 1000}); p.Offset != from || p.Invalid || p.NextOffset != from+int64(len(p.Text)) || !strings.HasPrefix(whole[from:], p.Text) {
			t.Errorf("at %d: from %d, not %d: %.20q", at, p.Offset, from, p.Text)
		}
	}
	if p := pageAt(t, r, args{"call_id": id, "offset": 1 << 40}); p.Text != "" || !p.EOF || p.NextOffset != 1<<40 || p.Total != out.StdoutBytes {
		t.Errorf("beyond the end: %+v", p)
	}
}

func TestX08_PagesMarkWhatIsNoText(t *testing.T) {
	r := newRig(t)
	id, out := printed(t, r, args{"command": `for i in $(seq 1000); do printf '\xe4\xf6 \0\x80 \xf0\x9f\n'; done`, "max_output": 1000})
	if !out.Kept || !out.Invalid {
		t.Fatalf("got %+v", out)
	}
	if got, want := all(t, r, id, "stdout", 1000), strings.Repeat(`\xe4\xf6 \x00\x80 \xf0\x9f`+"\n", 1000); got != want {
		t.Errorf("got %d bytes of %d: %.100q", len(got), len(want), got)
	}
	// Bytes that look like the rest of a rune, but aren't, aren't left out.
	if p := pageAt(t, r, args{"call_id": id, "offset": 4}); p.Offset != 4 || !strings.HasPrefix(p.Text, `\x80 \xf0`) {
		t.Errorf("from %d: %.20q", p.Offset, p.Text)
	}
}

// A command that's ended by its time limit keeps what it printed; while it runs, that can be
// read already.
func TestShellOutputOfARunningAndAnEndedCall(t *testing.T) {
	r := newRig(t)
	// It stops inside a character until it's told to go on.
	goOn := filepath.Join(t.TempDir(), "go")
	line := `seq 5000; printf '\360\237'; while [ ! -e ` + goOn + ` ]; do sleep 0.05; done; printf '\230\200'; sleep 60`
	req := r.request(t, "shell_exec", args{"command": line, "max_output": 1000, "timeout_seconds": 4})
	done := make(chan *protocol.Response, 1)
	go func() { done <- r.Handle(t.Context(), req, mux.Detached(func(string) {})) }()
	eventually(t, "output while it runs", func() bool {
		p, fault := call[spec.ShellOutputOut](t.Context(), t, r, "shell_output", args{"call_id": req.ID, "limit": 100_000})
		return fault == nil && strings.HasSuffix(p.Text, "5000\n") && !p.Invalid && !p.EOF && p.NextOffset == p.Total-2
	})
	writeFile(t, goOn, "")
	wantFault(t, (<-done).Error, protocol.CodeTimedOut, "")
	if got := all(t, r, req.ID, "stdout", 100_000); !strings.HasSuffix(got, "\n5000\n😀") {
		t.Errorf("%d bytes", len(got))
	}
}

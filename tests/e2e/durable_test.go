package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// event is one system call of the traced server: at which line of the trace it began, and
// at which it had returned.
type event struct {
	call, text  string // its name; its arguments and result as they're printed
	begin, ends int
}

var (
	whole   = regexp.MustCompile(`^(\d+) +(\w+)\((.*)$`)
	resumed = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>(.*)$`)
)

// parseTrace reads what strace -f wrote.
func parseTrace(text string) []event {
	var all []event
	open := map[string]int{} // by thread: the index of the call that hasn't returned
	for n, line := range strings.Split(text, "\n") {
		if m := resumed.FindStringSubmatch(line); m != nil {
			if i, ok := open[m[1]]; ok && all[i].call == m[2] {
				all[i].text += m[3]
				all[i].ends = n
				delete(open, m[1])
			}
			continue
		}
		m := whole.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		e := event{call: m[2], text: m[3], begin: n, ends: n}
		if before, cut := strings.CutSuffix(e.text, "<unfinished ...>"); cut {
			e.text, e.ends = before, 1<<30
			open[m[1]] = len(all)
		}
		all = append(all, e)
	}
	return all
}

// first is the first event from at on (by index) that holds all of these texts.
func first(all []event, from int, calls string, texts ...string) int {
next:
	for i := from; i < len(all); i++ {
		if !strings.Contains(" "+calls+" ", " "+all[i].call+" ") {
			continue
		}
		for _, s := range texts {
			if !strings.Contains(all[i].text, s) {
				continue next
			}
		}
		return i
	}
	return -1
}

// last is the last event from at on and before another that holds all of these texts.
func last(all []event, from, before int, calls string, texts ...string) int {
	found := -1
	for i := first(all, from, calls, texts...); i >= 0 && i < before; i = first(all, i+1, calls, texts...) {
		found = i
	}
	return found
}

// traced runs one call on a server under strace and returns its id and the trace.
func traced(t *testing.T, database string) (call string, trace []event) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	testenv.Require(t, err == nil, "strace isn't installed: apt-get install strace")
	out := filepath.Join(t.TempDir(), "trace")
	// -D: the server stays this process's child, so that signals reach it.
	try := exec.CommandContext(t.Context(), strace, "-D", "-f", "-o", out, "true")
	_, err = try.CombinedOutput()
	testenv.Require(t, err == nil, fmt.Sprintf("strace may not trace here: %v", err))
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.SQLite, DatabaseURL: database, Prefix: []string{
		strace, "-D", "-f", "-qq", "-yy", "-s", "16384", "-e", "signal=none",
		"-e", "trace=pwrite64,pwritev,pwritev2,write,writev,sendto,sendmsg,fdatasync,fsync,sync_file_range,read,recvfrom,exit_group", "-o", out,
	}})
	d.Host("web-01")
	_, res := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo hi"})
	if res.Stdout() != "hi\n" {
		t.Fatalf("the call: %+v %+v", res, res.Error)
	}
	d.Server.Stop()
	var text string
	harness.Eventually(t, 30*time.Second, "the trace is complete", func() bool {
		b, err := os.ReadFile(out)
		text = string(b)
		return err == nil && strings.Contains(text, "exit_group(")
	})
	return res.CallID, parseTrace(text)
}

const (
	writes = "write writev sendto sendmsg"
	reads  = "read recvfrom"
	syncs  = "fdatasync fsync"
)

// milestones finds the request's frame and the answer in the trace.
func milestones(t *testing.T, trace []event, call string) (frame, answer int) {
	t.Helper()
	frame = first(trace, 0, writes, "TCP", `\"type\":\"request\"`, call)
	if frame < 0 {
		t.Fatal("the trace has no request frame")
	}
	if answer = first(trace, frame, writes, "TCP", "HTTP/1.1 200", call); answer < 0 {
		t.Fatal("the trace has no answer")
	}
	if early := first(trace, 0, writes, "TCP", `\"type\":\"request\"`); early != frame {
		t.Error("the first request frame isn't this call's: the trace shows something else than it should")
	}
	return frame, answer
}

// TestDurableSQLite: the system calls of the server show that the write-ahead log held the
// call, and was synced, before the first byte of the request went to the agent, and that
// the outcome was synced before the answer.
func TestDurableSQLite(t *testing.T) {
	call, trace := traced(t, "")
	frame, answer := milestones(t, trace, call)
	synced := func(what string, from, before int) {
		t.Helper()
		write := last(trace, from, before, "pwrite64", "drover.db-wal", call)
		if write < 0 {
			t.Fatalf("%s: the call wasn't in the write-ahead log", what)
		}
		for i := first(trace, write+1, syncs, "drover.db-wal"); i >= 0 && i < before; i = first(trace, i+1, syncs, "drover.db-wal") {
			if trace[i].begin > trace[write].ends && trace[i].ends < trace[before].begin && strings.HasSuffix(trace[i].text, "= 0") {
				t.Logf("%s: log written at line %d, synced at %d, then %s at %d", what, trace[write].begin, trace[i].ends, trace[before].call, trace[before].begin)
				return
			}
		}
		t.Errorf("%s: between the log's write (line %d) and %s (line %d) it wasn't synced", what, trace[write].begin, trace[before].call, trace[before].begin)
	}
	synced("intent before the request", 0, frame)
	synced("outcome before the answer", frame, answer)
}

// TestDurablePostgres: the server had read COMMIT's reply before it sent the request, and
// again before it answered; the engine syncs what it commits.
func TestDurablePostgres(t *testing.T) {
	url := harness.PostgresSchema(t)
	var fsync, commit string
	db := harness.OpenPostgres(t, url)
	if err := db.QueryRow("SHOW fsync").Scan(&fsync); err != nil || fsync != "on" {
		t.Fatalf("this Postgres runs with fsync=%s, %v: its commits prove nothing", fsync, err)
	}
	if err := db.QueryRow("SHOW synchronous_commit").Scan(&commit); err != nil {
		t.Fatal(err)
	}
	call, trace := traced(t, url+"&sslmode=disable")
	frame, answer := milestones(t, trace, call)
	asked := first(trace, 0, writes, "TCP", "SHOW synchronous_commit")
	if asked < 0 || first(trace, asked, reads, "TCP", `\2on`) < 0 {
		t.Fatal("the server didn't read synchronous_commit back as on")
	}
	if off := first(trace, 0, writes, "TCP", "synchronous_commit", "off"); off >= 0 {
		t.Errorf("the server turned it off: %s", trace[off].text)
	}
	committed := func(what string, from, before int) {
		t.Helper()
		sent := last(trace, from, before, writes, "TCP", call)
		if sent < 0 {
			t.Fatalf("%s: the call wasn't sent to Postgres", what)
		}
		socket, _, _ := strings.Cut(trace[sent].text, ",")
		reply := first(trace, sent, reads, socket, `COMMIT\0`)
		if reply < 0 || trace[reply].ends >= trace[before].begin {
			t.Errorf("%s: the commit's reply wasn't read before", what)
			return
		}
		t.Logf("%s: sent at line %d, COMMIT read at %d, then %s at %d", what, trace[sent].begin, trace[reply].ends, trace[before].call, trace[before].begin)
	}
	committed("intent before the request", 0, frame)
	committed("outcome before the answer", frame+1, answer)
}

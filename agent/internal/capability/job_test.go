//go:build linux || darwin

package capability_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/capability"
	"github.com/drover-fleet/drover/agent/internal/jobs"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

const asSupervisor = "job-supervisor"

// TestMain is also the program that the jobs of these tests run under.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == asSupervisor {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := jobs.Supervise(ctx, os.Stdin, os.Stdout, capability.JobProcesses{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newJobRig is a rig that offers jobs; those that run are ended with the test.
func newJobRig(t testing.TB) *rig {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m, err := jobs.New(jobs.Options{Dir: filepath.Join(t.TempDir(), "jobs"), Supervisor: []string{self, asSupervisor}, Env: []string{"PATH=" + os.Getenv("PATH")},
		Processes: capability.JobProcesses{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, left := m.StopAll(context.Background(), jobs.Stop{Signal: "KILL"}); len(left) > 0 {
			t.Errorf("jobs are left: %+v", left)
		}
		m.Close()
	})
	r := newRig(t)
	r.reg = &run.Registry{}
	r.host = &capability.Host{AgentID: "web-01", Version: "1.2.3", RunAs: "tester", Files: r.host.Files, Jobs: m, Log: slog.New(slog.DiscardHandler)}
	capability.Bind(r.reg, r.host)
	t.Cleanup(r.host.Close)
	r.Runner = run.New(r.reg, r.id, nil, slog.New(slog.DiscardHandler))
	return r
}

// as makes a call for another caller than the rig's own.
func as[Out any](t testing.TB, r *rig, c protocol.Caller, tool string, a args) (out Out, fault *protocol.Error) {
	t.Helper()
	req := r.request(t, tool, a)
	req.Caller = c
	resp := r.Handle(t.Context(), req, mux.Detached(func(string) {}))
	if resp.Result != nil {
		if err := json.Unmarshal(resp.Result, &out); err != nil {
			t.Fatalf("%s: result %.300s: %v", tool, resp.Result, err)
		}
	}
	return out, resp.Error
}

func startJob(t testing.TB, r *rig, a args) spec.JobStartOut {
	t.Helper()
	out, fault := call[spec.JobStartOut](t.Context(), t, r, "job_start", a)
	if fault != nil {
		t.Fatalf("%v: %v", a, fault)
	}
	return out
}

func jobOutput(t testing.TB, r *rig, a args) spec.JobOutputOut {
	t.Helper()
	out, fault := call[spec.JobOutputOut](t.Context(), t, r, "job_output", a)
	if fault != nil {
		t.Fatalf("%v: %v", a, fault)
	}
	return out
}

// readJob pages through a job's output to its end.
func readJob(t testing.TB, r *rig, id string, limit int) (text string, last spec.JobOutputOut) {
	t.Helper()
	var b strings.Builder
	for end := time.Now().Add(time.Minute); !last.EOF && time.Now().Before(end); {
		next := jobOutput(t, r, args{"job_id": id, "offset": last.NextOffset, "limit": limit, "wait_seconds": 10})
		if next.Offset != last.NextOffset || next.NextOffset-next.Offset > int64(limit) {
			t.Fatalf("a page of %d to %d after %d", next.Offset, next.NextOffset, last.NextOffset)
		}
		b.WriteString(next.Text)
		last = next
	}
	return b.String(), last
}

// TestX13_OutputIsPagedExactlyOnce: while it's printed and afterwards, by any size of page,
// with runes whole.
func TestX13_OutputIsPagedExactlyOnce(t *testing.T) {
	r := newJobRig(t)
	j := startJob(t, r, args{"command": "for i in $(seq 300); do printf 'é%d😀\\n' $i; [ $((i % 50)) = 0 ] && sleep 0.1; done; exit 5", "name": "count"})
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintf(&want, "é%d😀\n", i+1)
	}
	for _, limit := range []int{101, 40_000} {
		text, last := readJob(t, r, j.JobID, limit)
		if text != want.String() || last.State != "failed" || last.ExitCode == nil || *last.ExitCode != 5 || last.StdoutBytes != int64(want.Len()) || last.Invalid {
			t.Errorf("by %d: %d bytes of %d, %+v", limit, len(text), want.Len(), last)
		}
	}
	tail := jobOutput(t, r, args{"job_id": j.JobID, "offset": -12})
	if tail.Text != "é300😀\n" && tail.Text != "\né300😀\n" || !tail.EOF {
		t.Errorf("the tail: %+v", tail)
	}
	if all := jobOutput(t, r, args{"job_id": j.JobID, "offset": -1 << 40, "limit": 1 << 20}); all.Text != want.String() {
		t.Errorf("a tail longer than all: %d bytes", len(all.Text))
	}
}

// TestX12_ACutRuneWaits: until the rest of it comes, or the job has ended.
func TestX12_ACutRuneWaits(t *testing.T) {
	r := newJobRig(t)
	gate := filepath.Join(t.TempDir(), "gate")
	j := startJob(t, r, args{"command": `printf 'a\360\237'; until [ -e ` + gate + ` ]; do sleep 0.05; done; printf '\230\200b\0c\303'`})
	eventually(t, "the first bytes", func() bool { return jobOutput(t, r, args{"job_id": j.JobID}).StdoutBytes == 3 })
	if p := jobOutput(t, r, args{"job_id": j.JobID}); p.Text != "a" || p.NextOffset != 1 || p.EOF || p.State != "running" {
		t.Errorf("%+v", p)
	}
	writeFile(t, gate, "")
	text, last := readJob(t, r, j.JobID, 40_000)
	if text != `a😀b\x00c\xc3` || !last.Invalid || last.State != "done" {
		t.Errorf("%q, %+v", text, last)
	}
}

func TestJobOutputWaitsForNews(t *testing.T) {
	r := newJobRig(t)
	gate := filepath.Join(t.TempDir(), "gate")
	j := startJob(t, r, args{"command": "until [ -e " + gate + " ]; do sleep 0.05; done; echo news; exec sleep 600"})
	if p := jobOutput(t, r, args{"job_id": j.JobID, "wait_seconds": 1}); p.Text != "" || p.State != "running" || p.NextOffset != 0 || p.EOF {
		t.Errorf("nothing yet: %+v", p)
	}
	got := make(chan spec.JobOutputOut, 1)
	go func() { got <- jobOutput(t, r, args{"job_id": j.JobID, "wait_seconds": 45}) }()
	writeFile(t, gate, "")
	if p := <-got; p.Text != "news\n" || p.State != "running" {
		t.Errorf("with news: %+v", p)
	}
	go func() { got <- jobOutput(t, r, args{"job_id": j.JobID, "offset": 5, "wait_seconds": 45}) }()
	stop, fault := call[spec.JobStopOut](t.Context(), t, r, "job_stop", args{"job_id": j.JobID})
	if fault != nil || stop.State != "killed" || stop.Stopped != 1 || stop.Signal != "SIGTERM" || !strings.Contains(stop.Detail, "pat:0192") {
		t.Errorf("stop: %+v, %v", stop, fault)
	}
	if p := <-got; p.Text != "" || p.State != "killed" || !p.EOF {
		t.Errorf("with the end: %+v", p)
	}
	again, fault := call[spec.JobStopOut](t.Context(), t, r, "job_stop", args{"job_id": j.JobID})
	if fault != nil || !again.Already || again.State != "killed" || again.Stopped != 0 {
		t.Errorf("stopped again: %+v, %v", again, fault)
	}
}

// TestJobsSeeWhatCommandsSee: standard input, folder, environment, and their own id.
func TestJobsSeeWhatCommandsSee(t *testing.T) {
	r := newJobRig(t)
	dir := t.TempDir()
	j := startJob(t, r, args{"argv": []string{"sh", "-c", `cat; pwd; echo "$A $DROVER_AGENT_ID $DROVER_CALL_ID $DROVER_JOB_ID $DROVER_CALLER"; echo "$1" >&2`, "sh", "-$x 'é'"},
		"stdin": "in\n", "cwd": dir, "env": map[string]string{"A": "1"}})
	text, last := readJob(t, r, j.JobID, 40_000)
	if want := fmt.Sprintf("in\n%s\n1 web-01 %s %s pat:0192:ann-s-laptop----id-\n", dir, j.JobID, j.JobID); text != want {
		t.Errorf("got %q, want %q (%+v)", text, want, last)
	}
	if p := jobOutput(t, r, args{"job_id": j.JobID, "stream": "stderr"}); p.Text != "-$x 'é'\n" || !p.EOF {
		t.Errorf("stderr: %+v", p)
	}
}

func TestJobArguments(t *testing.T) {
	r := newJobRig(t)
	j := startJob(t, r, args{"command": "echo x"})
	readJob(t, r, j.JobID, 1000)
	for _, c := range []struct {
		tool   string
		args   args
		code   protocol.Code
		reason string
	}{
		{"job_start", args{}, "bad_args", ""},
		{"job_start", args{"command": "x", "argv": []string{"x"}}, "bad_args", ""},
		{"job_start", args{"command": "a\x00b"}, "bad_args", ""},
		{"job_start", args{"argv": []string{"echo", "a\x00b"}}, "bad_args", ""},
		{"job_start", args{"command": "x", "cwd": "relative"}, "bad_args", ""},
		{"job_start", args{"command": "x", "env": map[string]string{"DROVER_JOB_ID": "x"}}, "bad_args", ""},
		{"job_start", args{"command": "x", "timeout_seconds": 604801}, "bad_args", ""},
		{"job_start", args{"command": "x", "max_output": 1}, "bad_args", ""},
		{"job_start", args{"argv": []string{"no-such-program"}}, "tool_failed", "enoent"},
		{"job_start", args{"argv": []string{"/etc/passwd"}}, "tool_failed", "eacces"},
		{"job_start", args{"command": "x", "cwd": "/no/such"}, "tool_failed", "enoent"},
		{"job_list", args{"state": "dead"}, "bad_args", ""},
		{"job_output", args{"job_id": "../" + j.JobID}, "tool_failed", "no_such_job"},
		{"job_output", args{"job_id": "x"}, "tool_failed", "no_such_job"},
		{"job_output", args{"job_id": j.JobID, "offset": 3}, "bad_args", ""},
		{"job_output", args{"job_id": j.JobID, "stream": "stdin"}, "bad_args", ""},
		{"job_output", args{"job_id": j.JobID, "wait_seconds": 46}, "bad_args", ""},
		{"job_stop", args{}, "bad_args", ""},
		{"job_stop", args{"job_id": "x"}, "tool_failed", "no_such_job"},
		{"job_stop", args{"job_id": j.JobID, "signal": "HUP"}, "bad_args", ""},
		{"job_stop", args{"job_id": j.JobID, "grace_seconds": 31}, "bad_args", ""},
		{"job_stop", args{"principal": "pat:0192"}, "bad_args", ""}, // the server's alone
	} {
		_, fault := call[struct{}](t.Context(), t, r, c.tool, c.args)
		if fault == nil || fault.Code != c.code || fault.Reason != c.reason {
			t.Errorf("%s %v: %v", c.tool, c.args, fault)
		}
	}
	list, fault := call[spec.JobListOut](t.Context(), t, r, "job_list", args{})
	if fault != nil || list.Total != 1 {
		t.Errorf("of those that were refused some are listed: %+v, %v", list, fault)
	}
}

// TestAJobThatCannotStart: a script without an interpreter is found out only by the system.
func TestAJobThatCannotStart(t *testing.T) {
	r := newJobRig(t)
	path := writeFile(t, filepath.Join(t.TempDir(), "x"), "nothing")
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	_, fault := call[spec.JobStartOut](t.Context(), t, r, "job_start", args{"argv": []string{path}})
	wantFault(t, fault, "tool_failed", "enoexec")
	list, _ := call[spec.JobListOut](t.Context(), t, r, "job_list", args{"state": "failed"})
	if len(list.Jobs) != 1 || list.Jobs[0].Detail == "" || list.Jobs[0].ExitCode != nil {
		t.Errorf("%+v", list)
	}
}

func TestJobsOfTwoPrincipals(t *testing.T) {
	r := newJobRig(t)
	ann := startJob(t, r, args{"command": "sleep 600", "name": "ann's"})
	bob := protocol.Caller{Principal: "pat:bob", User: "bob", Kind: "pat"}
	own, fault := as[spec.JobStartOut](t, r, bob, "job_start", args{"command": "sleep 600"})
	if fault != nil {
		t.Fatal(fault)
	}
	list, _ := as[spec.JobListOut](t, r, bob, "job_list", args{})
	if list.Total != 1 || list.Jobs[0].JobID != own.JobID || list.Jobs[0].StartedBy != "pat:bob:bob" {
		t.Errorf("bob sees %+v", list)
	}
	_, missing := as[spec.JobOutputOut](t, r, bob, "job_output", args{"job_id": "x"})
	for _, tool := range []string{"job_output", "job_stop"} {
		if _, fault := as[struct{}](t, r, bob, tool, args{"job_id": ann.JobID}); fault == nil || *fault != *missing {
			t.Errorf("%s of another's job: %v", tool, fault)
		}
	}
	system := protocol.Caller{Principal: "system:revocation", User: "drover", Kind: "system"}
	out, fault := as[spec.JobStopOut](t, r, system, "job_stop", args{"principal": "pat:bob"})
	if fault != nil || out.Stopped != 1 {
		t.Errorf("the server stops bob's: %+v, %v", out, fault)
	}
	if p, _ := as[spec.JobOutputOut](t, r, bob, "job_output", args{"job_id": own.JobID}); p.State != "killed" || !strings.Contains(p.Detail, "revoked") {
		t.Errorf("bob's job: %+v", p)
	}
	if p := jobOutput(t, r, args{"job_id": ann.JobID}); p.State != "running" {
		t.Errorf("ann's job: %+v", p)
	}
	if out, fault := as[spec.JobStopOut](t, r, system, "job_stop", args{"principal": "pat:bob"}); fault != nil || out.Stopped != 0 {
		t.Errorf("once more: %+v, %v", out, fault)
	}
}

// TestAJobListIsShort: the latest first, cut to what was asked for, by state.
func TestAJobListIsShort(t *testing.T) {
	r := newJobRig(t)
	var last spec.JobStartOut
	for range 3 {
		last = startJob(t, r, args{"command": "echo " + strings.Repeat("x", 500)})
		readJob(t, r, last.JobID, 1000)
	}
	startJob(t, r, args{"argv": []string{"sleep", "600"}, "name": "long\nname"})
	list, fault := call[spec.JobListOut](t.Context(), t, r, "job_list", args{"state": "done", "limit": 1})
	if fault != nil || list.Total != 3 || len(list.Jobs) != 1 || list.Jobs[0].JobID != last.JobID || len(list.Jobs[0].Command) > 210 || *list.Jobs[0].ExitCode != 0 {
		t.Errorf("%+v, %v", list, fault)
	}
	list, _ = call[spec.JobListOut](t.Context(), t, r, "job_list", args{"state": "running"})
	if list.Total != 1 || list.Jobs[0].Command != "sleep 600" || strings.Contains(list.Jobs[0].Name, "\n") || list.Jobs[0].EndedAt != "" {
		t.Errorf("%+v", list)
	}
}

// Every built-in has a function on some system; this one lacks nothing but PowerShell.
func TestEveryDefinitionIsBound(t *testing.T) {
	bound := newJobRig(t).reg.Capabilities()
	for _, d := range spec.All() {
		if !slices.Contains(bound, protocol.Capability{Name: d.Name, Version: d.Version}) && d.Name != "powershell_exec" {
			t.Errorf("%s isn't bound", d.Name)
		}
	}
}

//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// jobHost is a host whose agent can be killed and started again, with a program of its own
// that can be replaced.
type jobHost struct {
	t       *testing.T
	d       *harness.Deployment
	id      string
	program string
	state   string
	agent   *harness.Process
}

func newJobHost(t *testing.T) *jobHost {
	t.Helper()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	h := &jobHost{t: t, d: d, id: "web-01", program: filepath.Join(t.TempDir(), "drover-agent"), state: filepath.Join(t.TempDir(), "state")}
	h.install()
	// A job outlives its agent, so a failed test would leave it behind.
	t.Cleanup(func() {
		for _, pid := range h.ofJobs("") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		harness.Eventually(t, patience, "all that belongs to jobs is gone", func() bool { return len(h.ofJobs("")) == 0 })
	})
	h.start(d.Run("enroll", "create", "--agent-id", h.id))
	return h
}

// install puts the agent's program in place of what is there.
func (h *jobHost) install() {
	h.t.Helper()
	b, err := os.ReadFile(h.d.Programs.Path("drover-agent"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.replace(b)
}

func (h *jobHost) replace(program []byte) {
	h.t.Helper()
	if err := os.WriteFile(h.program+".new", program, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(h.program+".new", h.program); err != nil {
		h.t.Fatal(err)
	}
}

// start starts the agent and waits until the server sees it.
func (h *jobHost) start(token string) {
	h.t.Helper()
	h.agent = harness.Start(h.t, []string{"DROVER_ENROLL_TOKEN=" + token}, h.program, "run", "--server", h.d.URL, "--state", h.state)
	h.d.WaitState(h.id, "online")
}

// ofJobs are the processes of a job ("" for all of this host's), its supervisor among them.
func (h *jobHost) ofJobs(id string) (pids []int) {
	list, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range list {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil || len(env) == 0 {
			continue
		}
		to, _ := os.Readlink(dir + "/fd/2")
		supervises := strings.HasPrefix(to, h.state+"/jobs/"+id)
		if supervises || id != "" && bytes.Contains(env, []byte("DROVER_JOB_ID="+id+"\x00")) || id == "" && bytes.Contains(env, []byte("TEST_STATE="+h.state+"\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

func (h *jobHost) supervisor(id string) int {
	h.t.Helper()
	for _, pid := range h.ofJobs(id) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); bytes.Contains(line, []byte("job-supervisor")) {
			return pid
		}
	}
	h.t.Fatalf("job %s has no supervisor", id)
	return 0
}

// shownJob is what tests look at of a job, in any tool's answer.
type shownJob struct {
	JobID      string `json:"job_id"`
	Command    string `json:"command"`
	State      string `json:"state"`
	ExitCode   *int   `json:"exit_code"`
	PID        int    `json:"pid"`
	Detail     string `json:"detail"`
	Text       string `json:"text"`
	NextOffset int64  `json:"next_offset"`
	EOF        bool   `json:"eof"`
	Stopped    int    `json:"stopped"`
}

// do makes a call that must succeed.
func (h *jobHost) do(pat, tool string, args map[string]any, out any) {
	h.t.Helper()
	status, res := h.d.REST(pat).Call(h.id, tool, args)
	if res.State != "succeeded" {
		h.t.Fatalf("%s %v: HTTP %d, %s, %+v", tool, args, status, res.State, res.Error)
	}
	if err := json.Unmarshal(res.Result, out); err != nil {
		h.t.Fatal(err)
	}
}

func (h *jobHost) job(pat, command string) shownJob {
	h.t.Helper()
	var j shownJob
	h.do(pat, "job_start", map[string]any{"command": command, "env": map[string]string{"TEST_STATE": h.state}}, &j)
	return j
}

func (h *jobHost) output(pat, id string, offset int64) shownJob {
	h.t.Helper()
	var j shownJob
	h.do(pat, "job_output", map[string]any{"job_id": id, "offset": offset, "wait_seconds": 20}, &j)
	return j
}

func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || bytes.Contains(b, []byte(") Z "))
}

// TestX13_AJobSurvivesAgentServerAndUpdate: the agent killed, the server killed and the
// agent's program replaced while it runs change neither its output nor how it ends.
func TestX13_AJobSurvivesAgentServerAndUpdate(t *testing.T) {
	h := newJobHost(t)
	gates := t.TempDir()
	open := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(gates, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	next := int64(0)
	read := func(id, want string) {
		t.Helper()
		got := ""
		for !strings.HasSuffix(got, want) {
			p := h.output(h.d.Admin, id, next)
			if p.State != "running" {
				t.Fatalf("after %q it's %s: %+v", text.String(), p.State, p)
			}
			next, got = p.NextOffset, got+p.Text
		}
		text.WriteString(got)
	}
	const steps = `for i in 1 2 3 4 5; do until [ -e "$G/$i" ]; do sleep 0.05; done; echo "line $i"; done; exit 9`
	j := h.job(h.d.Admin, "G="+gates+"; "+steps)
	open("1")
	read(j.JobID, "line 1\n")

	h.replace([]byte("no program at all"))
	second := h.job(h.d.Admin, "until [ -e "+gates+"/5 ]; do sleep 0.05; done; echo second")
	open("2")
	read(j.JobID, "line 2\n")

	h.agent.Kill()
	open("3")
	addr := strings.TrimPrefix(h.d.URL, "http://")
	h.d.Server.Kill()
	h.d.Serve(addr)
	h.install()
	h.start("")
	read(j.JobID, "line 3\n")

	h.agent.Stop()
	open("4")
	h.start("")
	read(j.JobID, "line 4\n")
	var list struct {
		Jobs []shownJob `json:"jobs"`
	}
	h.do(h.d.Admin, "job_list", map[string]any{"state": "running"}, &list)
	if len(list.Jobs) != 2 || list.Jobs[1].JobID != j.JobID || list.Jobs[1].PID != j.PID {
		t.Errorf("the running jobs: %+v", list.Jobs)
	}
	open("5")
	last := shownJob{NextOffset: next}
	for !last.EOF {
		last = h.output(h.d.Admin, j.JobID, last.NextOffset)
		text.WriteString(last.Text)
	}
	if last.State != "failed" || last.ExitCode == nil || *last.ExitCode != 9 || text.String() != "line 1\nline 2\nline 3\nline 4\nline 5\n" {
		t.Errorf("it ended %s, %+v, and printed %q", last.State, last, text.String())
	}
	harness.Eventually(t, patience, "the second job ends", func() bool {
		p := h.output(h.d.Admin, second.JobID, 0)
		return p.State == "done" && p.Text == "second\n" && p.EOF
	})
}

// TestAJobWhoseSupervisorIsKilledIsLost: while the agent is away as well as under its eyes.
func TestAJobWhoseSupervisorIsKilledIsLost(t *testing.T) {
	h := newJobHost(t)
	a, b := h.job(h.d.Admin, "setsid sleep 600 & sleep 600"), h.job(h.d.Admin, "sleep 600")
	if err := syscall.Kill(h.supervisor(a.JobID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, patience, "its processes die", func() bool { return len(h.ofJobs(a.JobID)) == 0 })
	h.agent.Kill()
	if err := syscall.Kill(h.supervisor(b.JobID), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.start("")
	harness.Eventually(t, patience, "the other's processes die", func() bool { return len(h.ofJobs(b.JobID)) == 0 })
	for _, id := range []string{a.JobID, b.JobID} {
		if p := h.output(h.d.Admin, id, 0); p.State != "lost" || p.ExitCode != nil || !p.EOF {
			t.Errorf("%+v", p)
		}
	}
}

// TestJobsEndWithTheirRight: those of a revoked PAT, and all when the agent is removed.
func TestJobsEndWithTheirRight(t *testing.T) {
	h := newJobHost(t)
	pat, patID := h.d.PAT("worker", "all", "all", false)
	revoked, other := h.job(pat, "trap '' TERM; sleep 600 & wait; sleep 600"), h.job(h.d.Admin, "sleep 600")
	if status, res := h.d.REST(h.d.Admin).Call(h.id, "job_output", map[string]any{"job_id": revoked.JobID}); res.Error == nil || res.Error.Reason != "not_yours" {
		t.Errorf("another's job: HTTP %d, %+v, %+v", status, res, res.Error)
	}
	// An administrator lists and stops it; another one doesn't know of it.
	third := h.job(pat, "exec sleep 600")
	apart, _ := h.d.PAT("apart", "all", "all", false)
	for _, tool := range []string{"job_output", "job_stop"} {
		if status, res := h.d.REST(apart).Call(h.id, tool, map[string]any{"job_id": third.JobID}); res.Error == nil || res.Error.Reason != "no_such_job" {
			t.Errorf("%s of another's job: HTTP %d, %+v, %+v", tool, status, res, res.Error)
		}
	}
	var list struct {
		Jobs []shownJob `json:"jobs"`
	}
	h.do(h.d.Admin, "job_list", map[string]any{"state": "running"}, &list)
	if len(list.Jobs) != 3 {
		t.Errorf("an administrator's list: %+v", list.Jobs)
	}
	var stopped shownJob
	h.do(h.d.Admin, "job_stop", map[string]any{"job_id": third.JobID, "signal": "KILL"}, &stopped)
	if stopped.State != "killed" || !gone(third.PID) {
		t.Errorf("stopped by an administrator: %+v", stopped)
	}
	if status, _ := h.d.REST(h.d.Admin).Do("DELETE", "/api/v1/pats/"+patID, ""); status/100 != 2 {
		t.Fatalf("revoke: HTTP %d", status)
	}
	harness.Eventually(t, patience, "the revoked PAT's job is dead", func() bool { return gone(revoked.PID) })
	if gone(other.PID) {
		t.Error("another's job died with it")
	}
	if status, _ := h.d.REST(h.d.Admin).Do("DELETE", "/api/v1/agents/"+h.id, ""); status/100 != 2 {
		t.Fatalf("remove: HTTP %d", status)
	}
	harness.Eventually(t, patience, "the removed agent's job is dead", func() bool { return gone(other.PID) })
}

// TestSixtyFourJobs: one more is refused by name, also to one credential half of them, and the
// running ones don't hinder calls.
func TestSixtyFourJobs(t *testing.T) {
	h := newJobHost(t)
	var last shownJob
	for range 32 {
		last = h.job(h.d.Admin, "exec sleep 600")
	}
	_, res := h.d.REST(h.d.Admin).Call(h.id, "job_start", map[string]any{"command": "true"})
	if res.Error == nil || res.Error.Reason != "too_many_jobs" || !strings.Contains(res.Error.Message, "one credential") {
		t.Errorf("the 33rd of one credential: %+v %+v", res, res.Error)
	}
	pat, _ := h.d.PAT("worker", "all", "all", false)
	for range 32 {
		h.job(pat, "exec sleep 600")
	}
	third, _ := h.d.PAT("third", "all", "all", false)
	_, res = h.d.REST(third).Call(h.id, "job_start", map[string]any{"command": "true"})
	if res.Error == nil || res.Error.Code != "rate_limited" || res.Error.Reason != "too_many_jobs" {
		t.Errorf("the 65th: %+v %+v", res, res.Error)
	}
	if _, res := h.d.REST(h.d.Admin).Call(h.id, "shell_exec", map[string]any{"command": "echo ok"}); res.Stdout() != "ok\n" {
		t.Errorf("a call beside them: %+v %+v", res, res.Error)
	}
	var stopped shownJob
	h.do(h.d.Admin, "job_stop", map[string]any{"job_id": last.JobID, "signal": "KILL"}, &stopped)
	if stopped.State != "killed" || stopped.Stopped != 1 || !gone(last.PID) {
		t.Errorf("%+v", stopped)
	}
	h.job(h.d.Admin, "true")
}

// TestAJobOverMCP: in both eras, from its start to its end.
func TestAJobOverMCP(t *testing.T) {
	h := newJobHost(t)
	for _, era := range harness.Eras() {
		s := h.d.MCP(h.d.Admin, era, nil)
		call := func(tool string, args map[string]any) (j shownJob) {
			t.Helper()
			args["agent_id"] = h.id
			res, err := s.CallTool(t.Context(), params(tool, args))
			if err != nil || res.IsError {
				t.Fatalf("%s %s: %v %+v", era, tool, err, res)
			}
			b, err := json.Marshal(res.StructuredContent)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(b, &j); err != nil {
				t.Fatal(err)
			}
			return j
		}
		j := call("job_start", map[string]any{"command": "echo hello; exit 3"})
		p := shownJob{}
		for text := ""; !p.EOF; text += p.Text {
			p = call("job_output", map[string]any{"job_id": j.JobID, "offset": p.NextOffset, "wait_seconds": 20})
		}
		if p.State != "failed" || p.ExitCode == nil || *p.ExitCode != 3 || p.NextOffset != 6 {
			t.Errorf("%s: %+v", era, p)
		}
	}
}

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestCallQueueFor: a call that waits for its host ends the command with a code of its own,
// its end is had by its key, and an administrator takes back what waits.
func TestCallQueueFor(t *testing.T) {
	if os.PathSeparator != '/' {
		t.Skip("the commands are a Unix shell's")
	}
	f := harness.New(t, harness.Options{})
	host := f.Agent("web-01")
	u := run{env: map[string]string{"DROVER_URL": f.URL, "DROVER_PAT": f.Admin}}
	call := func(args ...string) result {
		t.Helper()
		return u.drover(t.Context(), append([]string{"call", "--agent", "web-01"}, args...)...)
	}
	if got := call("--queue-for", "1h", "shell_exec", "command=echo now"); got.code != 0 || got.out != "now\n" {
		t.Errorf("online: %+v", got)
	}
	if got := call("--json", "shell_exec", "command=exit 75"); got.code != 75 || !strings.Contains(got.out, `"state": "succeeded"`) || !strings.Contains(got.out, `"exit_code": 75`) || got.err != "drover: the command itself exited with 75\n" {
		t.Errorf("the command's own code as JSON: %+v", got)
	}
	for _, bad := range []string{"never", "8d", "0s", "soon", "-1h"} {
		if got := call("--queue-for", bad, "shell_exec", "command=id"); got.code != 255 || !strings.HasPrefix(got.err, "drover: bad_args: --queue-for") {
			t.Errorf("--queue-for %s: %+v", bad, got)
		}
	}
	host.Stop()
	host.WaitOffline()
	if got := call("shell_exec", "command=id"); got.code != 255 || !strings.HasPrefix(got.err, "drover: offline") {
		t.Errorf("without --queue-for: %+v", got)
	}
	waits := regexp.MustCompile(`^drover: queued: web-01 was offline; the call [0-9a-f-]{36} waits for it until \d{4}-.* and has not run\ndrover: the same command with --idempotency-key "k1" tells how it went`)
	args := []string{"--idempotency-key", "k1", "shell_exec", "command=echo later"}
	for range 2 { // the second joins the first
		if got := call(append([]string{"--queue-for", "1h"}, args...)...); got.code != 75 || got.out != "" || !waits.MatchString(got.err) {
			t.Fatalf("%+v", got)
		}
	}
	if got := call("--queue-for", "1h", "--json", "shell_exec", "command=id"); got.code != 75 || !strings.Contains(got.out, `"state": "queued"`) || !strings.Contains(got.out, `"queued_until"`) {
		t.Errorf("as JSON: %+v", got)
	}
	if got := u.drover(t.Context(), "audit", "list", "--kind", "intent", "--limit", "2"); strings.Count(got.out, "queued shell_exec") != 2 {
		t.Errorf("the record: %s", got.out)
	}
	host.Start()
	host.WaitOnline()
	harness.Eventually(t, 20*time.Second, "the queued call has run", func() bool {
		got := call(args...)
		return got.code == 0 && got.out == "later\n"
	})
	if got := u.drover(t.Context(), "audit", "list", "--kind", "sent"); strings.Count(got.out, "sent") < 1 {
		t.Errorf("the record: %s", got.out)
	}
	host.Stop()
	host.WaitOffline()
	call("--queue-for", "1h", "shell_exec", "command=id")
	if got := u.drover(t.Context(), "agents", "purge", "web-01"); got.code != 0 || got.err != "took back 1 queued calls of web-01\n" {
		t.Errorf("purge: %+v", got)
	}
	if got := u.drover(t.Context(), "agents", "purge", "web-01", "--json"); got.code != 0 || !strings.Contains(got.out, `"cancelled":`) {
		t.Errorf("purge as JSON: %+v", got)
	}
}

// TestRemoveAsks: on a terminal a person types the id; a script isn't asked.
func TestRemoveAsks(t *testing.T) {
	f := harness.New(t, harness.Options{})
	for _, id := range []string{"a-1", "a-2", "a-3"} {
		f.RawAgent(id)
	}
	env := map[string]string{"DROVER_URL": f.URL, "DROVER_PAT": f.Admin}
	for _, c := range []struct {
		name, typed string
		tty         bool
		args        []string
		gone        bool
	}{
		{"nothing typed", "", true, []string{"a-1"}, false},
		{"yes isn't the id", "yes\n", true, []string{"a-1"}, false},
		{"another id", "a-2\n", true, []string{"a-1"}, false},
		{"the id", "a-1\n", true, []string{"a-1"}, true},
		{"--yes", "", true, []string{"a-2", "--yes"}, true},
		{"a script", "", false, []string{"a-3"}, true},
	} {
		u := run{env: env, stdin: c.typed, tty: c.tty}
		got := u.drover(t.Context(), append([]string{"agents", "remove"}, c.args...)...)
		if (got.code == 0) != c.gone || strings.Contains(got.err, "Type a-") != (c.tty && len(c.args) == 1) {
			t.Errorf("%s: %+v", c.name, got)
		}
		if shown := u.drover(t.Context(), "agents", "show", c.args[0]); (shown.code != 0) != c.gone {
			t.Errorf("%s: then %+v", c.name, shown)
		}
	}
}

func TestClockText(t *testing.T) {
	for ms, want := range map[int64]string{0: "", 60_000: "", -60_000: "", 60_600: "1m1s ahead of the server's", -3_600_000: "1h0m0s behind the server's"} {
		if got := clockText(ms); got != want {
			t.Errorf("%d ms: %q, want %q", ms, got, want)
		}
	}
}

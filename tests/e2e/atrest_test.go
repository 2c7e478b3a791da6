package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// kept are the bytes of everything that the deployment's server and its database keep: the files
// of the data folder, and the tables' own with what Postgres keeps aside.
func kept(t *testing.T, d *harness.Deployment) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(d.Store[1], func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			all[path], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Store) < 4 {
		return all
	}
	db := harness.OpenPostgres(t, d.Store[3])
	if _, err := db.Exec(`CHECKPOINT`); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(`WITH own AS (SELECT oid, reltoastrelid FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')), every AS (SELECT oid FROM own UNION SELECT reltoastrelid FROM own WHERE reltoastrelid <> 0)
SELECT oid::regclass::text, pg_read_binary_file(pg_relation_filepath(oid)) FROM every`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		var b []byte
		if err := rows.Scan(&name, &b); err != nil {
			t.Fatal(err)
		}
		all[name] = b
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestQueuedSecretsAreNowhereInClear: what a queued call writes to a file, or gives a command on
// standard input or in its environment, is in no file of the server or its database: while it
// waits, after the server was killed and started again, after it was cancelled, purged, has
// expired or was sent, and after a stop. It's sent as it was given.
func TestQueuedSecretsAreNowhereInClear(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) { t.Parallel(); queuedSecrets(t, engine) })
	}
}

func queuedSecrets(t *testing.T, engine harness.Engine) {
	const secret, shown = "marker-45c48cce2e2d7fbd", "shown-c20ad4d76fe97759"
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
	state, dir := filepath.Join(t.TempDir(), "state"), t.TempDir()
	host := hostOn(t, d, state, d.Run("enroll", "create", "--agent-id", "web-01"))
	d.WaitState("web-01", "online")
	host.Stop()
	d.WaitState("web-01", "offline")
	clean := func(when string) {
		t.Helper()
		found := false
		for name, b := range kept(t, d) {
			if bytes.Contains(b, []byte(secret)) {
				t.Errorf("%s: the secret is in %s", when, name)
			}
			found = found || bytes.Contains(b, []byte(shown))
		}
		if !found {
			t.Errorf("%s: not even the command is found", when)
		}
	}
	wait := func(seconds int, name string) (ids []string) {
		t.Helper()
		file := filepath.Join(dir, name)
		for tool, args := range map[string]map[string]any{
			"fs_write":   {"path": file + ".content", "content": secret + strings.Repeat("z", 20_000)},
			"shell_exec": {"command": "cat > " + file + ".stdin; printf %s \"$PIN\" > " + file + ".env; : " + shown, "stdin": secret, "env": map[string]string{"PIN": secret}},
		} {
			var res harness.CallResult
			status := d.REST(d.Admin).JSON("POST", "/api/v1/calls", map[string]any{
				"agent_id": "web-01", "tool": tool, "args": args, "wait_seconds": 0, "queue_for_seconds": seconds, "idempotency_key": tool + name,
			}, &res)
			if status != 202 {
				t.Fatalf("HTTP %d, the call is %s %+v", status, res.State, res.Error)
			}
			ids = append(ids, res.CallID)
		}
		return ids
	}
	ended := func(ids []string, state string) {
		t.Helper()
		for _, id := range ids {
			if res := await(t, &d.Client, id); res.State != state {
				t.Errorf("%s %+v, want %s", res.State, res.Error, state)
			}
		}
		clean("after they were " + state)
	}
	expire, cancel := wait(1, "expired"), wait(3600, "cancelled")
	clean("while they wait")
	ended(expire, "expired")
	for _, id := range cancel {
		d.REST(d.Admin).JSON("POST", "/api/v1/calls/"+id+"/cancel", map[string]any{}, nil)
	}
	ended(cancel, "cancelled")
	purge := wait(3600, "purged")
	d.REST(d.Admin).JSON("POST", "/api/v1/agents/web-01/purge", nil, nil)
	ended(purge, "cancelled")
	send := wait(3600, "sent")
	d.Server.Kill()
	clean("after the server was killed")
	d.Serve(addr(d))
	clean("after it was started again")
	if again := wait(3600, "sent"); !slices.Equal(slices.Sorted(slices.Values(again)), slices.Sorted(slices.Values(send))) {
		t.Errorf("the same keys made %v and %v", send, again)
	}
	d.Server.Stop()
	clean("after a stop")
	d.Serve(addr(d))
	hostOn(t, d, state, "")
	ended(send, "succeeded")
	for _, end := range []string{".stdin", ".env", ".content"} {
		if got := read(t, filepath.Join(dir, "sent"+end)); !strings.HasPrefix(got, secret) {
			t.Errorf("%s came as %.40q", end, got)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 3 {
		t.Errorf("what never ran has left %v", left)
	}
	d.Server.Stop()
	clean("at the end")
}

// TestQueuedUnderAnotherServerKey: a queued call whose arguments were sealed with a server key that
// was given up isn't sent; its end says so.
func TestQueuedUnderAnotherServerKey(t *testing.T) {
	t.Parallel()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	h := newHeld(t)
	host := d.Host("web-02")
	d.WaitState("web-02", "online")
	host.Stop()
	d.WaitState("web-02", "offline")
	call := queue(t, &d.Client, d.Admin, "web-02", h.effect, 3600)
	d.Server.Stop()
	if err := os.Remove(filepath.Join(d.Store[1], "server.key")); err != nil {
		t.Fatal(err)
	}
	anew := harness.Start(t, nil, d.Programs.Path("drover"), append([]string{"serve", "--listen", addr(d), "--new-server-key"}, d.Store...)...)
	res := await(t, &d.Client, call.CallID)
	if res.State != "not_started" || res.Error == nil || res.Error.Reason != "args_sealed" || !strings.Contains(res.Error.Message, "another key") {
		t.Errorf("%s %+v", res.State, res.Error)
	}
	anew.Stop()
	if h.lines() != 0 {
		t.Error("it ran")
	}
}

//go:build unix

package e2e

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestARestoredDataFolder: what docs/deploy.md says of a database that is put back, for a
// server with a data folder: a copy made while it ran takes drover.db's place, and what a
// killed server has left beside it goes. The agent connects and is called; what came after the copy is unknown, and what the copy has as open
// is asked for.
func TestARestoredDataFolder(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.SQLite, Data: data})
	d.Host("web-01")
	_, kept := d.REST(d.Admin).Call("web-01", "shell_exec", map[string]any{"command": "echo kept"})
	open := newHeld(t)
	under := begin(t, &d.Client, "web-01", open.args()) // the copy has its intent alone
	open.begun(t)
	backup := filepath.Join(t.TempDir(), "drover.db")
	copyDatabase(t, filepath.Join(data, "drover.db"), backup)

	d.Server.Kill()
	d.Serve(addr(d))
	works(t, d, "web-01")
	lost, newest := losing(t, d), epoch(t, d)
	d.Server.Kill() // leaves what SQLite would play back over any drover.db
	for _, name := range []string{"drover.db-wal", "drover.db-shm"} {
		left := filepath.Join(data, name)
		if fi, err := os.Stat(left); err != nil || fi.Size() == 0 {
			t.Fatalf("a killed server leaves no %s: the case isn't tested (%v)", name, err)
		}
		if err := os.Remove(left); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(backup, filepath.Join(data, "drover.db")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(data, "drover.db"), 0o600); err != nil {
		t.Fatal(err)
	}

	d.Serve(addr(d))
	d.WaitState("web-01", "online")
	past{kept: kept.CallID, lost: lost, under: under, open: open, newest: newest}.isBack(t, d)
}

// past is what there was when a copy of the database was made, and what came after it.
type past struct {
	kept, lost string // calls from before the copy, and from after
	under      string // the call that the copy has as open
	open       held   // its command
	newest     int    // the number of the agent's last connection after the copy
}

// losing makes a call with the key "one", which the copy won't have.
func losing(t *testing.T, d *harness.Deployment) (id string) {
	t.Helper()
	res := keyed(d, "echo lost")
	if res.State != "succeeded" {
		t.Fatalf("%s %+v", res.State, res.Error)
	}
	return res.CallID
}

func keyed(d *harness.Deployment, command string) (res harness.CallResult) {
	d.REST(d.Admin).JSON("POST", "/api/v1/calls", map[string]any{"agent_id": "web-01", "tool": "shell_exec", "args": map[string]any{"command": command}, "idempotency_key": "one"}, &res)
	return res
}

// isBack holds the servers over a copy to what was when it was made: what came after it is
// unknown, what was open is asked for, and the agent is let in by the first one.
func (p past) isBack(t *testing.T, servers ...*harness.Deployment) {
	t.Helper()
	first, last := servers[0], servers[len(servers)-1]
	for _, d := range servers {
		works(t, d, "web-01")
		if status, body := d.REST(d.Admin).Do("GET", "/api/v1/calls/"+p.lost, ""); status != 404 {
			t.Errorf("a call from after the copy: HTTP %d %s", status, body)
		}
		if res := await(t, &d.Client, p.kept); res.Stdout() != "kept\n" {
			t.Errorf("a call from before it: %s %s", res.State, res.Result)
		}
	}
	p.open.release(t)
	p.open.ended(t, await(t, &last.Client, p.under))
	if res := keyed(last, "echo anew"); res.State != "succeeded" || res.Stdout() != "anew\n" || res.CallID == p.lost {
		t.Errorf("a key that the copy doesn't have: %s %s %+v", res.State, res.Result, res.Error)
	}
	if n := epoch(t, first); n <= p.newest {
		t.Errorf("the agent's connection has the number %d, and it had %d", n, p.newest)
	}
	if strings.Contains(string(first.Server.Log()), "quarantined") {
		t.Error("the agent was quarantined")
	}
	oneEach(t, last)
}

// copyDatabase makes a copy of a SQLite database that is in use.
func copyDatabase(t *testing.T, from, to string) {
	t.Helper()
	db, err := sql.Open("sqlite", from)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`VACUUM INTO ?`, to); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

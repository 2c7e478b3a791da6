package e2e

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// refusesKey starts drover serve and demands that it ends by itself, naming the key's file, the
// data and the way out, without having been ready.
func refusesKey(t *testing.T, d *harness.Deployment, file, data string, args ...string) {
	t.Helper()
	p := harness.Start(t, nil, d.Programs.Path("drover"), append([]string{"serve", "--listen", "127.0.0.1:0", "--log-format", "json"}, args...)...)
	select {
	case <-p.Gone:
	case <-time.After(30 * time.Second):
		p.Kill()
		t.Errorf("a server with another key runs: %s", p.Log())
		return
	}
	said := string(p.Log())
	for _, want := range []string{file, data, "--server-key", "--new-server-key", "enroll create --replace"} {
		if !strings.Contains(said, want) {
			t.Errorf("it doesn't say %q: %s", want, said)
		}
	}
	if p.Err == nil || strings.Contains(said, `"serving"`) {
		t.Errorf("it ended with %v: %s", p.Err, said)
	}
}

// TestALoneServerWithAnotherKey: where agents are enrolled a server with another key, or none,
// refuses to start and leaves no key behind; its own starts again. With --new-server-key another
// one takes its place for good: the old one is refused then, and an agent is enrolled again.
func TestALoneServerWithAnotherKey(t *testing.T) {
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) { t.Parallel(); aLoneServerWithAnotherKey(t, engine) })
	}
}

func aLoneServerWithAnotherKey(t *testing.T, engine harness.Engine) {
	dir := t.TempDir()
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine, Data: dir})
	key, data := filepath.Join(dir, "server.key"), "PostgreSQL"
	if engine == harness.SQLite {
		data = filepath.Join(dir, "drover.db")
	}
	swap := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	otherKey := func() string { // of a server of its own
		t.Helper()
		o := harness.Launch(t, d.Programs, harness.LaunchOptions{Engine: harness.SQLite})
		o.Server.Stop()
		return filepath.Join(o.Store[1], "server.key")
	}

	// Nobody trusts the first key: another one may take its place.
	d.Server.Stop()
	swap(otherKey(), key)
	d.Serve(addr(d))
	d.Host("web-01")
	d.Server.Kill()

	own := filepath.Join(t.TempDir(), "own.key")
	swap(key, own)
	refusesKey(t, d, key, data, d.Store...)
	if _, err := os.Stat(key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key that was refused is left: %v", err)
	}
	if got := d.CLI(nil, "", append([]string{"enroll", "create", "--agent-id", "web-02"}, d.Store...)...); got.Exit == 0 || !strings.Contains(got.Stderr, "server's key") {
		t.Errorf("a token without the key: %+v", got)
	}
	if _, err := os.Stat(key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a command has made a key: %v", err)
	}
	swap(otherKey(), key)
	refusesKey(t, d, key, data, d.Store...)
	if got := d.CLI(nil, "", append([]string{"enroll", "create", "--agent-id", "web-02"}, d.Store...)...); got.Exit == 0 || !strings.Contains(got.Stderr, "another one") {
		t.Errorf("a token of another key: %+v", got)
	}
	other := filepath.Join(t.TempDir(), "other.key")
	swap(key, other)

	swap(own, key)
	d.Serve(addr(d))
	d.WaitState("web-01", "online")
	works(t, d, "web-01")
	d.Server.Stop()

	// The key is lost for good.
	swap(key, own)
	swap(other, key)
	anew := harness.Start(t, nil, d.Programs.Path("drover"), append([]string{"serve", "--listen", addr(d), "--new-server-key"}, d.Store...)...)
	anew.Await(t, "readiness", func(context.Context) error { return ready(d) })
	if !strings.Contains(string(anew.Log()), "another server key counts from now on") {
		t.Errorf("the log has nothing of it: %s", anew.Log())
	}
	anew.Stop()
	d.Serve(addr(d)) // without the flag
	d.Server.Stop()
	refusesKey(t, d, own, data, append([]string{"--server-key", own}, d.Store...)...)
	d.Serve(addr(d))
	hostOn(t, d, filepath.Join(t.TempDir(), "state"), d.Run("enroll", "create", "--agent-id", "web-01", "--replace"))
	d.WaitState("web-01", "online")
	works(t, d, "web-01")
}

func ready(d *harness.Deployment) error {
	resp, err := http.Get(d.URL + "/readyz")
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		return errors.Join(err, errors.New(resp.Status))
	}
	return nil
}

// TestAReplicaWithAnotherKey: of two replicas with a key each the one that comes second is
// refused, whichever that is: while no agent is enrolled, because the first serves, and then also
// when that one has stopped. The way to give a key up needs the database for itself.
func TestAReplicaWithAnotherKey(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"while it serves", "after its end"} {
		t.Run(second, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--nats-url", harness.NATS(t)}
			a := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: flags})
			there := t.TempDir()
			other := append([]string{"--data", there}, append(a.Store[2:len(a.Store):len(a.Store)], flags...)...)
			key := filepath.Join(there, "server.key")
			refusesKey(t, a, key, "PostgreSQL", other...) // it has made a key, and taken it away
			if _, err := os.Stat(key); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the key that was refused is left: %v", err)
			}
			o := harness.Launch(t, a.Programs, harness.LaunchOptions{Engine: harness.SQLite})
			o.Server.Stop()
			if err := os.Rename(filepath.Join(o.Store[1], "server.key"), key); err != nil {
				t.Fatal(err)
			}
			refusesKey(t, a, key, "PostgreSQL", other...)
			a.Host("web-01")
			if second == "after its end" {
				a.Server.Stop()
				refusesKey(t, a, key, "PostgreSQL", other...)
				a.Serve(addr(a))
			} else {
				refusesKey(t, a, key, "PostgreSQL", other...)
				refusesKey(t, a, key, "PostgreSQL", append(other, "--new-server-key")...)
			}
			b := a.Beside() // with the same key
			b.WaitState("web-01", "online")
			works(t, b, "web-01")
		})
	}
}

// TestTwoReplicasWithTwoKeysAtOnce: of two that start at the same moment on a new database, with
// a key each, one serves.
func TestTwoReplicasWithTwoKeysAtOnce(t *testing.T) {
	t.Parallel()
	programs, db, nats := harness.Build(t, ""), harness.PostgresSchema(t), harness.NATS(t)
	var both []*harness.Process
	for range 2 {
		both = append(both, harness.Start(t, nil, programs.Path("drover"), "serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--data", t.TempDir(), "--database-url", db, "--nats-url", nats))
	}
	var refused, serves *harness.Process
	select {
	case <-both[0].Gone:
		refused, serves = both[0], both[1]
	case <-both[1].Gone:
		refused, serves = both[1], both[0]
	case <-time.After(30 * time.Second):
		t.Fatal("both run")
	}
	if !strings.Contains(string(refused.Log()), "--new-server-key") {
		t.Errorf("it was refused without a reason: %s", refused.Log())
	}
	serves.Await(t, "the other one serves", func(context.Context) error {
		if !strings.Contains(string(serves.Log()), `"serving"`) {
			return errors.New("not yet")
		}
		return nil
	})
}

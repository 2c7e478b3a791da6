// Package harness runs real servers and real agents in one process for tests: real
// SQLite or Postgres, real tunnels over loopback, real HTTP clients. Nothing is mocked.
package harness

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // to make a schema for each test
	_ "modernc.org/sqlite"             // to look at a server's store from outside

	"github.com/drover-fleet/drover/server"
	"github.com/drover-fleet/drover/tests/testenv"
)

// Engine is a store to test on.
type Engine string

// The engines.
const (
	SQLite   Engine = "sqlite"
	Postgres Engine = "postgres"
)

// defaultEngine is the store of a test that doesn't say which: SQLite, or DROVER_TEST_ENGINE.
// Where DROVER_TEST_FOLLOWERS names a file, a line with the test's name is added to it: these
// are the tests that do something else on another engine. Those that choose their engines
// themselves are none of them.
func defaultEngine(t testing.TB) Engine {
	t.Helper()
	if file := os.Getenv("DROVER_TEST_FOLLOWERS"); file != "" {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(t.Name(), "/")
		_, err = f.WriteString(name + "\n")
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return Engine(cmp.Or(os.Getenv("DROVER_TEST_ENGINE"), string(SQLite)))
}

// Engines lists both: suites run on each.
func Engines() []Engine { return []Engine{SQLite, Postgres} }

// Options of a Fleet.
type Options struct {
	Engine    Engine // when empty the one of DROVER_TEST_ENGINE, else SQLite
	KeepAlive time.Duration
	// ResumeWait is how long a call waits for an agent whose connection was cut; 10 s when
	// zero.
	ResumeWait time.Duration
	// CancelWait is the same for one that was cancelled; as the server has it when zero.
	CancelWait time.Duration
	// Log shows the server's and agents' logs with -v; LogTo, if not nil, gets the server's.
	Log   bool
	LogTo io.Writer
}

// Fleet is a server with its agents.
type Fleet struct {
	Client
	Dir   string
	opts  Options
	dbURL string
	log   *slog.Logger

	mu   sync.Mutex
	srv  *server.Server
	stop func()
}

// New starts a server. It's stopped when the test ends.
func New(t testing.TB, o Options) *Fleet {
	t.Helper()
	f := &Fleet{Client: Client{T: t}, Dir: t.TempDir(), opts: o, log: slog.New(slog.DiscardHandler)}
	if o.Log {
		f.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if o.LogTo != nil {
		f.log = slog.New(slog.NewTextHandler(o.LogTo, nil))
	}
	if o.Engine == "" {
		o.Engine = defaultEngine(t)
	}
	if o.Engine == Postgres {
		f.dbURL = PostgresSchema(t)
	}
	f.Start(FreeAddress(t))
	token, err := f.srv.FirstPAT(context.Background(), "harness")
	if err != nil {
		t.Fatalf("first PAT: %v", err)
	}
	f.Admin = token
	t.Cleanup(f.Stop)
	return f
}

// Start runs the server on this address, with the same data as before.
func (f *Fleet) Start(listen string) {
	f.T.Helper()
	srv, err := server.New(server.Config{
		Listen: listen, DataDir: f.Dir, DatabaseURL: f.dbURL, KeepAlive: f.opts.KeepAlive, Version: "test", DrainTimeout: 2 * time.Second,
		ResumeWait: cmp.Or(f.opts.ResumeWait, 10*time.Second), CancelWait: f.opts.CancelWait,
	}, f.log)
	if err != nil {
		f.T.Fatalf("server: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.srv, f.URL = srv, srv.URL()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.T.Errorf("server: %v", err)
		}
	})
}

// Stop ends the server in an orderly way.
func (f *Fleet) Stop() {
	f.mu.Lock()
	stop := f.stop
	f.mu.Unlock()
	stop()
}

// Restart stops the server and starts it again on the same address.
func (f *Fleet) Restart() {
	f.T.Helper()
	addr := strings.TrimPrefix(f.URL, "http://")
	f.Stop()
	f.Start(addr)
}

// Store opens the server's database beside the server.
func (f *Fleet) Store() *sql.DB {
	f.T.Helper()
	return openStore(f.T, f.Dir, f.dbURL)
}

// Lock keeps the server from writing its record until release is called: its commits wait.
func (f *Fleet) Lock() (release func()) {
	f.T.Helper()
	return lockRecord(f.T, f.Store(), f.dbURL != "")
}

// openStore opens a server's database: the one in its data folder when there's no URL.
func openStore(t testing.TB, dir, dbURL string) *sql.DB {
	t.Helper()
	driver, name := "pgx", dbURL
	if name == "" {
		driver, name = "sqlite", "file:"+filepath.Join(dir, "drover.db")+"?_txlock=immediate&_pragma=busy_timeout(5000)"
	}
	db, err := sql.Open(driver, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func lockRecord(t testing.TB, db *sql.DB, postgres bool) (release func()) {
	t.Helper()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if postgres {
		if _, err := tx.Exec("LOCK TABLE record IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
	}
	return sync.OnceFunc(func() { _ = tx.Rollback() })
}

// WaitState waits until the server says that the agent is in this state.
func (f *Client) WaitState(id, state string) {
	f.T.Helper()
	Eventually(f.T, patience, "agent "+id+" is "+state, func() bool {
		var got struct {
			State string `json:"state"`
		}
		status := f.REST(f.Admin).JSON("GET", "/api/v1/agents/"+id, nil, &got)
		return status == 200 && got.State == state
	})
}

// Eventually asks until ok says yes, or fails the test after limit. It's for what happens
// in other processes and over sockets, where nothing can be waited on.
func Eventually(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
		<-tick.C
	}
}

// OpenPostgres opens a database of PostgresSchema.
func OpenPostgres(t testing.TB, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// PostgresSchema makes an empty schema for this test and returns the URL that uses it.
// Without a Postgres the test is skipped, or fails where every test is required.
func PostgresSchema(t testing.TB) string {
	t.Helper()
	base := os.Getenv("DROVER_TEST_POSTGRES")
	if base == "" {
		base = "postgres://postgres@127.0.0.1:5432/test"
	}
	db, err := sql.Open("pgx", base)
	if err == nil {
		err = db.Ping()
	}
	testenv.Require(t, err == nil, fmt.Sprintf("no Postgres at %s: %v", base, err))
	name := fmt.Sprintf("t_%d_%d", os.Getpid(), time.Now().UnixNano())
	if _, err := db.Exec("CREATE SCHEMA " + name); err != nil {
		t.Fatalf("schema: %v", err)
	}
	t.Cleanup(func() {
		if _, err := db.Exec("DROP SCHEMA " + name + " CASCADE"); err != nil {
			t.Errorf("drop schema: %v", err)
		}
		_ = db.Close()
	})
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}

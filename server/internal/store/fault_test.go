package store_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/tests/testenv"
)

func newIntent() fleet.Intent {
	return fleet.Intent{
		CallID: fleet.CallID(uuid.Must(uuid.NewV7()).String()), Principal: fleet.Principal{ID: "pat:p1"},
		Agent: "web-01", Tool: "fs_stat", Args: []byte(`{}`), At: time.Now(),
	}
}

// TestDiskFull: when the record can't be written, callers are told what to do, nothing is
// half written, and it goes on once there's room.
func TestDiskFull(t *testing.T) {
	ctx, db := context.Background(), openConfig(t, sqliteConfig(t))
	first := newIntent()
	if _, err := db.RecordIntent(ctx, first); err != nil {
		t.Fatal(err)
	}
	_, write := db.Pools()
	setLimit(t, db, "PRAGMA max_page_count = 1")
	full := newIntent()
	_, err := db.RecordIntent(ctx, full)
	for range 100 { // until the pages that are there are full
		if err != nil {
			break
		}
		full = newIntent()
		full.Args = []byte(`{"x":"` + strings.Repeat("x", 10000) + `"}`)
		_, err = db.RecordIntent(ctx, full)
	}
	if fe := fleet.AsError(err); fe.Code != protocol.CodeUnavailable || !strings.Contains(fe.Message, "full") {
		t.Fatalf("got %v, want unavailable that names the full disk", err)
	}
	if _, err := db.Call(ctx, full.CallID); fleet.AsError(err).Code != protocol.CodeNotFound {
		t.Errorf("the intent that was called unwritten: %v", err)
	}
	setLimit(t, db, "PRAGMA max_page_count = 1000000")
	if _, err := db.RecordIntent(ctx, full); err != nil {
		t.Error("after there was room again:", err)
	}
	if err := db.RecordOutcome(ctx, fleet.Outcome{CallID: first.CallID, State: fleet.Succeeded}); err != nil {
		t.Error(err)
	}
	if n := write.Stats().OpenConnections; n != 1 {
		t.Errorf("%d writing connections", n)
	}
}

func setLimit(t *testing.T, db *store.DB, pragma string) {
	t.Helper()
	_, write := db.Pools()
	var n int
	if err := write.QueryRow(pragma).Scan(&n); err != nil {
		t.Fatal(err)
	}
}

// cutter passes a Postgres connection on, and can cut it when the server's answer to a
// commit comes back: the commit happened, and nobody is told.
type cutter struct {
	listener net.Listener
	target   string
	armed    atomic.Bool // cut at the next commit's answer
	down     atomic.Bool // refuse new connections
	deaf     atomic.Bool // don't tell the server that a client's connection has ended
	ended    chan struct{}
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// cutAll takes the server away.
func (c *cutter) cutAll() {
	c.down.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		_ = conn.Close()
	}
}

// silence takes the server away from the clients, and not the clients from the server, which
// isn't told.
func (c *cutter) silence() {
	c.deaf.Store(true)
	c.cutAll()
}

func (c *cutter) track(conn net.Conn, live bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if live {
		c.conns[conn] = true
	} else {
		delete(c.conns, conn)
	}
}

func newCutter(t *testing.T, target string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, target: target, conns: map[net.Conn]bool{}, ended: make(chan struct{})}
	c.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if c.down.Load() {
				_ = conn.Close()
				continue
			}
			c.wg.Go(func() { c.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		close(c.ended)
		c.wg.Wait()
	})
	return c
}

func (c *cutter) pass(client net.Conn) {
	defer func() { _ = client.Close() }()
	c.track(client, true)
	defer c.track(client, false)
	server, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client)
		if c.deaf.Load() {
			<-c.ended
		}
		_ = server.Close()
	})
	defer up.Wait()
	defer func() { _ = client.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		// CommandComplete of a commit: "COMMIT" and a zero byte.
		if bytes.Contains(buf[:n], []byte("COMMIT\x00")) && c.armed.CompareAndSwap(true, false) {
			c.cutAll()
			return
		}
		if _, werr := client.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

// behindCutter is a new database that is reached through a cutter.
func behindCutter(t *testing.T) (store.Config, *cutter) {
	t.Helper()
	requirePostgres(t)
	cfg := postgresConfig(t)
	u, err := url.Parse(cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	testenv.Require(t, u.Host != "" && !strings.HasPrefix(u.Host, "/"), "DROVER_TEST_POSTGRES isn't reached by TCP")
	c := newCutter(t, u.Host)
	u.Host = c.listener.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	cfg.DatabaseURL = u.String()
	return cfg, c
}

// TestLostCommitAnswer: the commit happened, its answer was lost, the server is back at
// once. The writer looks, and says that it's recorded, once.
func TestLostCommitAnswer(t *testing.T) {
	cfg, cut := behindCutter(t)
	ctx, db := context.Background(), openConfig(t, cfg)
	warm := newIntent()
	if _, err := db.RecordIntent(ctx, warm); err != nil {
		t.Fatal(err)
	}
	in := newIntent()
	cut.armed.Store(true)
	done := make(chan error, 1)
	go func() {
		_, err := db.RecordIntent(ctx, in)
		done <- err
	}()
	for cut.armed.Load() {
		select {
		case err := <-done:
			t.Fatal("answered before the cut:", err)
		case <-time.After(time.Millisecond):
		}
	}
	cut.down.Store(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := db.RecordOutcome(ctx, fleet.Outcome{CallID: in.CallID, State: fleet.Succeeded}); err != nil {
		t.Error(err)
	}
	rows, _, err := db.Records(ctx, store.RecordFilter{CallID: in.CallID})
	if err != nil || len(rows) != 2 {
		t.Errorf("%d rows of the call, %v; want its intent once and its outcome", len(rows), err)
	}
}

// TestUnwrittenAfterAll: the answer was lost and the server stays away, so the caller is
// told that nothing was recorded and sends nothing. When the server is back and has the
// call after all, it's ended as not started.
func TestUnwrittenAfterAll(t *testing.T) {
	cfg, cut := behindCutter(t)
	ctx, db := context.Background(), openConfig(t, cfg)
	if _, err := db.RecordIntent(ctx, newIntent()); err != nil {
		t.Fatal(err)
	}
	in := newIntent()
	cut.armed.Store(true)
	_, err := db.RecordIntent(ctx, in)
	if fleet.AsError(err).Code != protocol.CodeUnavailable {
		t.Fatalf("got %v, want unavailable", err)
	}
	cut.down.Store(false)
	if _, err := db.RecordIntent(ctx, newIntent()); err != nil {
		t.Fatal(err)
	}
	if err := db.Flush(ctx); err != nil { // the writer settles its doubts between two groups
		t.Fatal(err)
	}
	c, err := db.Call(ctx, in.CallID)
	if err != nil || c.State != fleet.NotStarted {
		t.Errorf("got %+v, %v; want not_started", c, err)
	}
	if err := db.RecordOutcome(ctx, fleet.Outcome{CallID: in.CallID, State: fleet.Succeeded}); !errors.Is(err, store.ErrAlreadyFinal) {
		t.Errorf("a second outcome: %v", err)
	}
}

// TestAnotherHoldsTheLock: while another program holds SQLite's lock an intent is answered in
// bounded time, also when its caller would wait for ever, and what was answered as not
// recorded never is. An outcome that waits is recorded afterwards.
func TestAnotherHoldsTheLock(t *testing.T) {
	cfg := sqliteConfig(t)
	ctx, db := context.Background(), openConfig(t, cfg)
	open := newIntent()
	if _, err := db.RecordIntent(ctx, open); err != nil {
		t.Fatal(err)
	}
	other, err := sql.Open("sqlite", "file:"+filepath.Join(cfg.DataDir, "drover.db")+"?_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	lock, err := other.Begin()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	patient, hasty := newIntent(), newIntent()
	wg.Go(func() {
		began := time.Now()
		_, err := db.RecordIntent(ctx, patient)
		fe := fleet.AsError(err)
		if fe.Code != protocol.CodeUnavailable || !strings.Contains(fe.Message, "another program") || time.Since(began) > 20*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
	wg.Go(func() {
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		began := time.Now()
		if _, err := db.RecordIntent(short, hasty); fleet.AsError(err).Code != protocol.CodeCancelled || time.Since(began) > 4*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
	wg.Wait()
	ended := make(chan error, 1)
	go func() {
		ended <- db.RecordOutcome(ctx, fleet.Outcome{CallID: open.CallID, State: fleet.Succeeded})
	}()
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error("an outcome that waited:", err)
	}
	for _, in := range []fleet.Intent{patient, hasty} {
		if _, err := db.Call(ctx, in.CallID); fleet.AsError(err).Code != protocol.CodeNotFound {
			t.Errorf("%s was said not to be recorded: %v", in.CallID, err)
		}
	}
}

// TestAwayIsNotBusy: who can't reach Postgres is told so, and where it should be.
func TestAwayIsNotBusy(t *testing.T) {
	cfg, cut := behindCutter(t)
	ctx, db := context.Background(), openConfig(t, cfg)
	if _, err := db.RecordIntent(ctx, newIntent()); err != nil {
		t.Fatal(err)
	}
	cut.cutAll()
	_, err := db.RecordIntent(ctx, newIntent())
	fe := fleet.AsError(err)
	if fe.Code != protocol.CodeUnavailable || !strings.Contains(fe.Message, "doesn't answer") || !strings.Contains(fe.Message, cut.listener.Addr().String()) {
		t.Errorf("got %v, want a message that says where Postgres doesn't answer", err)
	}
}

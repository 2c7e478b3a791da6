package store_test

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/tests/testenv"
)

// named gives the sessions of a configuration a name of their own, to find them by.
func named(t *testing.T, cfg store.Config) (store.Config, string) {
	t.Helper()
	u, err := url.Parse(cfg.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	name := "own-" + uuid.NewString()
	q := u.Query()
	q.Set("application_name", name)
	u.RawQuery = q.Encode()
	cfg.DatabaseURL = u.String()
	return cfg, name
}

func adminOf(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", postgresURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func cut(t *testing.T, admin *sql.DB, pid int64) {
	t.Helper()
	var ok bool
	if err := admin.QueryRow(`SELECT pg_terminate_backend($1::int)`, pid).Scan(&ok); err != nil || !ok {
		t.Fatal("pg_terminate_backend:", ok, err)
	}
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("in vain: ", what)
		}
	}
}

func own(ctx context.Context, db *store.DB, how string) (*store.Ownership, error) {
	if how == "share" {
		return db.Share(ctx)
	}
	return db.Own(ctx)
}

func isLost(o *store.Ownership) bool {
	select {
	case <-o.Lost():
		return true
	default:
		return false
	}
}

// TestALostLockIsTakenAgain: Postgres ends the session that holds the lock, and nobody else
// comes: it's held again, and no second server may begin.
func TestALostLockIsTakenAgain(t *testing.T) {
	requirePostgres(t)
	for _, how := range []string{"serve", "share"} {
		t.Run(how, func(t *testing.T) {
			base := postgresConfig(t)
			cfg, name := named(t, base)
			ctx, db, admin := context.Background(), openConfig(t, cfg), adminOf(t)
			o, err := own(ctx, db, how)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				before := testenv.LockSession(t, admin, name)
				cut(t, admin, before)
				until(t, "the lock is held by another session", func() bool {
					now := testenv.LockSession(t, admin, name)
					return now != 0 && now != before
				})
				until(t, "it's known to be held", o.Held)
			}
			if isLost(o) {
				t.Error("a lock that was taken again counts as lost")
			}
			if _, err := openConfig(t, base).Own(ctx); fleet.AsError(err).Code != protocol.CodeConflict {
				t.Errorf("a second server: %v", err)
			}
			if err := o.Release(); err != nil || o.Held() {
				t.Error("released:", err, o.Held())
			}
			next, err := openConfig(t, base).Own(ctx)
			if err != nil {
				t.Fatal("after the release:", err)
			}
			if err := next.Release(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAnotherTookTheDatabase: while the first server's session is gone a second one takes the
// lock, and may have ended again. The first notices, and never holds it again.
func TestAnotherTookTheDatabase(t *testing.T) {
	requirePostgres(t)
	for _, how := range []string{"serve", "share"} {
		t.Run(how, func(t *testing.T) {
			base := postgresConfig(t)
			firstCfg, firstName := named(t, base)
			secondCfg, secondName := named(t, base)
			ctx, admin := context.Background(), adminOf(t)
			o, err := own(ctx, openConfig(t, firstCfg), how)
			if err != nil {
				t.Fatal(err)
			}
			other := openConfig(t, secondCfg)
			var got *store.Ownership
			for got == nil { // where the first was quicker, once more
				second := make(chan error, 1)
				go func() {
					o, err := other.Own(ctx)
					got = o
					second <- err
				}()
				until(t, "the second one tries", func() bool { return testenv.TriesLock(t, admin, secondName) || len(second) > 0 })
				if pid := testenv.LockSession(t, admin, firstName); pid != 0 {
					cut(t, admin, pid)
				}
				if err := <-second; err != nil && fleet.AsError(err).Code != protocol.CodeConflict {
					t.Fatal(err)
				}
			}
			until(t, "the first one knows", func() bool { return isLost(o) })
			if o.Held() || !got.Held() || isLost(got) {
				t.Errorf("the first holds it: %t; the second: %t, lost %t", o.Held(), got.Held(), isLost(got))
			}
			if err := o.Release(); err != nil {
				t.Error(err)
			}
			if err := got.Release(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWhoWaitsForTheLockHoldsNobodyUp: a server that waits for the database to be its own keeps
// none of those that share it from starting.
func TestWhoWaitsForTheLockHoldsNobodyUp(t *testing.T) {
	requirePostgres(t)
	base := postgresConfig(t)
	cfg, name := named(t, base)
	ctx, admin := context.Background(), adminOf(t)
	o, err := openConfig(t, base).Share(ctx)
	if err != nil {
		t.Fatal(err)
	}
	lone, next := openConfig(t, cfg), openConfig(t, base)
	refused := make(chan error, 1)
	go func() {
		_, err := lone.Own(ctx)
		refused <- err
	}()
	until(t, "it waits", func() bool { return testenv.TriesLock(t, admin, name) })
	for range 3 {
		more, err := next.Share(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := more.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if len(refused) > 0 {
		t.Error("it didn't wait any more when the others had started")
	}
	if err := <-refused; fleet.AsError(err).Code != protocol.CodeConflict {
		t.Errorf("the lone one: %v", err)
	}
	if err := o.Release(); err != nil {
		t.Error(err)
	}
}

// TestASilentSessionIsEnded: the way to Postgres breaks off without a word to it, so that it
// keeps the old session and its lock. The server has that session ended, and no other.
func TestASilentSessionIsEnded(t *testing.T) {
	cfg, way := behindCutter(t)
	cfg, name := named(t, cfg)
	ctx, db, admin := context.Background(), openConfig(t, cfg), adminOf(t)
	o, err := db.Own(ctx)
	if err != nil {
		t.Fatal(err)
	}
	before := testenv.LockSession(t, admin, name)
	way.silence()
	until(t, "the loss is known", func() bool { return !o.Held() })
	if testenv.LockSession(t, admin, name) != before {
		t.Fatal("Postgres noticed: the case isn't tested")
	}
	_, err = db.RecordIntent(ctx, newIntent())
	if fe := fleet.AsError(err); err != nil && !strings.Contains(fe.Message, "doesn't answer") {
		t.Errorf("an intent meanwhile: %v", err)
	}
	way.down.Store(false)
	until(t, "it's held again", o.Held)
	if now := testenv.LockSession(t, admin, name); now == before || isLost(o) {
		t.Errorf("held by session %d, it was %d; lost %t", now, before, isLost(o))
	}
	if err := o.Release(); err != nil {
		t.Error(err)
	}
}

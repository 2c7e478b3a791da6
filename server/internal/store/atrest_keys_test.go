package store_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// as opens the database with a key of its own.
func as(t *testing.T, cfg store.Config, key byte) *store.DB {
	t.Helper()
	cfg.Key = ed25519.NewKeyFromSeed(bytes.Repeat([]byte{key}, ed25519.SeedSize))
	return openConfig(t, cfg)
}

const (
	queuedRow = `SELECT args, sealed FROM queued WHERE call_id = '%s'`
	hashesRow = `SELECT match_hash, join_key FROM calls WHERE id = '%s'`
)

// kept are the columns of a call's row.
func kept(t *testing.T, db *store.DB, query string, id fleet.CallID) (a, b string) {
	t.Helper()
	_, write := db.Pools()
	var x, y sql.NullString
	if err := write.QueryRow(fmt.Sprintf(query, id)).Scan(&x, &y); err != nil {
		t.Fatal(err)
	}
	return x.String, y.String
}

// wait queues a call.
func wait(t *testing.T, db *store.DB, key string, args []byte) fleet.Intent {
	t.Helper()
	in := newIntent()
	in.Key, in.JoinKey, in.Match = key, "use of "+key, "match of "+key
	in.QueueUntil, in.Frozen = in.At.Add(time.Hour), args
	if got, err := db.RecordIntent(context.Background(), in); err != nil || got.Joined != nil {
		t.Fatal(got.Joined, err)
	}
	return in
}

// TestBesideTheVersionBefore: while a replica of the version before is a member, hashes and queued
// arguments are written as it reads them; when it's gone arguments are sealed, those that wait
// too, and hashes keyed. Repeats are known in both forms, and nothing runs a second time.
func TestBesideTheVersionBefore(t *testing.T) {
	requirePostgres(t)
	cfg, ctx := postgresConfig(t), context.Background()
	db := openConfig(t, cfg)
	do := func(query string) {
		t.Helper()
		if err := db.InTx(ctx, query); err != nil {
			t.Fatal(err)
		}
		if err := db.Enlist(ctx); err != nil {
			t.Fatal(err)
		}
		if err := db.SealQueued(ctx); err != nil {
			t.Fatal(err)
		}
	}
	do(`INSERT INTO replicas (instance, beat, started_at) VALUES ('older', 1, 1)`)
	plain := wait(t, db, "one", []byte(`{"stdin":"one"}`))
	do(`UPDATE replicas SET beat = 2 WHERE instance = 'older'`)
	if args, sealed := kept(t, db, queuedRow, plain.CallID); args != string(plain.Frozen) || sealed != "" {
		t.Errorf("the older one reads %q and %q", args, sealed)
	}
	if match, join := kept(t, db, hashesRow, plain.CallID); match != plain.Match || join != plain.JoinKey {
		t.Errorf("the older one looks for %q and %q", match, join)
	}
	do(`DELETE FROM replicas WHERE instance = 'older'`)
	sealed := wait(t, db, "two", []byte(`{"stdin":"two"}`))
	for _, in := range []fleet.Intent{plain, sealed} {
		if args, sealed := kept(t, db, queuedRow, in.CallID); args != "" || sealed == "" || strings.Contains(sealed, "stdin") {
			t.Errorf("after the older one: %q, %q", args, sealed)
		}
	}
	if match, join := kept(t, db, hashesRow, sealed.CallID); match == "" || join == "" || strings.Contains(match+join, "two") {
		t.Errorf("hashes after the older one: %q and %q", match, join)
	}
	for _, in := range []fleet.Intent{plain, sealed} {
		byKey, byUse, other := newIntent(), newIntent(), newIntent()
		byKey.Key, byKey.Match = in.Key, in.Match
		byUse.JoinKey, byUse.Match = in.JoinKey, in.Match
		other.Key, other.Match = in.Key, "another"
		for _, again := range []fleet.Intent{byKey, byUse} {
			if got, err := db.RecordIntent(ctx, again); err != nil || got.Joined == nil || got.Joined.ID != in.CallID {
				t.Errorf("the same again, key %q: %+v %v", again.Key, got.Joined, err)
			}
		}
		if _, err := db.RecordIntent(ctx, other); fleet.AsError(err).Code != protocol.CodeConflict {
			t.Errorf("another call with the key: %v", err)
		}
	}
	if err := db.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	list, err := openConfig(t, cfg).OpenCalls(ctx)
	if err != nil || len(list) != 2 || string(list[0].Frozen) != string(plain.Frozen) || string(list[1].Frozen) != string(sealed.Frozen) {
		t.Errorf("%+v %v", list, err)
	}
}

// TestQueuedByTheVersionBefore: what a queued call of the version before has in clear can be
// sent, and is sealed from the first start on.
func TestQueuedByTheVersionBefore(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db := context.Background(), openConfig(t, cfg)
		want := map[fleet.CallID]string{}
		var markers []string
		for _, size := range []int{10, 50_000} {
			marker, args := secret(size)
			id := wait(t, db, marker, args).CallID
			literal := `x'%x'`
			if cfg.DataDir == "" {
				literal = `'\x%x'`
			}
			if err := db.InTx(ctx, fmt.Sprintf(`UPDATE queued SET sealed = NULL, args = `+literal+` WHERE call_id = '%s'`, args, id)); err != nil {
				t.Fatal(err)
			}
			want[id], markers = string(args), append(markers, string(args[:40]))
		}
		next := openConfig(t, cfg)
		same := func(when string) {
			t.Helper()
			list, err := next.OpenCalls(ctx)
			if err != nil || len(list) != len(want) {
				t.Fatal(list, err)
			}
			for _, c := range list {
				if string(c.Frozen) != want[c.ID] || c.Foreign {
					t.Errorf("%s: %.80q", when, c.Frozen)
				}
			}
		}
		same("in clear")
		if err := next.SealQueued(ctx); err != nil {
			t.Fatal(err)
		}
		same("sealed")
		for id := range want {
			if args, sealed := kept(t, next, queuedRow, id); args != "" || sealed == "" {
				t.Errorf("%.20q is left in clear", args)
			}
		}
		if cfg.DataDir == "" {
			return // Postgres keeps the bytes of before until it needs the room
		}
		for _, marker := range markers {
			if names := holding(files(t, cfg, next), marker); names != nil {
				t.Errorf("what was in clear is in %v", names)
			}
		}
	})
}

// TestUnderAnotherKey: what was sealed with another server key isn't taken for arguments, and an
// idempotency key that was used then is a conflict which says why: nothing runs a second time.
func TestUnderAnotherKey(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db, other := context.Background(), as(t, cfg, 1), as(t, cfg, 2)
		in := wait(t, db, "k", []byte(`{"command":"true"}`))
		if err := other.SealQueued(ctx); err != nil {
			t.Fatal(err)
		}
		if list, err := other.OpenCalls(ctx); err != nil || len(list) != 1 || list[0].Frozen != nil || !list[0].Foreign {
			t.Errorf("with another key: %+v %v", list, err)
		}
		again := newIntent()
		again.Key, again.Match = in.Key, in.Match
		for _, when := range []string{"while it waits", "when it never ran"} {
			if _, err := other.RecordIntent(ctx, again); fleet.AsError(err).Code != protocol.CodeConflict || !strings.Contains(fleet.AsError(err).Message, "can't be told any more") {
				t.Errorf("%s: %v", when, err)
			}
			if when == "while it waits" {
				if err := other.RecordOutcome(ctx, fleet.Outcome{CallID: in.CallID, State: fleet.NotStarted, Code: protocol.CodeNotStarted}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got, err := as(t, cfg, 1).RecordIntent(ctx, again); err != nil || got.Joined != nil {
			t.Errorf("with the key of then: %+v %v", got.Joined, err)
		}
	})
}

// TestACopyTellsNoGuess: what the database has of a call beside its redacted arguments can't be
// compared with a guess at them: neither its hashes nor its
// commitments, whose salts are veiled.
func TestACopyTellsNoGuess(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db := context.Background(), openConfig(t, cfg)
		in := newIntent()
		in.Key, in.JoinKey, in.Match = "k", "hash of the use", "hash of the arguments"
		in.Salt, in.Commitment = []byte("salt of the args"), []byte("a commitment")
		if _, err := db.RecordIntent(ctx, in); err != nil {
			t.Fatal(err)
		}
		out := fleet.Outcome{CallID: in.CallID, State: fleet.Succeeded, Result: []byte("yes"), Salt: []byte("salt of a result"), Commitment: []byte("another")}
		if err := db.RecordOutcome(ctx, out); err != nil {
			t.Fatal(err)
		}
		all := files(t, cfg, db)
		for _, clear := range []string{in.Match, in.JoinKey, string(in.Salt), string(out.Salt)} {
			if names := holding(all, clear); names != nil {
				t.Errorf("%q is in %v", clear, names)
			}
		}
		salts := func(who string, db *store.DB, args, result []byte) {
			t.Helper()
			c, err := db.Call(ctx, in.CallID)
			if err != nil || !bytes.Equal(c.Salt, args) || !bytes.Equal(c.ResultSalt, result) || string(c.Commitment) != "a commitment" {
				t.Errorf("%s: %+v %v", who, c, err)
			}
		}
		salts("another replica", openConfig(t, cfg), in.Salt, out.Salt)
		salts("another key", as(t, cfg, 9), nil, nil)
	})
}

// TestASaltOfTheVersionBefore comes out as it is.
func TestASaltOfTheVersionBefore(t *testing.T) {
	engines(t, func(t *testing.T, cfg store.Config) {
		ctx, db := context.Background(), openConfig(t, cfg)
		in := newIntent()
		in.Commitment = []byte("salt in clear 16")
		if _, err := db.RecordIntent(ctx, in); err != nil {
			t.Fatal(err)
		}
		if err := db.InTx(ctx, fmt.Sprintf(`UPDATE calls SET salt = commitment WHERE id = '%s'`, in.CallID)); err != nil {
			t.Fatal(err)
		}
		if c, err := db.Call(ctx, in.CallID); err != nil || !bytes.Equal(c.Salt, in.Commitment) {
			t.Errorf("%q %v", c.Salt, err)
		}
	})
}

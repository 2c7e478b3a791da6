package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// testReplicas: the calls of a replica that lives are its own; of one that was buried or has
// resigned they belong to whoever takes them first.
func testReplicas(t *testing.T, cfg store.Config) {
	ctx := context.Background()
	one, two, three := open(t, cfg), open(t, cfg), open(t, cfg)
	for _, db := range []*store.DB{one, two, three} {
		check(t, db.Enlist(ctx))
		check(t, db.Enlist(ctx))
		check(t, db.Beat(ctx))
	}
	call := begin(t, one, nil)
	free := func(db *store.DB) int {
		list, err := db.OpenCalls(ctx)
		check(t, err)
		return len(list)
	}
	if n := free(two); n != 0 {
		t.Errorf("%d calls of a replica that lives count as nobody's", n)
	}
	if mine, err := two.Adopt(ctx, fleet.Dispatched, call.CallID); err != nil || len(mine) != 0 {
		t.Errorf("a living replica's call was adopted: %v %v", mine, err)
	}
	was, err := one.Replicas(ctx)
	check(t, err)
	if len(was) != 3 {
		t.Fatalf("%d replicas", len(was))
	}
	at := func(db *store.DB) store.Replica {
		for _, r := range was {
			if r.Instance == db.Instance() {
				return r
			}
		}
		t.Fatal("a replica isn't listed")
		return store.Replica{}
	}
	check(t, one.Beat(ctx))
	if dead, err := two.Bury(ctx, at(one)); err != nil || dead {
		t.Errorf("a replica whose beat has moved was buried: %v", err)
	}
	now, err := two.Replicas(ctx)
	check(t, err)
	was = now
	if dead, err := two.Bury(ctx, at(one)); err != nil || !dead {
		t.Errorf("a silent replica wasn't buried: %v", err)
	}
	if dead, err := three.Bury(ctx, at(one)); err != nil || dead {
		t.Errorf("a replica was buried twice: %v", err)
	}
	if err := one.Beat(ctx); !errors.Is(err, store.ErrBuried) {
		t.Errorf("a buried replica isn't told: %v", err)
	}
	if free(two) != 1 || free(three) != 1 {
		t.Error("a buried replica's call isn't anybody's to take")
	}
	a, err := two.Adopt(ctx, fleet.Dispatched, call.CallID)
	check(t, err)
	b, err := three.Adopt(ctx, fleet.Dispatched, call.CallID)
	check(t, err)
	if len(a) != 1 || len(b) != 0 {
		t.Errorf("adopted by the first %v, by the second %v", a, b)
	}
	check(t, two.Resign(ctx))
	if b, err = three.Adopt(ctx, fleet.Dispatched, call.CallID); err != nil || len(b) != 1 {
		t.Errorf("after the first resigned: %v %v", b, err)
	}
	testRejoin(t, one, three)
}

// testRejoin: what a buried replica had under its old name isn't its own again under the new one:
// it's adopted first, by whoever comes, in the state that it was seen in, and only then sent.
func testRejoin(t *testing.T, one, other *store.DB) {
	ctx := context.Background()
	old, call := one.Instance(), begin(t, one, queue)
	check(t, one.Rejoin(ctx))
	check(t, one.Beat(ctx))
	if one.Instance() == old {
		t.Error("a buried replica has its old name again")
	}
	for name, db := range map[string]*store.DB{"itself": one, "another": other} {
		if list, err := db.OpenCalls(ctx); err != nil || len(list) != 1 || list[0].ID != call.CallID {
			t.Errorf("to %s the call doesn't belong to nobody: %v %v", name, list, err)
		}
		if err := db.MarkSent(ctx, call.CallID, "b", store.NewMark()); !errors.Is(err, store.ErrAlreadyFinal) {
			t.Errorf("what belongs to nobody was sent by %s: %v", name, err)
		}
	}
	if mine, err := one.Adopt(ctx, fleet.Dispatched, call.CallID); err != nil || len(mine) != 0 {
		t.Errorf("a queued call was adopted as one that was sent: %v %v", mine, err)
	}
	if mine, err := one.Adopt(ctx, fleet.Queued, call.CallID); err != nil || len(mine) != 1 {
		t.Errorf("adopted %v %v", mine, err)
	}
	check(t, one.MarkSent(ctx, call.CallID, "b", store.NewMark()))
}

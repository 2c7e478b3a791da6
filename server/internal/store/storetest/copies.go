package storetest

import (
	"context"
	"fmt"
	"testing"

	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// copies is web-01's row, asked by two replicas in turns, and again after each was closed.
type copies struct {
	t          *testing.T
	cfg        store.Config
	db, before *store.DB // the replica that asked last, and the one before it
	last       int64     // the epoch that was given last
}

// restart ends the older of the two replicas and starts another: more at once would need many
// of the database's connections.
func (c *copies) restart() {
	c.t.Helper()
	if c.before != nil {
		check(c.t, c.before.Close())
	}
	db, err := store.Open(context.Background(), c.cfg)
	check(c.t, err)
	c.before, c.db = c.db, db
}

func (c *copies) close() {
	for _, db := range []*store.DB{c.before, c.db} {
		if db != nil {
			check(c.t, db.Close())
		}
	}
}

// claim expects a verdict.
func (c *copies) claim(instance string, last int64, beside bool, want fleet.Verdict) int64 {
	c.t.Helper()
	c.restart() // what decides is in the database
	epoch, verdict, err := c.db.NextEpoch(context.Background(), fleet.Claim{Agent: "web-01", Generation: 1, Instance: instance, LastEpoch: last, Beside: beside})
	check(c.t, err)
	in := want == fleet.Admitted || want == fleet.Reclaimed
	if verdict != want || in != (epoch > c.last) || !in && epoch != 0 {
		c.t.Fatalf("%s with epoch %d is %s as epoch %d after %d, want %s", instance, last, verdict, epoch, c.last, want)
	}
	if in {
		c.last = epoch
	}
	return epoch
}

func (c *copies) ack(epoch int64) {
	c.t.Helper()
	check(c.t, c.db.AckEpoch(context.Background(), "web-01", 1, epoch))
}

// testEarlier: a process is known that held the identity before many others, the earliest
// first; and one that was restarted often before, too.
func testEarlier(t *testing.T, db *store.DB) {
	addAgent(t, db, "app-01")
	last := int64(0)
	as := func(instance string, stored int64, want fleet.Verdict) int64 {
		t.Helper()
		epoch, verdict, err := db.NextEpoch(context.Background(), fleet.Claim{Agent: "app-01", Generation: 1, Instance: instance, LastEpoch: stored})
		check(t, err)
		if verdict != want {
			t.Fatalf("%s with epoch %d is %s, want %s", instance, stored, verdict, want)
		}
		if epoch > 0 {
			check(t, db.AckEpoch(context.Background(), "app-01", 1, epoch))
			last = epoch
		}
		return epoch
	}
	for i := range 100 {
		as(fmt.Sprint("long ago ", i), last, fleet.Admitted)
	}
	o := as("first", last, fleet.Admitted)
	c1 := as("copy 1", o, fleet.Admitted)
	for i := range 20 {
		as(fmt.Sprint("copy 2, start ", i), last, fleet.Admitted)
	}
	young := last
	as("first", o-1, fleet.Forked) // the clone of an older state of the process isn't it
	as("copy 1", c1, fleet.Reclaimed)
	as("copy 2, start 3", young, fleet.Forked)
	o = as("first", o, fleet.Reclaimed) // was there before copy 1, too
	as("copy 1", c1, fleet.Forked)
	as("copy 2, start 19", young, fleet.Forked)
	as("first, restarted", o, fleet.Admitted)
}

// testCopies: of two processes with the same state, the one that was there first has the
// identity, whatever happens to it, until it has acknowledged an epoch that the other one's
// state doesn't have; or when it comes back to find the other one in its place.
func testCopies(t *testing.T, cfg store.Config) {
	addAgent(t, open(t, cfg), "web-01")
	c := &copies{t: t, cfg: cfg}
	t.Cleanup(c.close)
	e1 := c.claim("first", 0, false, fleet.Admitted)
	c.ack(e1)
	c.claim("first", e1, true, fleet.Admitted) // the same process is no copy of itself
	c.ack(c.last)
	e1 = c.last

	// The copy is seen beside the first, and comes again while that is away: as another
	// process, too.
	c.claim("copy", e1, true, fleet.Duplicate)
	c.claim("copy", e1, false, fleet.Duplicate)
	c.claim("copy again", e1, false, fleet.Duplicate)
	c.ack(e1) // a late acknowledgement proves nothing
	c.claim("copy again", e1, false, fleet.Duplicate)
	c.claim("first", e1, false, fleet.Admitted)
	c.claim("copy again", e1, false, fleet.Duplicate) // not acknowledged yet
	e2 := c.claim("first", e1, false, fleet.Admitted) // the welcome got lost
	c.ack(e2)
	c.claim("copy", e1, false, fleet.Forked)
	c.claim("copy", e1, true, fleet.Forked)

	// Now the first may be restarted.
	e3 := c.claim("first, restarted", e2, false, fleet.Admitted)
	c.ack(e3)

	// A copy of this state connects while the first is away, and serves. The first's process
	// is back: it was there before.
	e4 := c.claim("thief", e3, false, fleet.Admitted)
	c.ack(e4)
	c.claim("first, restarted", e3, true, fleet.Reclaimed)
	c.claim("thief", e4, false, fleet.Duplicate)
	c.claim("thief again", e4, true, fleet.Duplicate)
	e5 := c.claim("first, restarted", e3, false, fleet.Admitted) // the welcome got lost
	c.ack(e5)
	c.claim("thief", e4, false, fleet.Forked)
	c.claim("thief", e4, true, fleet.Forked)
	c.claim("first, restarted twice", e5, false, fleet.Admitted)

	// Of two that can't be told apart any more none is let in.
	e6 := c.last
	c.ack(e6)
	c.claim("another copy", e6, true, fleet.Duplicate)
	c.claim("first, restarted too early", e6, false, fleet.Duplicate)
	c.claim("another copy", e6, false, fleet.Duplicate)

	testEarlier(t, c.db)

	// The present process' predecessor is known by the state that it had then, not by an older.
	addAgent(t, c.db, "db-01")
	as := func(instance string, last int64, want fleet.Verdict) int64 {
		t.Helper()
		epoch, verdict, err := c.db.NextEpoch(context.Background(), fleet.Claim{Agent: "db-01", Generation: 1, Instance: instance, LastEpoch: last})
		check(t, err)
		if verdict != want {
			t.Fatalf("%s with epoch %d is %s, want %s", instance, last, verdict, want)
		}
		check(t, c.db.AckEpoch(context.Background(), "db-01", 1, epoch))
		return epoch
	}
	old := as("a", 0, fleet.Admitted)
	young := as("a", old, fleet.Admitted)
	as("b", young, fleet.Admitted)
	as("a", old, fleet.Forked)
	as("a", young, fleet.Reclaimed)
}

package identity

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/protocol"
)

// enrolled makes a folder with an enrolment of epoch 41, and what it takes to replace it.
func enrolled(t *testing.T) (first *registrar, e Enrolment, old *Identity) {
	t.Helper()
	first, ts := newRegistrar(t)
	e = first.enrolment(t, ts.URL)
	old, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.StoreEpoch(41); err != nil {
		t.Fatal(err)
	}
	old.Close()
	e.Replace = true
	return first, e, old
}

// same demands that the folder holds the old enrolment as it was.
func same(t *testing.T, old *Identity) {
	t.Helper()
	id, err := Open(old.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if !id.Key().Equal(old.Key()) || id.get() != old.get() || id.LastEpoch() != 41 {
		t.Errorf("another enrolment: %+v, epoch %d", id.get(), id.LastEpoch())
	}
}

func TestWhatIsNotAcceptedReplacesNothing(t *testing.T) {
	_, e, old := enrolled(t)
	r, ts := newRegistrar(t)
	other, _ := newRegistrar(t)
	dead := e
	dead.Server, dead.Token = "http://127.0.0.1:1", r.token.String()
	if _, err := Enrol(t.Context(), dead); err == nil {
		t.Error("nobody answers, and no error")
	}
	same(t, old)
	for what, token := range map[string]protocol.EnrolToken{"refused": {ID: r.token.ID, Server: r.token.Server}, "another server's": other.token} {
		e.Server, e.Token = ts.URL, token.String()
		if _, err := Enrol(t.Context(), e); err == nil {
			t.Errorf("%s: no error", what)
		}
		same(t, old)
	}
}

func TestReplaced(t *testing.T) {
	_, e, old := enrolled(t)
	r, ts := newRegistrar(t)
	r.lose = 1
	e.Server, e.Token = ts.URL, r.token.String()
	if _, err := Enrol(t.Context(), e); err == nil {
		t.Fatal("the answer was lost, and no error")
	}
	same(t, old)
	stray, _ := newRegistrar(t)
	between := e
	between.Server, between.Token = "http://127.0.0.1:1", stray.token.String()
	if _, err := Enrol(t.Context(), between); err == nil {
		t.Fatal("nobody answers, and no error")
	}
	id, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	id.Close()
	if len(r.keys) != 1 || !r.keys[protocol.B64(id.Key())] || id.Key().Equal(old.Key()) {
		t.Errorf("%d keys were offered; a repeated attempt must use the same, and a new one", len(r.keys))
	}
	if id.LastEpoch() != 0 || id.ServerURL() != ts.URL || !id.ServerKeys()[0].Equal(r.key.Public()) {
		t.Errorf("%+v, epoch %d", id.get(), id.LastEpoch())
	}
	if is, known := id.EnrolledBy(r.token); !is || !known {
		t.Error("it doesn't know its token")
	}
	if is, known := id.EnrolledBy(stray.token); is || !known {
		t.Error("it takes another token for its own")
	}
	left, _ := filepath.Glob(filepath.Join(e.Dir, "next*"))
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	// The same again, as by somebody who didn't see that it was done.
	if err := id.epoch.open(filepath.Join(e.Dir, epochFile)); err != nil {
		t.Fatal(err)
	}
	if err := id.StoreEpoch(7); err != nil {
		t.Fatal(err)
	}
	id.Close()
	again, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if len(r.keys) != 1 || !again.Key().Equal(id.Key()) || again.LastEpoch() != 7 {
		t.Errorf("the same token again: %d keys, epoch %d", len(r.keys), again.LastEpoch())
	}
}

// An agent that still runs on the old enrolment doesn't write it over the new one.
func TestTheOldAgentLeavesTheNewEnrolment(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("what's open can't be replaced here; the error says to stop the agent")
	}
	_, e, old := enrolled(t)
	running, err := Open(e.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	r, ts := newRegistrar(t)
	e.Server, e.Token = ts.URL, r.token.String()
	id, err := Enrol(t.Context(), e)
	if err != nil {
		t.Fatal(err)
	}
	id.Close()
	if err := running.SawServerKey(old.ServerKeys()[0], old.Key()); !errors.Is(err, errReplaced) {
		t.Errorf("got %v", err)
	}
	now, err := Open(e.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if now.get() != id.get() || !now.Key().Equal(id.Key()) {
		t.Errorf("%+v", now.get())
	}
}

func TestADamagedEnrolmentIsReplaced(t *testing.T) {
	for _, name := range []string{stateFile, keyFile} {
		r, e, _ := enrolled(t)
		if err := os.WriteFile(filepath.Join(e.Dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(e.Dir); err == nil || !strings.Contains(err.Error(), "enrol again with --replace") {
			t.Fatalf("%s: %v", name, err)
		}
		fresh, ts := newRegistrar(t)
		e.Server, e.Token, e.Client = ts.URL, fresh.token.String(), http.DefaultClient
		id, err := Enrol(t.Context(), e)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		id.Close()
		if len(r.keys) != 1 || r.keys[protocol.B64(id.Key())] {
			t.Errorf("%s: the key is the old one", name)
		}
	}
}

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// tooEarly is how long the record is held while something must not happen. It bounds how
// late a broken server may be and still be caught; a whole one passes however slow it is.
const tooEarly = 700 * time.Millisecond

// TestTheRecordComesFirst: while the record can't be written, no request is sent; and while
// the outcome can't be written, no answer is given.
func TestTheRecordComesFirst(t *testing.T) {
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			f := harness.New(t, harness.Options{Engine: engine})
			a := f.RawAgent("raw-01")
			if err := a.Connect(); err != nil {
				t.Fatal(err)
			}
			defer a.Close()

			release := f.Lock()
			defer release()
			answer := inFlight(&f.Client, a.ID)
			requests := make(chan *protocol.Request, 1)
			go func() {
				req, err := a.Request()
				if err != nil {
					t.Errorf("no request: %v", err)
				}
				requests <- req
			}()
			select {
			case <-requests:
				t.Fatal("the request was sent before its intent was recorded")
			case res := <-answer:
				t.Fatalf("answered before anything was recorded: %+v %+v", res, res.Error)
			case <-time.After(tooEarly):
			}
			release()
			req := <-requests
			if req == nil {
				return
			}
			if got := rowsOf(f, req.ID); got["intent"] != 1 || got["outcome"] != 0 {
				t.Errorf("when the request arrived, the call had %v", got)
			}

			release = f.Lock()
			defer release()
			if err := a.Answer(req.ID, okProcess); err != nil {
				t.Fatal(err)
			}
			select {
			case res := <-answer:
				t.Fatalf("answered before the outcome was recorded: %+v %+v", res, res.Error)
			case <-time.After(tooEarly):
			}
			release()
			if res := <-answer; res.State != "succeeded" {
				t.Errorf("the call: %+v %+v", res, res.Error)
			}
			if got := rowsOf(f, req.ID); got["intent"] != 1 || got["outcome"] != 1 {
				t.Errorf("when it was answered, the call had %v", got)
			}
		})
	}
}

// rowsOf counts a call's rows in the record, by kind.
func rowsOf(f *harness.Fleet, call string) map[string]int {
	rows := map[string]int{}
	for _, r := range f.AllRecords() {
		if r.CallID == call {
			rows[r.Kind]++
		}
	}
	return rows
}

// TestEachCallRunsOnItsHost: the storm in small, without reconnects, where every call must
// succeed on the host that it names, once, with one intent and one outcome.
func TestEachCallRunsOnItsHost(t *testing.T) {
	f := harness.New(t, harness.Options{})
	ids := []string{f.Agent("web-01").ID, f.Agent("web-02").ID}
	token, _ := f.PAT("shared", "all", "all", false)
	log := filepath.Join(t.TempDir(), "ran")
	const each = 15
	var seen tally
	var wg sync.WaitGroup
	for i := range 8 {
		id, other := ids[i%2], ids[1-i%2]
		session := f.MCP(token, harness.Eras()[i/2%2], nil)
		wg.Go(func() {
			for n := range each {
				callTool(t, session, "select_agent", map[string]any{"agent_id": other})
				oneCall(t, session, id, fmt.Sprintf("c%d-%d", i, n), log, &seen)
			}
		})
	}
	wg.Wait()
	if got := seen.succeeded.Load(); got != 8*each {
		t.Errorf("%d of %d calls succeeded", got, 8*each)
	}
	checkLog(t, log, seen.succeeded.Load())
	checkOutcomes(t, f, token, &seen)
}

// TestNoHostIsRemembered: neither a selected host nor the one of the last call is used for a
// call that names none.
func TestNoHostIsRemembered(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	f.Agent("web-02")
	token, _ := f.PAT("shared", "all", "all", false)
	log := filepath.Join(t.TempDir(), "ran")
	none := func(when string) {
		t.Helper()
		for _, d := range doors(f, token) {
			for _, agent := range []string{"", `,"agent_id":null`, `,"agent_id":""`} {
				if code, text := d.knock("shell_exec", fmt.Sprintf(`"command":"echo ran >> %s"%s`, log, agent)); code != "no_agent" {
					t.Errorf("%s: %s: %q is answered with %q: %s", when, d.name, agent, code, text)
				}
			}
		}
	}
	none("at first")
	for _, era := range harness.Eras() {
		session := f.MCP(token, era, nil)
		for _, id := range []string{"web-02", "web-01"} {
			res := callTool(t, session, "select_agent", map[string]any{"agent_id": id})
			if res == nil || res.IsError {
				t.Fatalf("select_agent %s: %+v", id, res)
			}
			res, err := session.CallTool(t.Context(), params("shell_exec", map[string]any{"command": "echo ran >> " + log}))
			if err == nil && (!res.IsError || !strings.Contains(textOf(res), "no_agent")) {
				t.Errorf("%s: after select_agent %s: %s", era, id, textOf(res))
			}
			none("after select_agent " + id)
			if res := callTool(t, session, "shell_exec", map[string]any{"agent_id": id, "command": "true"}); res == nil || res.IsError {
				t.Fatalf("shell_exec on %s: %+v", id, res)
			}
			none("after a call on " + id)
		}
	}
	if ran := read(t, log); ran != "" {
		t.Errorf("a call that names no host ran: %q", ran)
	}
}

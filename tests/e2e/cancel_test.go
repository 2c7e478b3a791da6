package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/harness"
)

// begunAndAway makes calls to an agent and cuts its connection: it has begun them.
func begunAndAway(t *testing.T, d *harness.Deployment, a *harness.RawAgent, n int) (ids []string) {
	t.Helper()
	connect(t, a, "journal.boot")
	for range n {
		ids = append(ids, begin(t, &d.Client, a.ID, map[string]any{"command": "sleep 60", "timeout_seconds": 3600}))
		if _, err := a.Request(); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	d.WaitState(a.ID, "offline")
	return ids
}

// askEnd cancels calls, and returns once that's on record: the answers come later.
func askEnd(t *testing.T, d *harness.Deployment, ids []string) {
	t.Helper()
	for _, id := range ids {
		go d.REST(d.Admin).Do("POST", "/api/v1/calls/"+id+"/cancel", "{}")
	}
	harness.Eventually(t, 20*time.Second, "the cancels are on record", func() bool {
		rows := 0
		for _, r := range d.AllRecords() {
			if r.Kind == "cancel" && slices.Contains(ids, r.CallID) {
				rows++
			}
		}
		return rows == len(ids)
	})
}

// toldToEnd connects an agent that is asked for its calls, says what became of them, and
// answers the first one's cancel.
func toldToEnd(t *testing.T, a *harness.RawAgent, ids []string) {
	t.Helper()
	comeBack(t, a)
	says := map[string]string{ids[0]: `"state":"running"`, ids[1]: `"state":"done","ended":true`, ids[2]: `"state":"unseen"`}
	asked, cancelled := 0, false
	for asked < len(ids) || !cancelled {
		frame, err := a.Next("")
		if err != nil {
			t.Fatalf("asked for %d, cancelled %t: %v", asked, cancelled, err)
		}
		switch f := frame.(type) {
		case *protocol.Resume:
			for _, id := range f.IDs {
				asked++
				if err := a.Send(fmt.Sprintf(`{"type":"resume","boot":"journal.boot","states":[{"id":%q,%s}]}`, id, says[id])); err != nil {
					t.Fatal(err)
				}
				if id == ids[1] {
					_ = a.Answer(id, okProcess)
				}
			}
		case *protocol.Cancel:
			if f.ID == ids[0] {
				cancelled = true
				_ = a.Send(fmt.Sprintf(`{"type":"response","id":%q,"error":{"code":"cancelled","message":"ended"},"took_us":1}`, f.ID))
			}
		case *protocol.Request:
			t.Fatalf("%s was sent again", f.ID)
		}
	}
}

// asEnded checks the ends: cancelled only where the agent said so.
func asEnded(t *testing.T, d *harness.Deployment, ids []string) {
	t.Helper()
	for i, want := range []string{"cancelled", "succeeded", "not_started"} {
		var res struct {
			State string          `json:"state"`
			At    time.Time       `json:"cancel_requested_at"`
			By    string          `json:"cancel_requested_by"`
			Error json.RawMessage `json:"error"`
		}
		await(t, &d.Client, ids[i])
		if d.REST(d.Admin).JSON("GET", "/api/v1/calls/"+ids[i], nil, &res); res.State != want || res.At.IsZero() || res.By == "" {
			t.Errorf("call %d, want %s: %+v %s", i, want, res, res.Error)
		}
	}
}

// TestACancelOutlivesTheServer: a cancel that was taken while the agent was away is on record:
// the server's next process, after a kill, tells the agent as soon as it's back; and cancelled
// is only said of what the agent ended.
func TestACancelOutlivesTheServer(t *testing.T) {
	t.Parallel()
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: engine})
			a := d.RawAgent("raw-01")
			ids := begunAndAway(t, d, a, 3)
			askEnd(t, d, ids)
			d.Server.Kill()
			d.Serve(addr(d))
			toldToEnd(t, a, ids)
			defer a.Close()
			asEnded(t, d, ids)
		})
	}
}

// TestACancelOnAnotherReplica: the cancel of a call whose replica has just been killed counts
// when another one has taken the call over.
func TestACancelOnAnotherReplica(t *testing.T) {
	t.Parallel()
	d, b := replicas(t)
	a := d.RawAgent("raw-01")
	ids := begunAndAway(t, d, a, 3)
	d.Server.Kill()
	askEnd(t, b, ids)
	at := a.At(&b.Client)
	at.Epoch = a.Epoch
	harness.Eventually(t, time.Minute, "the calls are taken over", func() bool {
		return bytes.Contains(b.Server.Log(), []byte("belonged to nobody"))
	})
	toldToEnd(t, at, ids)
	defer at.Close()
	asEnded(t, b, ids)
}

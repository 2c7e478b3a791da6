package tunnel_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/tunnel"
)

// faultyStore panics where it's told to, for one agent.
type faultyStore struct {
	tunnel.Store
	at atomic.Pointer[string]
}

func (s *faultyStore) boom(where string) {
	if at := s.at.Load(); at != nil && *at == where {
		panic("boom")
	}
}

func (s *faultyStore) UpdateFacts(ctx context.Context, id fleet.AgentID, epoch int64, f protocol.Facts, caps []protocol.Capability) error {
	if id == "web-01" {
		s.boom("facts")
	}
	return s.Store.UpdateFacts(ctx, id, epoch, f, caps)
}

func (s *faultyStore) AckEpoch(ctx context.Context, id fleet.AgentID, generation, epoch int64) error {
	if id == "web-01" {
		s.boom("ack")
	}
	return s.Store.AckEpoch(ctx, id, generation, epoch)
}

// A fault inside, in what serves one agent's connection, ends that connection: the agent
// connects anew, and the others never notice.
func TestAFaultEndsItsConnectionAlone(t *testing.T) {
	for _, where := range []string{
		"ack", "facts", // beside the connection
		"online",    // in its reader
		"handshake", // before there's a session
	} {
		t.Run(where, func(t *testing.T) {
			store, metrics := &faultyStore{}, obs.NewMetrics("test")
			r := newRig(t, func(c *tunnel.Config) {
				store.Store, c.Store, c.Metrics = c.Store, store, metrics
				c.Online = func(id fleet.AgentID, _ int64) {
					if id == "web-01" {
						store.boom("online")
					}
				}
			})
			bystander, web := r.connect(r.enrolled("db-01")), r.enrolled("web-01")
			facts, wrong := "facts", where
			switch where {
			case "facts": // not those of the handshake
				o := r.connect(web)
				store.at.Store(&facts)
				if err := o.session.Send(t.Context(), &protocol.FactsUpdate{Type: protocol.TypeFacts, Facts: protocol.Facts{Hostname: "other"}, Capabilities: web.caps}); err != nil {
					t.Error(err)
				}
				<-o.done
			case "handshake":
				store.at.Store(&facts)
				if _, _, err := r.dial(web); err == nil {
					t.Error("a handshake in which the server failed inside")
				}
			default:
				store.at.Store(&wrong)
				<-r.connect(web).done
			}
			eventually(t, "the fault is counted", func() bool {
				rec := httptest.NewRecorder()
				metrics.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
				return strings.Contains(rec.Body.String(), `drover_panics_total{where="tunnel"} 1`)
			})
			store.at.Store(nil)
			for id, o := range map[fleet.AgentID]*online{"db-01": bystander, "web-01": r.connect(web)} {
				e, ok := r.presence.Lookup(id)
				if !ok || e.Epoch != o.epoch {
					t.Errorf("%s isn't connected as it was", id)
					continue
				}
				if resp, err := e.Session.Call(t.Context(), newRequest("shell_exec", `{}`), mux.Exchange{}); err != nil || resp.Error != nil {
					t.Errorf("%s: %+v %v", id, resp, err)
				}
			}
		})
	}
}

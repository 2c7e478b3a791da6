//go:build unix

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/tests/bench/swarm"
)

// effect is one execution: on which host, for which one it was meant, the client's number of
// the call and the server's id.
type effect struct{ on, meant, n, call string }

// effects are all executions: of simulated agents in memory, of real ones in a file.
type effects struct {
	mu   sync.Mutex
	sims []effect
	file string
}

// all reads them.
func (e *effects) all(t *testing.T) []effect {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	out := append([]effect(nil), e.sims...)
	b, err := os.ReadFile(e.file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) != 4 {
			t.Fatalf("an effect is %q", line)
		}
		out = append(out, effect{w[0], w[1], w[2], w[3]})
	}
	return out
}

// simulated is a host whose commands are "meant MEANT N": it notes them, and remembers what
// it answered as a real agent's journal does.
type simulated struct {
	id  string
	log *effects

	mu   sync.Mutex
	done map[string]*protocol.Response
}

func (l *load) simulate(id string) swarm.Host {
	return &simulated{id: id, log: l.effects, done: map[string]*protocol.Response{}}
}

// Handle implements mux.Handler.
func (s *simulated) Handle(_ context.Context, req *protocol.Request, _ *mux.Work) *protocol.Response {
	var args struct{ Command string }
	if err := json.Unmarshal(req.Args, &args); err != nil {
		return &protocol.Response{Error: protocol.Errorf(protocol.CodeBadArgs, "%v", err)}
	}
	w := append(strings.Fields(args.Command), "", "", "")
	out, _ := json.Marshal(map[string]any{"exit_code": 0, "stdout": s.id + "\n", "stderr": "", "stdout_bytes": len(s.id) + 1, "stderr_bytes": 0, "duration_ms": 0})
	r := &protocol.Response{Result: out, TookUS: 1}
	s.log.mu.Lock()
	s.log.sims = append(s.log.sims, effect{s.id, w[1], w[2], req.ID})
	s.log.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[req.ID] = r
	return r
}

// Fates implements mux.Resumer.
func (s *simulated) Fates(ids []string) (out protocol.Resume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		state := protocol.FateUnseen
		if s.done[id] != nil {
			state = protocol.FateDone
		}
		out.States = append(out.States, protocol.ResumeState{ID: id, State: state})
	}
	return out
}

// Rejoin implements mux.Resumer.
func (s *simulated) Rejoin(_ context.Context, id string, _ *mux.Work) *protocol.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := *s.done[id]
	return &r
}

// command is what a call runs: on a real host it leaves an effect, says where it ran, and
// takes a while if slow.
func (e *effects) command(agent, n string, slow bool) string {
	if strings.HasPrefix(agent, "sim-") {
		return fmt.Sprintf("meant %s %s", agent, n)
	}
	c := fmt.Sprintf("echo $DROVER_AGENT_ID %s %s $DROVER_CALL_ID >> %s; echo $DROVER_AGENT_ID", agent, n, e.file)
	if slow {
		c += "; for i in 1 2 3; do sleep 0.7; echo $i; done"
	}
	return c
}

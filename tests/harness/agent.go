package harness

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/drover-fleet/drover/agent"
)

// Agent is one agent that runs in this process.
type Agent struct {
	ID    string
	State string // its state folder
	at    *Client
	log   *slog.Logger
	cfg   agent.Config
	stop  func()
}

// AgentOption changes an agent's configuration before it starts.
type AgentOption func(*agent.Config)

// WithRoots confines the agent's file tools.
func WithRoots(dirs ...string) AgentOption { return func(c *agent.Config) { c.Roots = dirs } }

// Agent enrols and starts an agent and waits until the server sees it online.
func (f *Fleet) Agent(id string, opts ...AgentOption) *Agent {
	f.T.Helper()
	return f.agent(id, f.log, opts)
}

// Agent is Fleet.Agent for a server that's a process of its own.
func (f *Client) Agent(id string, opts ...AgentOption) *Agent {
	f.T.Helper()
	return f.agent(id, slog.New(slog.DiscardHandler), opts)
}

func (f *Client) agent(id string, log *slog.Logger, opts []AgentOption) *Agent {
	f.T.Helper()
	a := &Agent{ID: id, State: filepath.Join(f.T.TempDir(), "state"), at: f, log: log}
	a.cfg = agent.Config{Server: f.URL, State: a.State, Token: f.EnrolToken(id, nil, false)}
	for _, o := range opts {
		o(&a.cfg)
	}
	a.Start()
	f.T.Cleanup(func() { a.Stop() })
	a.WaitOnline()
	return a
}

// Start runs the agent with its state.
func (a *Agent) Start() {
	a.at.T.Helper()
	ag, err := agent.New(a.cfg, a.log)
	if err != nil {
		a.at.T.Fatalf("agent %s: %v", a.ID, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := ag.Run(ctx); err != nil && ctx.Err() == nil {
			a.at.T.Errorf("agent %s: %v", a.ID, err)
		}
	}()
	a.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// Stop ends the agent and waits for its end.
func (a *Agent) Stop() { a.stop() }

// Rekey stops the agent, enrols its host anew under the same id, with a new key in a new
// state folder, and starts it. It doesn't wait until the agent is online.
func (a *Agent) Rekey() { a.at.T.Helper(); a.RekeyAt(a.at) }

// RekeyAt is Rekey with the token of another replica.
func (a *Agent) RekeyAt(f *Client) {
	f.T.Helper()
	a.Stop()
	a.State = filepath.Join(a.at.T.TempDir(), "state")
	a.cfg.State, a.cfg.Token = a.State, f.EnrolToken(a.ID, nil, true)
	a.Start()
}

// WaitOnline waits until the server sees the agent online.
func (a *Agent) WaitOnline() { a.at.T.Helper(); a.at.WaitState(a.ID, "online") }

// WaitOffline waits until the server sees the agent offline.
func (a *Agent) WaitOffline() { a.at.T.Helper(); a.at.WaitState(a.ID, "offline") }

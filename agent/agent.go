// Package agent is the program on a managed host: it keeps a tunnel to its server and
// executes the calls that were sealed for its key.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drover-fleet/drover/agent/internal/capability"
	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/identity"
	"github.com/drover-fleet/drover/agent/internal/link"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/protocol/text"
)

// stopTime is how long a stopping agent waits for its calls to be ended: a command that
// ignores being asked is killed well within it.
const stopTime = 8 * time.Second

// answerLook is how often a stopping agent looks whether its answers are out.
const answerLook = 5 * time.Millisecond

// Agent is one agent of one server.
type Agent struct {
	cfg    Config
	log    *slog.Logger
	client *http.Client
}

// New makes an agent; Run does it. The error says what in cfg can't work.
func New(cfg Config, log *slog.Logger) (*Agent, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	client, err := link.NewClient(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	return &Agent{cfg: cfg, log: log, client: client}, nil
}

// Enrol registers this host's key by the token and stores the enrolment. It returns the
// agent id that the operator gave.
func (a *Agent) Enrol(ctx context.Context) (agentID string, err error) {
	token, err := a.cfg.token()
	if err != nil {
		return "", err
	}
	e, err := a.enrolment(token)
	if err != nil {
		return "", err
	}
	id, err := identity.Enrol(ctx, e)
	if err != nil {
		return "", err
	}
	return id.AgentID(), id.Close()
}

func (a *Agent) enrolment(token string) (identity.Enrolment, error) {
	server := a.cfg.Server
	if server == "" {
		server = identity.ServerOf(a.cfg.State)
	}
	switch {
	case token == "" && a.cfg.Replace:
		return identity.Enrolment{}, errors.New("no token to enrol by: make one with `drover enroll create --agent-id ID` on the server (with --replace if it has the id), and give it with --token-file or in DROVER_ENROLL_TOKEN")
	case token == "":
		return identity.Enrolment{}, identity.ErrNotEnrolled
	case server == "":
		return identity.Enrolment{}, errors.New("no server to enrol with: give --server URL")
	}
	return identity.Enrolment{Dir: a.cfg.State, Server: server, Token: token, Hostname: hostname(),
		Client: a.client, Plaintext: a.cfg.Plaintext, Replace: a.cfg.Replace}, nil
}

// Run enrols if that's still to be done and then serves until ctx ends; it returns nil
// then. Calls that run at that moment are ended first, and the server told so.
func (a *Agent) Run(ctx context.Context) error {
	files, err := guard.NewFiles(a.cfg.Roots) // before a token is spent
	if err != nil {
		return err
	}
	defer files.Close()
	id, err := a.identity(ctx)
	if err != nil {
		return err
	}
	defer id.Close()
	release, err := identity.Hold(a.cfg.State)
	if err != nil {
		return err
	}
	defer release()
	if err := files.Hide(a.cfg.State); err != nil {
		return err
	}
	log := a.log.With("agent", id.AgentID())
	a.greet(id, files, log)

	reg := &run.Registry{}
	work := a.openJobs(log)
	defer work.close()
	host := &capability.Host{AgentID: id.AgentID(), Version: a.cfg.Version, RunAs: runAs(), Files: files, Jobs: work.manager(), Log: log,
		Output: filepath.Join(a.cfg.State, "output")}
	capability.Bind(reg, host)
	defer host.Close()
	calls := openJournal(a.cfg.State, log)
	defer closeJournal(calls, log)
	endLeftovers(calls, work.trace(), log)
	runner := run.New(reg, run.Identity{Fingerprint: id.Fingerprint(), Generation: id.Generation()}, calls, log)
	watch, rest := context.WithCancel(context.WithoutCancel(ctx))
	defer rest()
	go runner.Watch(watch)
	var up atomic.Pointer[mux.Session]
	said := &answering{Runner: runner}
	l := link.New(link.Options{Server: id.ServerURL(), Identity: id, Handler: said, Resumer: said, Boot: runner.Boot(), Log: log, Client: a.client,
		Connected: func(c link.Connection) { runner.Connected(); up.Store(c.Session) },
		Removed:   work.removed,
		Anew:      a.cfg.anew(),
		Facts:     func() (protocol.Facts, []protocol.Capability) { return a.facts(files), reg.Capabilities() }})

	// The tunnel outlives ctx until the calls have ended, so that their answers still go out.
	tunnel, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	unlink := context.AfterFunc(ctx, func() {
		defer hangUp()
		a.stop(ctx, said, up.Load())
	})
	defer unlink()
	return l.Run(tunnel)
}

// answering counts the calls whose answers aren't out.
type answering struct {
	*run.Runner
	owed atomic.Int64
}

func (a *answering) owes(w *mux.Work) {
	a.owed.Add(1)
	w.Answered(func() { a.owed.Add(-1) })
}

// Handle implements mux.Handler.
func (a *answering) Handle(ctx context.Context, req *protocol.Request, w *mux.Work) *protocol.Response {
	a.owes(w)
	return a.Runner.Handle(ctx, req, w)
}

// Rejoin implements mux.Resumer.
func (a *answering) Rejoin(ctx context.Context, id string, w *mux.Work) *protocol.Response {
	a.owes(w)
	return a.Runner.Rejoin(ctx, id, w)
}

// stop ends the calls and, once their answers are out, says goodbye: what isn't out by then is
// lost, as the next agent has only the journal. session is the latest one, nil if there was none.
func (a *Agent) stop(ctx context.Context, calls *answering, session *mux.Session) {
	a.log.Info("stopping")
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
	defer cancel()
	calls.Shutdown(limit)
	if session == nil || !session.Alive() {
		return
	}
	look := time.NewTicker(answerLook)
	defer look.Stop()
	for calls.owed.Load() > 0 && session.Alive() && limit.Err() == nil {
		<-look.C
	}
	session.Goodbye("the agent stops", 0)
	select {
	case <-session.Done():
	case <-limit.Done():
	}
}

// identity opens the enrolment, or makes it. A server that can't be reached yet, or is too
// busy, is waited for.
func (a *Agent) identity(ctx context.Context) (*identity.Identity, error) {
	id, err := identity.Open(a.cfg.State)
	if err == nil {
		a.leftToken(id)
		if err := a.use(id); err != nil {
			return nil, errors.Join(err, id.Close())
		}
		return id, nil
	}
	switch {
	case errors.Is(err, identity.ErrNotEnrolled):
	case a.cfg.tokenGiven():
		return nil, fmt.Errorf("%w; the token wasn't used", err)
	default:
		return nil, err
	}
	token, err := a.cfg.token()
	if err != nil {
		return nil, err
	}
	e, err := a.enrolment(token)
	if err != nil {
		return nil, fmt.Errorf("enrol: %w", err)
	}
	if id, err = identity.EnrolPatiently(ctx, e, a.log); err != nil {
		return nil, fmt.Errorf("enrol: %w", err)
	}
	a.log.Info("enrolled", "agent", id.AgentID(), "server", a.cfg.Server)
	return id, nil
}

// leftToken says that a token which was given isn't used, as the host is enrolled. It may be
// spent and its file removed: nothing depends on them any more. If it's another one than this
// enrolment's, somebody may wait for what it doesn't do here.
func (a *Agent) leftToken(id *identity.Identity) {
	if !a.cfg.tokenGiven() {
		return
	}
	text, _ := a.cfg.token()
	token, err := protocol.ParseEnrolToken(text)
	by, known := id.EnrolledBy(token)
	switch {
	case err != nil || by:
		a.log.Info("enrolled already; the token isn't used", "agent", id.AgentID())
	case known:
		a.log.Warn("enrolled already; the token isn't used, though it's another than the one that this host was enrolled by. To enrol anew by it, run: "+a.cfg.anew()+" and start this agent again", "agent", id.AgentID())
	default:
		a.log.Warn("enrolled already; the token isn't used. If it's a new one, to enrol anew by it, run: "+a.cfg.anew()+" and start this agent again", "agent", id.AgentID())
	}
}

// use sets the server's URL where it was given anew, and holds the stored one to the same
// rule about plain http.
func (a *Agent) use(id *identity.Identity) error {
	if a.cfg.Server != "" {
		return id.SetServerURL(a.cfg.Server)
	}
	return identity.CheckURL(id.ServerURL(), a.cfg.Plaintext)
}

// greet logs what the host's owner should know of how the agent runs.
func (a *Agent) greet(id *identity.Identity, files *guard.Files, log *slog.Logger) {
	log.Info("agent starts", "version", a.cfg.Version, "server", id.ServerURL(), "state", a.cfg.State, "run_as", runAs())
	if privileged() {
		log.Warn("the agent runs as the system's administrator, and so does every command that it's sent")
	}
	if files.Confined() {
		log.Info("file tools are confined; commands aren't", "roots", files.Roots())
	}
}

// facts are what the host says of itself.
func (a *Agent) facts(files *guard.Files) protocol.Facts {
	return protocol.Facts{Hostname: hostname(), OS: runtime.GOOS, OSVersion: text.Line(osVersion(), 128), Arch: runtime.GOARCH,
		RunAs: runAs(), AgentVersion: a.cfg.Version, Roots: shown(files.Roots())}
}

func shown(paths []string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, guard.Escape(p))
	}
	return out
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return text.Line(name, 253)
}

// runAs is the user that the agent and its commands run as.
func runAs() string {
	if u, err := user.Current(); err == nil {
		return text.Line(u.Username, 128)
	}
	return strings.TrimSpace(os.Getenv("USER"))
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server"
	"github.com/drover-fleet/drover/server/internal/callargs"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/memory"
	"github.com/drover-fleet/drover/server/internal/moved"
	"github.com/drover-fleet/drover/server/internal/obs"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// dev is one run of drover dev.
type dev struct {
	app      *app
	dir      string // absolute
	listen   string
	agentID  string
	logLevel string
	log      *slog.Logger
}

// onlineWait is how long dev waits for its agent before it says that it isn't there.
const onlineWait = 15 * time.Second

func (a *app) devCmd() *cobra.Command {
	d := &dev{app: a}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run a server, a first token and an agent on this machine", Args: noArgs,
		Long: `Runs a server and an agent for this machine, makes a token that may do everything, and
prints how to connect Claude. Data, token and agent id stay in the data folder: the next
run has the same. Ctrl-C ends both.

The agent runs commands as you. Use drover serve, and drover-agent as a user of its own,
for anything that lasts.`,
		Example: `  drover dev
  drover dev --data /tmp/try --listen 127.0.0.1:0`,
	}
	f := cmd.Flags()
	f.StringVar(&d.dir, "data", ".data", "where data, token and agent live")
	f.StringVar(&d.listen, "listen", "127.0.0.1:7400", "the address to serve HTTP on; a free port is taken if it's busy")
	f.StringVar(&d.agentID, "agent-id", "", "the agent's id on the first run; made from the hostname when absent")
	f.StringVar(&d.logLevel, "log-level", "warn", "of the server's log, on standard error: debug, info, warn or error")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context()) }
	return cmd
}

func (d *dev) run(ctx context.Context) error {
	var err error
	if d.log, err = obs.NewLogger(d.app.err, d.app.logFormat(), d.logLevel); err != nil {
		return fleet.Errorf(protocol.CodeBadArgs, "%v", err)
	}
	if d.agentID != "" {
		if err := fleet.CheckAgentID(d.agentID); err != nil {
			return err
		}
	}
	bin, err := agentBinary()
	if err != nil {
		return err
	}
	if d.dir, err = filepath.Abs(d.dir); err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	if os.Geteuid() == 0 {
		d.app.say("\n*** drover dev runs as root: whoever has the token below is root on this machine. ***\n*** Run it as an ordinary user unless that is what you want.                        ***\n")
	}
	memory.Tune(ctx, d.app.getenv)
	s, err := d.server()
	if err != nil {
		return err
	}
	first, err := d.prepare(ctx, s.URL())
	if err != nil {
		return errors.Join(err, s.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx) }()
	child, err := startAgent(bin, s.URL(), d.dir, first.enrolment)
	if err != nil {
		stop()
		return errors.Join(err, <-served)
	}
	d.welcome(ctx, s.URL(), first, child)
	select {
	case <-ctx.Done():
	case err = <-served:
		served <- nil
	case <-child.ended:
		if ctx.Err() == nil {
			d.app.say("drover: the agent ended: %s\nThe server goes on; Ctrl-C ends it. The agent's log: %s", text.Visible(child.why()), child.logPath)
			select {
			case <-ctx.Done():
			case err = <-served:
				served <- nil
			}
		}
	}
	stop()
	child.end()
	return errors.Join(err, <-served)
}

// server makes the server, on another port if the one that was asked for is taken. It holds the
// data: nobody else's server or agent is disturbed by what comes then.
func (d *dev) server() (*server.Server, error) {
	cfg := server.Config{Listen: d.listen, DataDir: d.dir, EnrollCommand: enrollCommand(&where{data: d.dir}), Version: versionText()}
	if err := cfg.Check(); err != nil { // before the folder is made
		return nil, err
	}
	if _, err := localKey(&where{data: d.dir}, true); err != nil {
		return nil, err
	}
	s, err := server.New(cfg, d.log)
	if server.AddressTaken(err) {
		d.app.say("drover: %s is taken by another program; taking a free port instead", d.listen)
		cfg.Listen = "127.0.0.1:0"
		s, err = server.New(cfg, d.log)
	}
	return s, err
}

// setup is what a run of dev needs before the server starts.
type setup struct {
	token, agentID string
	enrolment      string              // "" if the agent is enrolled already
	elsewhere      map[string][]string // other agents, by the URL that they dial instead of this one
}

// prepare makes the token, the agent's id and its enrolment where they aren't there yet.
func (d *dev) prepare(ctx context.Context, base string) (setup, error) {
	api, err := openLocal(ctx, &where{data: d.dir}, true)
	if err != nil {
		return setup{}, err
	}
	defer func() { _ = api.close() }()
	var s setup
	if s.token, err = d.token(ctx, api); err != nil {
		return s, err
	}
	if s.agentID, s.enrolment, err = d.agent(ctx, api); err != nil {
		return s, err
	}
	others, err := allAgents(ctx, api, url.Values{})
	if err != nil {
		return s, err
	}
	seen := map[string]time.Time{}
	for _, g := range others.Agents {
		if g.AgentID != s.agentID {
			seen[g.AgentID] = g.LastSeen
		}
	}
	book := moved.Book{File: filepath.Join(d.dir, "dev-hosts.json"), LastURL: filepath.Join(d.dir, server.URLFile)}
	s.elsewhere, err = book.Elsewhere(base, seen)
	return s, err
}

// token returns the token of the run before, or a new one if that is no longer valid.
func (d *dev) token(ctx context.Context, api *client) (string, error) {
	file := filepath.Join(d.dir, "dev-pat")
	if b, err := os.ReadFile(file); err == nil {
		token := strings.TrimSpace(string(b))
		if _, err := api.tokens.Token(token); err == nil {
			return token, nil
		}
		d.app.say("drover: the token of the last run was revoked or has expired; making a new one")
	}
	var pat restapi.NewPAT
	all := restapi.Grant{Agents: restapi.Agents{All: true}, Tools: restapi.Tools{All: true}}
	req := restapi.PATRequest{Name: "dev", Admin: true, Grant: all}
	if err := api.change(ctx, http.MethodPost, "/pats", req, &pat); err != nil {
		return "", err
	}
	return pat.Token, writePrivate(file, pat.Token+"\n")
}

// agent returns the agent's id, and an enrolment token if the agent has no key yet.
func (d *dev) agent(ctx context.Context, api *client) (id, enrolment string, err error) {
	file := filepath.Join(d.dir, "dev-agent-id")
	own := "" // what the first run called it
	if b, err := os.ReadFile(file); err == nil {
		own = strings.TrimSpace(string(b))
	}
	if own != "" && d.agentID != "" && d.agentID != own {
		return "", "", fleet.Errorf(protocol.CodeBadArgs, "the agent of %s is %s; --agent-id names it on the first run alone. Leave it out, or give another folder with --data", d.dir, own)
	}
	id = cmp.Or(own, d.agentID, idFromHostname())
	exists, err := d.exists(ctx, api, id)
	if err != nil {
		return "", "", err
	}
	if own == "" && exists { // somebody else's: it's never taken over
		if d.agentID != "" {
			return "", "", fleet.Errorf(protocol.CodeConflict, "there's an agent %s in %s already, and it isn't this command's; give another --agent-id", id, d.dir)
		}
		exists = false
	}
	if _, err := os.Stat(filepath.Join(d.dir, "agent", "state.json")); err == nil && exists {
		return id, "", nil
	}
	var e restapi.NewEnrolment
	wanted := id
	for n := 2; ; n++ {
		err = api.change(ctx, http.MethodPost, "/enrolments", restapi.EnrolmentRequest{AgentID: id, TTLSeconds: new(int64(3600)), Replace: exists}, &e)
		if fleet.AsError(err).Code != "conflict" || n > 9 {
			break
		}
		// The id was removed, and is never given out again, or is another agent's.
		id, exists = fmt.Sprintf("%.60s-%d", wanted, n), false
	}
	if err != nil {
		return "", "", err
	}
	if err := d.retire(); err != nil {
		return "", "", err
	}
	return id, e.Token, writePrivate(file, id+"\n")
}

func (d *dev) exists(ctx context.Context, api *client, id string) (bool, error) {
	err := api.do(ctx, http.MethodGet, "/agents/"+url.PathEscape(id), nil, &restapi.AgentInfo{})
	if err != nil && fleet.AsError(err).Code == "unknown_agent" {
		return false, nil
	}
	return err == nil, err
}

// retire puts a state folder aside that belongs to no agent of this server.
func (d *dev) retire() error {
	dir := filepath.Join(d.dir, "agent")
	err := os.Rename(dir, fmt.Sprintf("%s.old-%d", dir, time.Now().UnixNano()))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// idFromHostname makes an agent id of the machine's name, or local.
func idFromHostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "local"
	}
	return cleanID(name)
}

func cleanID(hostname string) string {
	name, _, _ := strings.Cut(strings.ToLower(hostname), ".")
	name = strings.Map(func(r rune) rune {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			return r
		}
		return '-'
	}, name)
	name = strings.Trim(name[:min(len(name), 60)], "-")
	if _, ok := fleet.ParseAgentID(name); !ok {
		return "local"
	}
	return name
}

// welcome waits for the agent and prints what to paste.
func (d *dev) welcome(ctx context.Context, base string, s setup, child *childAgent) {
	online := d.await(ctx, base, s, child)
	if ctx.Err() != nil {
		return
	}
	state := "online"
	if online {
		_ = os.Remove(child.tokenFile) // it's used up
	} else {
		state = "NOT online yet; its log: " + child.logPath
	}
	fmt.Fprintf(d.app.out, `
Drover is running. Ctrl-C ends it.

  URL    %[1]s
  PAT    %[2]s
  agent  %[3]s (%[4]s)

Connect Claude Code:

  claude mcp add --transport http drover %[1]s/mcp --header "Authorization: Bearer %[2]s"

Run a command on %[3]s:

  curl -sS %[1]s%[5]s/calls -H 'Authorization: Bearer %[2]s' -H 'Content-Type: application/json' -d '{"agent_id":"%[3]s","tool":"shell_exec","args":{"command":"uname -a"}}'

Add another agent (prints what to run there):

  %[6]s enroll create --data %[7]s --agent-id web-01

%[8]s
`, base, s.token, s.agentID, state, restapi.Prefix, callargs.Word(os.Args[0]), callargs.Word(d.dir), thisMachineAlone(base))
	for _, old := range slices.Sorted(maps.Keys(s.elsewhere)) {
		d.warn(base, old, s.elsewhere[old])
	}
}

// warn says that agents can't come back to this server, since they dial the URL old.
func (d *dev) warn(base, old string, ids []string) {
	back := "serve these data there again, as that run did"
	if u, err := url.Parse(old); err == nil && u.Scheme == "http" && loopback(u.Hostname()) {
		back = fmt.Sprintf("end this, and whatever else has %s, and start it there:\n\n  %s dev --data %s --listen %s", u.Host, callargs.Word(os.Args[0]), callargs.Word(d.dir), u.Host)
	}
	d.app.say(`*** Agents are cut off: this server is at %[1]s, and they dial %[2]s,
*** where it was before: %[3]s

To have them back, %[4]s

Or start each with the new address, once (its state folder stays): %[5]s run --server %[1]s
`, base, text.Line(old, 200), text.Line(strings.Join(ids, ", "), 300), back, agentWord(base))
}

// await asks the server until the agent is online, for at most onlineWait.
func (d *dev) await(ctx context.Context, base string, s setup, child *childAgent) bool {
	ctx, stop := context.WithTimeout(ctx, onlineWait)
	defer stop()
	api, err := d.app.dial(&where{url: base, token: s.token})
	if err != nil {
		return false
	}
	for {
		var g restapi.AgentInfo
		if err := api.do(ctx, http.MethodGet, "/agents/"+s.agentID, nil, &g); err == nil && g.State == "online" {
			return true
		}
		select {
		case <-child.ended:
			return false
		default:
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return false
		}
	}
}

// writePrivate replaces a file that its owner alone may read.
func writePrivate(path, text string) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

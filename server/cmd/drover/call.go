package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/callargs"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// callFlags are the flags of drover call.
type callFlags struct {
	where           where
	agent, argsFrom string
	key, queueFor   string
	keyGiven        bool
	json, raw       bool
}

func (a *app) callCmd() *cobra.Command {
	o := &callFlags{}
	cmd := &cobra.Command{
		Use: "call --agent ID TOOL [key=value | key:=JSON]…", Short: "Run a tool on one agent",
		Long: `Runs a tool on exactly the agent that --agent names. The agent has no default and no
environment variable: a host that stays selected is how commands reach the wrong one.

drover tools --agent ID lists the tools. Arguments: key=value is converted by the tool's schema (text, numbers, true and false; a
list takes the key several times: argv=ls argv=-l; a map takes NAME=VALUE: env=LANG=C).
key:=JSON is taken as it is. --args takes a whole JSON object.

Output of command tools goes to standard output and standard error as text: bytes that
aren't UTF-8 come as \xNN, so fetch binary files with fs_read or base64. On a
terminal, control characters are escaped (--raw leaves them). fs_read writes the part it
read, and says on standard error where to go on.
Other results are JSON.

A call to a host that is offline fails at once. With --queue-for it waits for the host
instead, on the server, and never runs after that time: drover call prints how to wait
for it and ends with 75. A host that is online runs it at once.

Exit code: the command's own; 128+n when signal n ended it; 75 when the call is queued,
not run (standard error: drover: queued: …); 255 when Drover couldn't (drover: CODE: …;
after outcome_unknown it may have run, and what to ask is said). Of a command's own 75 or
255 the last line there is drover: the command itself exited with …; for programs, --json
tells them apart by state. Ctrl-C cancels the call on the host and says how it ended.`,
		Example: `  export DROVER_URL=https://drover.example.org DROVER_PAT=drv_pat_…
  drover call --agent web-01 shell_exec command='systemctl is-active nginx'
  drover call --agent web-01 shell_exec argv=ls argv=-l argv="/srv/a b" timeout_seconds=5
  drover call --agent web-01 fs_read path=/etc/hosts > hosts
  drover call --agent web-01 fs_write --args @write.json
  drover call --agent web-01 --queue-for 8h shell_exec command='apt-get update'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fleet.Errorf(protocol.CodeBadArgs, "name a tool: drover call --agent ID shell_exec command=uptime; drover tools --agent ID lists them")
			}
			return nil
		},
	}
	f := cmd.Flags()
	o.where.remoteFlags(f, defaultURL)
	f.Var((*once)(&o.agent), "agent", "the agent's exact id (required)")
	f.StringVar(&o.argsFrom, "args", "", "the arguments as one JSON object: @FILE, - for standard input, or the JSON")
	f.StringVar(&o.key, "idempotency-key", "", "calls with the same key run once; made up when absent")
	f.StringVar(&o.queueFor, "queue-for", "", "if the host is offline, wait for it at most this long: 8h, 90m, up to 7d")
	f.BoolVar(&o.json, "json", false, "print the whole call as JSON")
	f.BoolVar(&o.raw, "raw", false, "leave control characters as they are, on a terminal too")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.keyGiven = cmd.Flags().Changed("idempotency-key")
		code, err := a.call(cmd.Context(), o, args[0], args[1:])
		if err != nil {
			return &exit{code: exitCall, cause: err}
		}
		if code != 0 {
			return &exit{code: code}
		}
		return nil
	}
	return cmd
}

// call runs one call and returns the exit code; an error is Drover's, not the command's.
func (a *app) call(ctx context.Context, o *callFlags, tool string, words []string) (int, error) {
	if o.agent == "" {
		return 0, fleet.Errorf(protocol.CodeNoAgent, "name the agent: --agent ID; drover agents list shows the ids. Drover never picks a host for you")
	}
	queue, err := queueSeconds(o.queueFor)
	if err != nil {
		return 0, err
	}
	o.where.remote = true
	api, err := a.dial(&o.where)
	if err != nil {
		return 0, err
	}
	text, err := callargs.Read(o.argsFrom, a.in)
	if err != nil {
		return 0, err
	}
	var s callargs.Schema
	if len(words) > 0 {
		if s, err = toolSchema(ctx, api, tool); err != nil {
			return 0, err
		}
	}
	args, err := callargs.Build(words, text, s)
	if err != nil {
		return 0, err
	}
	agent, err := jsontext.AppendQuote(nil, o.agent)
	if err != nil {
		return 0, fleet.Errorf(protocol.CodeUnknownAgent, "--agent is not valid UTF-8")
	}
	if o.keyGiven && o.key == "" {
		return 0, fleet.Errorf(protocol.CodeBadArgs, "--idempotency-key is empty: give a key of your own, or leave the flag out")
	}
	if o.key == "" {
		o.key = "cli-" + rand.Text()
	}
	req := restapi.CallRequest{AgentID: agent, Tool: tool, Args: args, IdempotencyKey: &o.key}
	if queue > 0 {
		req.QueueFor = &queue
	}
	c, err := a.follow(ctx, api, req)
	if err != nil {
		return 0, noSuchTool(ctx, api, o.agent, tool, err)
	}
	return a.show(o, c)
}

// queueSeconds reads --queue-for; 0 for none.
func queueSeconds(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	d, never, err := parseLife(s)
	if err != nil || never || d > dispatch.MaxQueue {
		return 0, fleet.Errorf(protocol.CodeBadArgs, "--queue-for is a time of at most 7d, such as 8h or 90m")
	}
	return int(d / time.Second), nil
}

// toolSchema asks the server for the tool's schema. A tool that isn't listed has none: the
// call itself says why.
func toolSchema(ctx context.Context, api *client, tool string) (callargs.Schema, error) {
	tools, err := usable(ctx, api, "")
	if err != nil {
		return callargs.Schema{}, err
	}
	for _, t := range tools {
		if t.Name == tool {
			return callargs.SchemaOf(t.InputSchema)
		}
	}
	return callargs.Schema{}, nil
}

// Patience while a call runs.
const (
	firstWait  = 1                // seconds: short, so that the call's id is known soon
	pollWait   = 50               // seconds
	cancelWait = 40 * time.Second // for a cancelled call's end
)

// follow starts the call and waits for its end, unless it's queued. A request that may have
// reached a server is repeated: its key makes it the same call. When ctx ends, the call is
// cancelled.
func (a *app) follow(ctx context.Context, api *client, req restapi.CallRequest) (*restapi.Call, error) {
	req.WaitSeconds = new(firstWait)
	// The first request isn't given up with ctx: what it started must be known to be ended.
	start := context.WithoutCancel(ctx)
	var c restapi.Call
	begun, err := persist(ctx, false, func() error { return api.do(start, http.MethodPost, "/calls", req, &c) })
	switch {
	case err == nil:
	case begun && fleet.AsError(err).Code != protocol.CodeConflict: // that one says that the key is another call's
		return nil, fleet.Wrap(protocol.CodeOutcomeUnknown, err, "the call may have run: a server was asked to start it, and what came of it isn't known (%s). The same command with --idempotency-key %s tells how it went, or runs it if it never began: nothing runs twice",
			text.Line(err.Error(), 500), text.Quote(*req.IdempotencyKey, 128))
	default:
		return nil, err
	}
	id, key := c.CallID, *req.IdempotencyKey
	path := "/calls/" + url.PathEscape(id)
	for waits := fleet.State(c.State); !waits.Final() && !queued(&c); waits = fleet.State(c.State) {
		wait := pollWait
		_, err := persist(ctx, true, func() error {
			c = restapi.Call{State: string(fleet.Dispatched)}
			err := api.do(ctx, http.MethodGet, fmt.Sprintf("%s?wait_seconds=%d", path, wait), nil, &c)
			wait = 0 // what is on the way may not have the patience, or the server no place for one who waits
			return err
		})
		if ctx.Err() != nil && (err != nil || !fleet.State(c.State).Final()) {
			return a.cancel(api, id, key)
		}
		if err != nil {
			return nil, unknown(err, id, key, "began, and how it ended can't be asked")
		}
	}
	return &c, nil
}

// cancel ends the call on the host and tells how it ended.
func (a *app) cancel(api *client, id, key string) (*restapi.Call, error) {
	a.say("drover: cancelling the call; interrupt again to stop waiting for it")
	ctx, stop := context.WithTimeoutCause(context.Background(), cancelWait, fmt.Errorf("no answer within %s", cancelWait))
	defer stop()
	var c restapi.Call
	_, err := persist(ctx, true, func() error {
		c = restapi.Call{}
		return api.do(ctx, http.MethodPost, "/calls/"+url.PathEscape(id)+"/cancel", nil, &c)
	})
	if err != nil {
		return nil, unknown(err, id, key, "was to be cancelled, and no server has confirmed it")
	}
	if !fleet.State(c.State).Final() {
		return nil, unknown(nil, id, key, "was to be cancelled, and didn't end yet")
	}
	return &c, nil
}

// unknown words the end of waiting for a call that was begun: it tells how to ask later.
func unknown(err error, id, key, what string) error {
	why := ""
	if err != nil {
		why = " (" + text.Line(err.Error(), 500) + ")"
	}
	return fleet.Wrap(protocol.CodeOutcomeUnknown, err, "the call %s %s%s. Ask later: the same command with --idempotency-key %s tells how it went, and runs nothing twice; or GET %s/calls/%s, or drover audit list --call-id %s",
		id, what, why, text.Quote(key, 128), restapi.Prefix, url.PathEscape(id), id)
}

// processResult is the part of a command tool's result that the CLI shows.
type processResult struct {
	ExitCode    *int    `json:"exit_code"`
	Stdout      *string `json:"stdout"`
	Stderr      string  `json:"stderr"`
	StdoutBytes int64   `json:"stdout_bytes"`
	StderrBytes int64   `json:"stderr_bytes"`
	Truncated   bool    `json:"truncated"`
	Kept        bool    `json:"kept"`
	Signal      string  `json:"signal"`
}

// show prints how the call ended and returns the exit code.
func (a *app) show(o *callFlags, c *restapi.Call) (int, error) {
	var p processResult
	isProcess := len(c.Result) > 0 && json.Unmarshal(c.Result, &p) == nil && p.Stdout != nil && p.ExitCode != nil
	switch {
	case o.json:
		if err := printJSON(a.out, c); err != nil {
			return 0, err
		}
	case isProcess:
		if err := a.showProcess(o, c, &p); err != nil {
			return 0, err
		}
	case len(c.Result) > 0:
		if err := a.showResult(o, c); err != nil {
			return 0, err
		}
	}
	if queued(c) {
		return a.showQueued(o, c), nil
	}
	if c.State == string(fleet.Succeeded) {
		if isProcess {
			return a.ownCode(o, &p), nil
		}
		return 0, nil
	}
	if c.Error == nil {
		return 0, fleet.Errorf(protocol.CodeInternal, "the server tells no reason for the state %s", text.Quote(c.State, 40))
	}
	a.complain(&fleet.Error{Code: protocol.Code(c.Error.Code), Reason: c.Error.Reason, Message: c.Error.Message})
	if c.Evidence != "" {
		a.say("drover: learnt since: %s", text.Line(c.Evidence, 512))
	}
	if isProcess && c.Error.Code == string(protocol.CodeToolFailed) && *p.ExitCode > 128 {
		return exitCode(*p.ExitCode), nil // a signal
	}
	return exitCall, nil
}

// queued tells that a call waits for its host, and not only for a place on it.
func queued(c *restapi.Call) bool { return c.State == string(fleet.Queued) && !c.QueuedUntil.IsZero() }

// showQueued says that the call waits for its host, and how to wait for the call.
func (a *app) showQueued(o *callFlags, c *restapi.Call) int {
	a.say("drover: queued: %s was offline; the call %s waits for it until %s and has not run", text.Line(c.AgentID, 63), c.CallID, when(c.QueuedUntil))
	a.say("drover: the same command with --idempotency-key %s tells how it went, and runs nothing twice; POST %s/calls/%s/cancel takes it back", text.Quote(o.key, 128), restapi.Prefix, c.CallID)
	return exitQueued
}

// ownCode is the exit code of a command that ended by itself. One that would read as Drover's
// is said to be the command's.
func (a *app) ownCode(o *callFlags, p *processResult) int {
	code := exitCode(*p.ExitCode)
	if code == exitQueued || code == exitCall {
		if !o.json && p.Stderr != "" && !strings.HasSuffix(p.Stderr, "\n") {
			a.say("") // a line of its own
		}
		a.say("drover: the command itself exited with %d", *p.ExitCode)
	}
	return code
}

// exitCode keeps what a system can't carry from looking like success.
func exitCode(n int) int {
	if n >= 0 && n <= 255 {
		return n
	}
	if n&0xff == 0 {
		return 1
	}
	return n & 0xff
}

func (a *app) showProcess(o *callFlags, c *restapi.Call, p *processResult) error {
	if _, err := fmt.Fprint(a.out, o.text(*p.Stdout, a.outTTY)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(a.err, o.text(p.Stderr, a.errTTY)); err != nil {
		return err
	}
	if p.Truncated {
		rest := "raise max_output, or write to a file and read it with fs_read"
		if p.Kept {
			rest = "the tool shell_output with call_id=" + text.Line(c.CallID, 64) + " reads more of it, for a day"
		}
		a.say("drover: the output was cut: %d bytes of standard output and %d of standard error in all; %s", p.StdoutBytes, p.StderrBytes, rest)
	}
	return nil
}

// text is output as it may reach where it goes.
func (o *callFlags) text(s string, terminal bool) string {
	if terminal && !o.raw {
		return text.Visible(s)
	}
	return s
}

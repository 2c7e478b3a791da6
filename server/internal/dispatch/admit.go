package dispatch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/authz"
	"github.com/drover-fleet/drover/server/internal/commit"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// target is a call that was resolved, allowed and validated.
type target struct {
	agent   *fleet.Agent
	def     *capability.Definition
	args    []byte // the frozen bytes
	timeout time.Duration
	limit   time.Duration // of the whole call on the agent
}

// admit does steps 1 and 2: who may reach what, before arguments and liveness are looked
// at; then the arguments.
func (d *Dispatcher) admit(snap *store.Snapshot, who fleet.Principal, req Request) (*target, error) {
	def := d.defs[req.Tool]
	if !authz.Tool(who, def) {
		return nil, fleet.Errorf(protocol.CodeUnknownTool, "no tool of that name is granted to this credential; %s", guideOf(req.Edge).tools)
	}
	name, err := agentName(req.Agent, req.Edge)
	if err != nil {
		return nil, err
	}
	agent := lookup(snap, name)
	if authz.Decide(who, def, agent) != "" {
		return nil, unknownAgent(snap, who, name, req.Edge)
	}
	args := []byte(req.Args)
	if len(args) == 0 {
		args = []byte("{}")
	}
	if err := req.fits(def); err != nil {
		return nil, err
	}
	check := def.Check
	if who.Kind == fleet.KindSystem {
		check = def.CheckOwn
	}
	if err := check(args); err != nil {
		return nil, err
	}
	t := &target{agent: agent, def: def, args: args}
	if !t.unheard() {
		if err := t.offeredBy(agent, req.Edge); err != nil {
			return nil, err
		}
	}
	if len(req.Key) > 128 || len(req.ToolUseID) > 256 {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "an idempotency key has at most 128 bytes")
	}
	// What the store would write in another form could fall together with another key.
	if !utf8.ValidString(req.Key) || strings.ContainsFunc(req.Key, unicode.IsControl) {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "an idempotency key is text without control characters")
	}
	t.timeout, t.limit = timeouts(def, args)
	return t, nil
}

// unheard tells that the agent had told nothing yet when the call was made: it has never
// connected. What it offers is looked at when it's there.
func (t *target) unheard() bool { return len(t.agent.Capabilities) == 0 }

// offeredBy tells whether the agent, as it's known now, has the tool and its arguments.
func (t *target) offeredBy(agent *fleet.Agent, edge string) error {
	offered := agent.Offers(t.def.Name)
	if offered == 0 {
		return fleet.Errorf(protocol.CodeUnsupported, "agent %s doesn't offer %s (its system lacks it, or the agent needs an update); %s shows what it offers", agent.ID, t.def.Name, guideOf(edge).show)
	}
	if m := t.def.Since(t.args, offered); m != "" {
		return fleet.Errorf(protocol.CodeUnsupported, "agent %s is too old for the argument %q of %s; update the agent, or leave the argument out", agent.ID, m, t.def.Name)
	}
	return nil
}

// heard looks at what an agent offers that is there now, and had told nothing before.
func (d *Dispatcher) heard(ctx context.Context, t *target, edge string) error {
	if !t.unheard() {
		return nil
	}
	if err := d.db.Refresh(ctx); err != nil {
		return err
	}
	if agent := d.db.Snapshot().Agents[t.agent.ID]; agent != nil { // else it was removed meanwhile, which is found on the way
		return t.offeredBy(agent, edge)
	}
	return nil
}

// fits tells whether what travels beside the arguments suits the tool.
func (r *Request) fits(def *capability.Definition) error {
	switch {
	case r.QueueFor != 0 && (r.QueueFor < MinQueue || r.QueueFor > MaxQueue):
		return fleet.Errorf(protocol.CodeBadArgs, "queue_for_seconds must be from %d to %d", int(MinQueue.Seconds()), int(MaxQueue.Seconds()))
	case (def.Stream == capability.ToHost) != (r.Body != nil), (def.Stream == capability.FromHost) != (r.Sink != nil):
		return fleet.Errorf(protocol.CodeBadArgs, "%s moves a file's bytes beside the call, which only the files interface does: GET and PUT /api/v1/agents/{agent_id}/files, or drover cp", def.Name)
	case r.QueueFor != 0 && r.streams():
		return fleet.Errorf(protocol.CodeBadArgs, "a file transfer can't be queued; send it when the agent is online")
	}
	return nil
}

// enqueue makes a queued call of an intent: from its sending on it has its time.
func (t *target) enqueue(in *fleet.Intent, d time.Duration) {
	in.QueueUntil, in.Frozen = in.At.Add(d), t.args
	in.Deadline = in.QueueUntil.Add(t.limit)
}

// agentName takes the agent id from its raw JSON: anything but a string that isn't blank
// names no agent.
func agentName(raw jsontext.Value, edge string) (string, error) {
	var s string
	if len(raw) == 0 || raw.Kind() != '"' || json.Unmarshal(raw, &s) != nil || strings.TrimSpace(s) == "" {
		return "", fleet.Errorf(protocol.CodeNoAgent, "agent_id is required: the exact id of one agent, as a string; %s shows the ids. Drover never picks a host for you", guideOf(edge).list)
	}
	return s, nil
}

// guide is how agents are listed and looked at where a caller is, and how tools are listed.
type guide struct{ list, show, tools string }

// guideOf is the guide for the callers of an edge: a model has tools, people and programs the
// command line and REST.
func guideOf(edge string) guide {
	if edge == "mcp" {
		return guide{list: "list_agents", show: "select_agent", tools: "list the tools to see which are"}
	}
	return guide{
		list: "drover agents list (GET /api/v1/agents)", show: "drover agents show (GET /api/v1/agents/ID)",
		tools: "drover tools (GET /api/v1/tools) lists those that are",
	}
}

// lookup resolves exactly: no prefix, no case folding, no hostname.
func lookup(snap *store.Snapshot, name string) *fleet.Agent {
	id, ok := fleet.ParseAgentID(name)
	if !ok {
		return nil
	}
	return snap.Agents[id]
}

// unknownAgent is the one answer to malformed, unknown, removed and out of scope. It names
// ids only of agents in scope whose hostname is exactly what was given.
func unknownAgent(snap *store.Snapshot, who fleet.Principal, name, edge string) error {
	var same []string
	for id, a := range snap.Agents {
		if a.Facts.Hostname == name && authz.Agent(who, a) {
			same = append(same, string(id))
		}
	}
	slices.Sort(same)
	where := "no agent of that id is in this credential's scope; "
	if who.Kind == fleet.KindSystem { // it has no credential, and reaches all
		where = "there's no agent of that id; "
	}
	text := where + guideOf(edge).list + " shows the ids that are; never vary or guess an id"
	if len(same) == 0 {
		return fleet.Errorf(protocol.CodeUnknownAgent, "%s", text)
	}
	more := ""
	if len(same) > 10 {
		same, more = same[:10], " and more"
	}
	return fleet.Errorf(protocol.CodeUnknownAgent, "%s. That is the hostname of: %s%s (a hostname is no id; ask which one is meant if there are several)", text, strings.Join(same, ", "), more)
}

func (d *Dispatcher) offline(snap *store.Snapshot, a *fleet.Agent, edge string) error {
	since := "it has never connected"
	if !a.LastSeen.IsZero() {
		since = "last seen " + a.LastSeen.UTC().Format(time.RFC3339)
	}
	if quarantined, notice := standing(snap, a.ID); quarantined+notice != "" {
		since += "; " + quarantined + notice
	}
	if why := d.OfflineWhy(); why != "" {
		since += "; " + why
	}
	return fleet.Errorf(protocol.CodeOffline, "agent %s is offline (%s); nothing was sent; %s shows who is online", a.ID, since, guideOf(edge).list)
}

// timeouts are the call's own time limit and the deadline on the agent, which leaves the
// capability time to end what it started and to report it.
func timeouts(def *capability.Definition, args []byte) (timeout, limit time.Duration) {
	timeout = time.Duration(def.Timeout) * time.Second
	if def.In.Properties["timeout_seconds"] == nil {
		return timeout, timeout
	}
	var in struct {
		Seconds int `json:"timeout_seconds"`
	}
	if err := strict.Decode(args, &in); err == nil && in.Seconds > 0 {
		timeout = time.Duration(in.Seconds) * time.Second
	}
	return timeout, min(timeout+5*time.Second, protocol.MaxDeadlineMS*time.Millisecond)
}

// freeze makes the intent: from here on the target, the tool, the bytes and the caller
// are what they are.
func (t *target) freeze(who fleet.Principal, req Request) fleet.Intent {
	salt := commit.Salt()
	now := time.Now()
	in := fleet.Intent{
		CallID: fleet.CallID(uuid.Must(uuid.NewV7()).String()), Principal: who, Client: req.Client, Edge: req.Edge,
		Agent: t.agent.ID, Generation: t.agent.Generation, Tool: t.def.Name, Effect: string(t.def.Effect),
		Args: redact(t.def, t.args), Salt: salt, Commitment: commit.Of(salt, t.args),
		At: now, Deadline: now.Add(t.limit), Key: req.Key, Match: t.match(),
	}
	if req.ToolUseID != "" {
		in.JoinKey = hash(who.ID, req.Client, req.ToolUseID, in.Match)
	}
	return in
}

func (t *target) match() string { return hash(string(t.agent.ID), t.def.Name, string(t.args)) }

func hash(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// maxRecorded bounds one string of the recorded arguments, in bytes.
const maxRecorded = 4096

// redact writes the arguments as the record may hold them: members that the definition
// names are replaced by their length, JSON that's long is cut. Lengths are those of what was given:
// of a string its own bytes, of anything else its JSON.
func redact(def *capability.Definition, args []byte) []byte {
	if len(def.Redact) == 0 && len(args) <= maxRecorded {
		return args
	}
	var m map[string]jsontext.Value
	if json.Unmarshal(args, &m) != nil {
		return []byte("{}")
	}
	changed := false
	for name, v := range m {
		switch {
		case slices.Contains(def.Redact, name):
			m[name] = quote(fmt.Sprintf("[%d bytes]", len(given(v))))
		case len(v) > maxRecorded:
			text := strings.ToValidUTF8(string(v[:maxRecorded]), "")
			m[name] = quote(fmt.Sprintf("%s… [%d bytes]", text, len(given(v))))
		default:
			continue
		}
		changed = true
	}
	if !changed {
		return args
	}
	b, err := json.Marshal(m, json.Deterministic(true), jsontext.PreserveRawStrings(true))
	if err != nil {
		return []byte("{}")
	}
	return b
}

func quote(s string) jsontext.Value {
	b, err := jsontext.AppendQuote(nil, s)
	if err != nil {
		return jsontext.Value(`"[not text]"`)
	}
	return b
}

// refuse records a refusal and returns it as a *fleet.Error.
func (d *Dispatcher) refuse(who fleet.Principal, req Request, err error) error {
	fe := fleet.AsError(err)
	d.Refuse(who, fleet.Refusal{
		Client: req.Client, Edge: req.Edge, Tool: req.Tool, Agent: shown(req.Agent), Code: fe.Code, Message: fe.Message,
	})
	switch {
	case fe.Code == protocol.CodeUnavailable && fe.Err == nil: // it stops, or is fenced, and says so elsewhere
		d.log.Warn("a call was refused", "code", fe.Code, "tool", req.Tool, "message", fe.Message)
	case fe.Code == protocol.CodeInternal || fe.Code == protocol.CodeUnavailable:
		d.log.Error("a call could not be started", "code", fe.Code, "tool", req.Tool, "err", fe.Err)
	}
	return fe
}

// Refuse records that something was turned away before it came to Call, at an edge.
func (d *Dispatcher) Refuse(who fleet.Principal, r fleet.Refusal) {
	r.Principal, r.Name = who.ID, who.Name
	if r.At.IsZero() {
		r.At = time.Now()
	}
	r.Count = max(r.Count, 1)
	d.db.RecordRefusal(r)
	d.obs.Refusal(r.Edge, string(r.Code))
}

// given is a value as it was given: the string, or its JSON.
func given(raw jsontext.Value) string {
	s := string(raw)
	if raw.Kind() == '"' {
		_ = json.Unmarshal(raw, &s)
	}
	return s
}

// shown is an agent id as the record shows it: as it was given, cut to 64 bytes.
func shown(raw jsontext.Value) string {
	s := given(raw)
	if len(s) > 64 {
		s = s[:64]
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "")
	}
	return s
}

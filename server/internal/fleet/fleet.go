// Package fleet is the vocabulary of the server: agents, calls, principals, grants and
// errors. It imports the standard library and the protocol only.
package fleet

import (
	"crypto/ed25519"
	"slices"
	"strings"
	"time"

	"github.com/drover-fleet/drover/protocol"
)

// AgentID names an agent: [a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?, chosen by an operator. It is
// compared byte for byte; there's no other way to name an agent.
type AgentID string

// ParseAgentID tells whether s is a well-formed agent id.
func ParseAgentID(s string) (AgentID, bool) {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return "", false
	}
	for i := range len(s) {
		c := s[i]
		if c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", false
		}
	}
	return AgentID(s), true
}

// ParseCallID reads the id of a call, or of a row of the record, in its one form: a UUIDv7.
func ParseCallID(s string) (CallID, bool) {
	if len(s) != 36 || s[14] != '7' || !strings.ContainsRune("89ab", rune(s[19])) {
		return "", false
	}
	for i := range len(s) {
		c := s[i]
		if dash := i == 8 || i == 13 || i == 18 || i == 23; dash != (c == '-') || !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return CallID(s), true
}

// CheckAgentID refuses what no agent can be called.
func CheckAgentID(s string) error {
	if _, ok := ParseAgentID(s); !ok {
		return Errorf(protocol.CodeBadArgs, "an agent id has 1 to 63 of the characters a-z 0-9 -, and neither begins nor ends with -")
	}
	return nil
}

// CallID names a call: a UUIDv7 in its usual text form.
type CallID string

// Agent is a registered agent as the store knows it. Values reached through an Agent are
// shared and never written to.
type Agent struct {
	ID          AgentID
	Generation  int64             // counts its keys, from 1
	Key         ed25519.PublicKey // the present generation's
	Fingerprint []byte            // protocol.Fingerprint(Key)
	Labels      map[string]string // the operator's
	Description string            // the operator's
	// Facts and Capabilities are what the host said last: hostile text, cleaned and cut.
	Facts        protocol.Facts
	Capabilities []protocol.Capability
	CreatedAt    time.Time
	LastSeen     time.Time // zero before the first connection
}

// Offers returns the version of a capability that the agent announced last, or 0.
func (a *Agent) Offers(tool string) int {
	for _, c := range a.Capabilities {
		if c.Name == tool {
			return c.Version
		}
	}
	return 0
}

// MaxSkew is how far a host's clock may be off before people are told.
const MaxSkew = time.Minute

// ClockAhead is how far the host's clock is ahead of the server's, negative when it's
// behind; zero when it's off by MaxSkew at most.
func (a *Agent) ClockAhead() time.Duration {
	d := time.Duration(a.Facts.ClockAheadMS) * time.Millisecond
	if d.Abs() <= MaxSkew {
		return 0
	}
	return d
}

// Quarantine is a note that something is wrong with an agent's identity or behaviour.
type Quarantine struct {
	Reason string // duplicate, forked, replaced, violations
	At     time.Time
	Until  time.Time // zero: until it gets a new key
}

// PrincipalKind is the kind of credential.
type PrincipalKind string

// The kinds of principal of this version.
const (
	KindPAT    PrincipalKind = "pat"
	KindSystem PrincipalKind = "system"
)

// Principal is an authenticated caller.
type Principal struct {
	ID    string // "pat:<id>", "system:<name>"; unique and stable
	Kind  PrincipalKind
	Name  string // what people know it by
	Admin bool   // may manage PATs, enrolment, labels, removal, and read all calls
	Grant Grant
	// ExpiresAt is zero for never.
	ExpiresAt time.Time
}

// Caller is the principal as the agent sees it.
func (p Principal) Caller(client string) protocol.Caller {
	return protocol.Caller{Principal: p.ID, User: p.Name, Kind: string(p.Kind), Client: client, Admin: p.Admin}
}

// Grant is what a principal may do: agents × tools. The zero Grant allows nothing.
type Grant struct {
	Agents AgentSet
	Tools  ToolSet
}

// Only is the grant of one tool on one agent: what the server does itself is allowed no more.
func Only(agent AgentID, tool string) Grant {
	return Grant{Agents: AgentSet{IDs: []AgentID{agent}}, Tools: ToolSet{Names: []string{tool}}}
}

// AgentSet names agents: all, or ids, or a label selector. The zero set is empty.
type AgentSet struct {
	All bool      `json:"all,omitzero"`
	IDs []AgentID `json:"ids,omitempty"`
	// Selector matches an agent that has every one of these labels with these values. An
	// empty selector matches nothing.
	Selector map[string]string `json:"selector,omitempty"`
}

// Has tells whether the set names the agent.
func (s AgentSet) Has(a *Agent) bool {
	if s.All || slices.Contains(s.IDs, a.ID) {
		return true
	}
	if len(s.Selector) == 0 {
		return false
	}
	for k, v := range s.Selector {
		if got, ok := a.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// ToolSet names tools: all, or groups ("fs") and names ("fs_read"). The zero set is empty.
type ToolSet struct {
	All   bool     `json:"all,omitzero"`
	Names []string `json:"names,omitempty"`
}

// Has tells whether the set names the tool. A group is the part before the first
// underscore.
func (s ToolSet) Has(tool string) bool {
	if s.All {
		return true
	}
	group, _, _ := strings.Cut(tool, "_")
	return slices.Contains(s.Names, tool) || slices.Contains(s.Names, group)
}

// State is where a call stands.
type State string

// The states of a call. The last eight are final.
const (
	PendingApproval State = "pending_approval"
	Queued          State = "queued"
	Dispatched      State = "dispatched"
	Running         State = "running"
	Succeeded       State = "succeeded"
	Failed          State = "failed"
	Denied          State = "denied"
	Expired         State = "expired"
	Cancelled       State = "cancelled"
	TimedOut        State = "timed_out"
	NotStarted      State = "not_started"
	OutcomeUnknown  State = "outcome_unknown"
)

// Final tells whether a call in this state has its one outcome.
func (s State) Final() bool {
	switch s {
	case PendingApproval, Queued, Dispatched, Running:
		return false
	default:
		return true
	}
}

// StateOf maps an outcome's error code ("" for success) to the final state.
func StateOf(c protocol.Code) State {
	switch c {
	case "":
		return Succeeded
	case protocol.CodeDenied:
		return Denied
	case protocol.CodeExpired:
		return Expired
	case protocol.CodeCancelled:
		return Cancelled
	case protocol.CodeTimedOut:
		return TimedOut
	case protocol.CodeNotStarted, protocol.CodeOffline, protocol.CodeUnavailable:
		return NotStarted
	case protocol.CodeOutcomeUnknown:
		return OutcomeUnknown
	default:
		return Failed
	}
}

// Intent is what is made durable before a call is sent.
type Intent struct {
	CallID     CallID
	Principal  Principal
	Client     string // the MCP client's name and version, or "rest"; unverified
	Edge       string // mcp, rest, system
	Agent      AgentID
	Generation int64
	Tool       string
	Effect     string
	// Args is the redacted argument object; Commitment is the salted hash of the frozen
	// bytes: SHA-256(Salt ‖ bytes).
	Args       []byte
	Salt       []byte
	Commitment []byte
	Deadline   time.Time
	At         time.Time
	// Key is the caller's idempotency key, "" for none: within the principal it names one
	// call for ever, unless that one never started. JoinKey is a hash that joins repeats of one tool use while the call is
	// open and for two minutes after; "" for none.
	Key     string
	JoinKey string
	// Match is a hash over agent, tool and argument bytes: what a joined call must equal. It's
	// kept keyed, like JoinKey, and only for an intent with one of these keys.
	Match string
	// Boot is the agent's journal and boot when the intent was made, "" when it keeps none or
	// is offline: what a later "unseen" is compared with.
	Boot string
	// QueueUntil makes it a queued call, which is sent when its agent connects, and never
	// after this time. Frozen are the exact bytes of its arguments, kept sealed until it's sent or
	// ends. Zero and nil for a call that is sent at once.
	QueueUntil time.Time
	Frozen     []byte
}

// Evidence is what was learnt of a call after its outcome was recorded as unknown.
type Evidence struct {
	CallID CallID
	Text   string // one line
	At     time.Time
}

// Cancel asks for the end of an open call.
type Cancel struct {
	CallID    CallID
	Principal string // who asks: a principal's id
	Name      string // and its name
	At        time.Time
}

// Outcome is what is made durable before a call is answered.
type Outcome struct {
	CallID CallID
	State  State // final
	Code   protocol.Code
	Reason string
	// Message is the error's public text.
	Message string
	// Result is the result as it will be shown, nil if there is none. It's kept for a day
	// beside the record, for call_result; the record holds its salted commitment.
	Result     []byte
	Salt       []byte
	Commitment []byte
	ExitCode   *int // of command tools
	At         time.Time
	TookUS     int64 // on the agent, microseconds
}

// Refusal is a call that was turned away before it had an id. Everything in it may be
// hostile text; the store cuts it.
type Refusal struct {
	Principal string // "" when unauthenticated
	Name      string
	Client    string
	Edge      string
	Tool      string
	Agent     string // as given, cut to 64 bytes
	Code      protocol.Code
	Message   string
	At        time.Time
	// Count is how many like it this row stands for.
	Count int
}

// Call is a call as lists and call_result show it.
type Call struct {
	ID         CallID
	Principal  string
	Name       string // the principal's name then
	Client     string
	Edge       string
	Agent      AgentID
	Generation int64
	Tool       string
	Args       []byte // redacted JSON object
	Match      string
	State      State
	Code       protocol.Code
	Reason     string
	Message    string
	ExitCode   *int
	Result     []byte // nil when there's none or it's no longer kept
	CreatedAt  time.Time
	FinishedAt time.Time // zero while it's open
	TookUS     int64
	Deadline   time.Time
	Boot       string    // see Intent
	QueueUntil time.Time // zero for a call that was sent at once
	// Evidence was learnt after an outcome of outcome_unknown; "" if nothing was.
	Evidence   string
	EvidenceAt time.Time
	// CancelAt is when its end was asked for, zero if it wasn't; CancelBy is the name of who
	// asked.
	CancelAt time.Time
	CancelBy string
	// What the record commits to, and the salts while they're kept; of a single call alone, not
	// in lists.
	Commitment, Salt             []byte
	ResultCommitment, ResultSalt []byte
}

// AdminEvent is one act of managing Drover itself, as the record keeps it.
type AdminEvent struct {
	Principal string // "pat:<id>", "system:cli", "agent:<id>"
	Action    string // "enroll.create", "enroll.use", "enroll.revoke", "agent.remove", "pat.create", …
	Object    string // what it was done to: an agent id, a token id, a PAT id
	// Detail holds what else the record should say; never a secret. Values may be hostile
	// text; the store cuts them.
	Detail map[string]string
	At     time.Time
}

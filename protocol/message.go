package protocol

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol/strict"
)

// Limits of version 1. Both sides check them before sending and after receiving.
const (
	// MaxMessage is the largest text message (one JSON frame) on the wire, in bytes. A frame
	// that is longer travels as a stream of kind "frame".
	MaxMessage = 16 << 10
	// MaxFrame is the largest frame of all, also when it travels as a stream, in bytes. An
	// answer that doesn't fit fails its own call with too_large.
	MaxFrame = 8 << 20
	// MaxChunk is the largest payload of one binary message, in bytes, without its header.
	MaxChunk = 16 << 10
	// ChunkHeader is the length of a binary message's header: stream id (uint32, big
	// endian) and flags (one byte).
	ChunkHeader = 5
	// InitialCredit is how many payload bytes of one stream may be in flight, unacknowledged.
	InitialCredit = 64 << 10
	// MaxDepth is the nesting allowed in a frame, arguments and results included.
	MaxDepth = 64
	// ConnCredit is how many payload bytes of all streams together may be in flight at first,
	// each way.
	ConnCredit = 256 << 10
	// MaxWindow bounds what credit may add up to, per stream and per connection.
	MaxWindow = 16 << 20
	// MaxStreams is how many streams a sender may have open on one connection.
	MaxStreams = 1024
	// MaxOpen bounds the sum of the sizes of all "frame" streams that one side has open.
	MaxOpen = 2 * MaxFrame
	// MaxFiles is how many calls with a stream of kind file a server may have open on one
	// connection; each has at most one stream each way.
	MaxFiles = 64
	// MaxFileGrowth bounds by how much a receiver makes the windows of all file streams of a
	// connection together larger than InitialCredit, in bytes.
	MaxFileGrowth = 8 << 20
	// MaxKept is the most that a server keeps of what one agent sends and nobody has taken
	// yet, in bytes: long frames that aren't whole, and files whose receiver is slow.
	MaxKept = MaxOpen + MaxFiles*InitialCredit + MaxFileGrowth
	// MaxHello is the largest message before the welcome. An agent whose capabilities don't
	// fit sends the rest as facts after it.
	MaxHello = 8 << 10
	// MaxCapabilities bounds a list of capabilities, MaxRoots one of roots.
	MaxCapabilities = 256
	MaxRoots        = 32
	// MaxLine bounds progress messages and cancel reasons, in bytes; MaxLog a log line's text.
	MaxLine = 512
	MaxLog  = 1 << 10
	// MaxName bounds ids, tool names and other short strings, in bytes.
	MaxName = 128
)

// Kinds of streams.
const (
	KindFrame = "frame" // one oversized frame
	KindFile  = "file"  // version 2: a file's bytes, under a call
)

// Flags of a binary message.
const (
	// FlagEnd: the sender's last chunk of this stream (its payload may be empty).
	FlagEnd = 1 << 0
	// FlagReset: the sender gave up; what came is void. The payload is empty.
	FlagReset = 1 << 1
)

// Type is the frame's kind: the member "type".
type Type string

// Frame types of version 1. hello, challenge, auth, welcome and refuse make the handshake;
// the others follow the welcome in any order.
const (
	TypeHello     Type = "hello"
	TypeChallenge Type = "challenge"
	TypeAuth      Type = "auth"
	TypeWelcome   Type = "welcome"
	TypeRefuse    Type = "refuse"
	TypeRequest   Type = "request"
	TypeResponse  Type = "response"
	TypeProgress  Type = "progress"
	TypeCancel    Type = "cancel"
	TypeResume    Type = "resume"
	TypeOpen      Type = "open"
	TypeCredit    Type = "credit"
	TypeConfig    Type = "config"
	TypeFacts     Type = "facts"
	TypeLog       Type = "log"
	TypeGoodbye   Type = "goodbye"
	TypePing      Type = "ping"
	TypePong      Type = "pong"
	TypeEpoch     Type = "epoch"
)

// Caller is the verified principal that a request acts for, as the agent and the programs
// it starts see it. The server sets it; nothing a client sends reaches it.
type Caller struct {
	// Principal is the credential: "pat:ID", "user:ID", "system:NAME".
	Principal string `json:"principal"`
	// User is the name that people know it by: a PAT's name, a user's login.
	User string `json:"user"`
	// Kind is pat, user, oauth, chat or system.
	Kind string `json:"kind"`
	// Client is the MCP client's own name and version; unverified, for display.
	Client string `json:"client,omitempty"`
	// Admin (version 3): the credential may manage Drover, so it may list and stop what others
	// started on a host.
	Admin bool `json:"admin,omitzero"`
}

// Request asks the agent to execute one call. No agent id is in it: the connection it's
// written to and the seal say whose it is.
type Request struct {
	Type Type   `json:"type"`
	ID   string `json:"id"` // the call id, a UUIDv7
	Tool string `json:"tool"`
	// Args are the frozen bytes of the arguments object. They're never marshalled again.
	Args jsontext.Value `json:"args"`
	// Seal is base64url(Seal(...)): see handshake.go. 43 characters.
	Seal       string `json:"seal"`
	Caller     Caller `json:"caller"`
	DeadlineMS int64  `json:"deadline_ms"` // time remaining, 1..MaxDeadline, milliseconds
	// Progress asks for progress frames.
	Progress bool `json:"progress,omitzero"`

	// Reserved in version 1; an agent that doesn't know what to do with one refuses the call.
	Approval         *Approval         `json:"approval,omitempty"`
	ApprovalRequired *ApprovalRequired `json:"approval_required,omitempty"`
	NotAfterMS       int64             `json:"not_after,omitzero"` // time remaining to start, milliseconds
	ToolVersion      int               `json:"tool_version,omitzero"`
	// Traceparent (version 3) is the W3C trace context that the call belongs to, for the
	// environment of what it starts. It decides nothing: see ValidTraceparent.
	Traceparent string `json:"traceparent,omitempty"`
}

// Approval is reserved: an approver's signature that the host checks itself.
type Approval struct {
	Nonce     string `json:"nonce"`
	KeyID     string `json:"key_id"`
	Assertion string `json:"assertion"`
}

// ApprovalRequired is reserved: the host's demand for an approval.
type ApprovalRequired struct {
	Nonce string `json:"nonce"`
}

// Response ends a call. Result and Error may both be there: what a failed command printed
// is kept.
type Response struct {
	Type   Type           `json:"type"`
	ID     string         `json:"id"`
	Result jsontext.Value `json:"result,omitempty"`
	Error  *Error         `json:"error,omitempty"`
	// Receipt is reserved: the host's signature over the outcome.
	Receipt string `json:"receipt,omitempty"`
	TookUS  int64  `json:"took_us"` // time from receipt to outcome on the agent, microseconds
}

// Progress tells how a running call goes.
type Progress struct {
	Type    Type   `json:"type"`
	ID      string `json:"id"`
	Seq     int64  `json:"seq"`               // 1, 2, 3 … within the call
	Message string `json:"message,omitempty"` // one line, cut to 512 bytes
}

// Cancel asks the agent to end a call; the response says how it ended.
type Cancel struct {
	Type   Type   `json:"type"`
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

// Resume asks, after a reconnect, what became of calls sent over an earlier connection;
// the agent answers with a Resume that has States. From version 2 an agent also sends one
// with Boot alone right after the welcome.
type Resume struct {
	Type Type     `json:"type"`
	IDs  []string `json:"ids,omitempty"`
	// Boot names the agent's journal and its host's boot: unseen under the Boot that held
	// when a request was written means that it never started.
	Boot   string        `json:"boot,omitempty"`
	States []ResumeState `json:"states,omitempty"`
}

// What became of a call, as the agent's journal has it.
const (
	// FateRunning: it runs; its response comes over this connection.
	FateRunning = "running"
	// FateDone: it has ended; its response follows over this connection.
	FateDone = "done"
	// FateUnseen: it never began and never will.
	FateUnseen = "unseen"
	// FateLost (version 2): it began, and its end isn't known any more: the agent was
	// restarted, or can't tell it from what it has forgotten.
	FateLost = "lost"
)

// ResumeState is one call's fate.
type ResumeState struct {
	ID    string `json:"id"`
	State string `json:"state"`
	// Version 2, of what is known beside the state: evidence for people.
	PID      int    `json:"pid,omitzero"`        // of the process it started, 0 for none
	AgoMS    int64  `json:"ago_ms,omitzero"`     // how long ago it began, milliseconds
	Ended    bool   `json:"ended,omitzero"`      // it's known to have ended
	ExitCode *int   `json:"exit_code,omitempty"` // of a command that has ended
	Note     string `json:"note,omitempty"`      // one line: what the agent did about it
}

// Open begins a stream from the sender. Kind "frame" carries one oversized frame; the
// other kinds belong to the call ID.
type Open struct {
	Type   Type   `json:"type"`
	Stream uint32 `json:"stream"` // chosen by the sender, never reused on a connection
	Kind   string `json:"kind"`   // KindFrame, KindFile (version 2); reserved: stdout stderr stdin pty mcp
	ID     string `json:"id"`
	Size   int64  `json:"size"` // bytes to come; -1 unknown (never for kind frame)
}

// Credit lets the peer send more payload bytes of a stream.
type Credit struct {
	Type   Type   `json:"type"`
	Stream uint32 `json:"stream"`
	Bytes  int64  `json:"bytes"`
}

// Config is what the server tells the agent about itself; version 1 has the keep-alive.
type Config struct {
	Type        Type  `json:"type"`
	KeepAliveMS int64 `json:"keep_alive_ms"`
}

// FactsUpdate replaces the facts of the hello.
type FactsUpdate struct {
	Type         Type         `json:"type"`
	Facts        Facts        `json:"facts"`
	Capabilities []Capability `json:"capabilities"`
}

// Log is a line of the agent's own log that the server should see.
type Log struct {
	Type    Type   `json:"type"`
	Level   string `json:"level"`   // debug info warn error
	Message string `json:"message"` // cut to 1 KiB
}

// Goodbye announces that the sender closes, and when the peer may come back.
type Goodbye struct {
	Type         Type   `json:"type"`
	Reason       string `json:"reason"`
	RetryAfterMS int64  `json:"retry_after_ms,omitzero"`
}

// Ping asks for a Pong with the same number at once, before anything else that waits.
type Ping struct {
	Type Type  `json:"type"`
	N    int64 `json:"n"`
}

// Pong answers a Ping.
type Pong struct {
	Type Type  `json:"type"`
	N    int64 `json:"n"`
}

// Epoch tells the server that the agent has stored this connection's epoch durably: from
// then on a hello with an older last_epoch is a copy of the identity. An agent that can't
// store it doesn't send it.
type Epoch struct {
	Type  Type  `json:"type"`
	Epoch int64 `json:"epoch"`
}

// Facts are what a host says of itself. All of it is unverified text.
type Facts struct {
	Hostname     string `json:"hostname"`
	OS           string `json:"os"`         // GOOS
	OSVersion    string `json:"os_version"` // "Debian GNU/Linux 12 (bookworm)"
	Arch         string `json:"arch"`       // GOARCH
	RunAs        string `json:"run_as"`     // the user the agent and its commands run as
	AgentVersion string `json:"agent_version"`
	// Roots are the folders that the file tools are confined to; none: not confined.
	Roots []string `json:"roots,omitempty"`
	// ClockAheadMS (version 2) is how far the host's clock is ahead of the server's, in
	// milliseconds, as the agent saw it at the welcome; negative when it's behind.
	ClockAheadMS int64 `json:"clock_ahead_ms,omitzero"`
}

// Capability names a built-in tool that the agent offers, and its version.
type Capability struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
}

// ErrUnknownType is returned by Decode for a frame whose type this version doesn't have.
var ErrUnknownType = errors.New("protocol: unknown frame type")

// Decode reads one frame after the handshake, strictly: exact names, nothing unknown,
// missing or null, no duplicate, no trailing data, at most MaxDepth deep. The result is a
// pointer to one of this file's frame structs.
func Decode(b []byte) (any, error) {
	t, err := PeekType(b)
	if err != nil {
		return nil, err
	}
	v := newFrame(t)
	if v == nil {
		return nil, ErrUnknownType
	}
	return v, DecodeInto(b, v)
}

// DecodeInto reads a frame whose type is known from its place in the handshake.
func DecodeInto(b []byte, v any) error {
	if err := strict.Unmarshal(b, v, strict.Limits{MaxBytes: MaxFrame, MaxDepth: MaxDepth}); err != nil {
		return fmt.Errorf("protocol: frame: %w", err)
	}
	return nil
}

// PeekType reads the frame's type without judging the rest. The usual place, first, is
// read at a glance; Decode finds a second "type" afterwards.
func PeekType(b []byte) (Type, error) {
	if rest, ok := bytes.CutPrefix(b, []byte(`{"type":"`)); ok {
		if i := bytes.IndexByte(rest, '"'); i >= 0 && i <= 16 && bytes.IndexByte(rest[:i], '\\') < 0 {
			return Type(rest[:i]), nil
		}
	}
	var head struct {
		Type Type `json:"type"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return "", fmt.Errorf("protocol: frame: %w", &strict.Error{Kind: strict.Syntax})
	}
	return head.Type, nil
}

func newFrame(t Type) any {
	switch t {
	case TypeRequest:
		return new(Request)
	case TypeResponse:
		return new(Response)
	case TypeProgress:
		return new(Progress)
	case TypeCancel:
		return new(Cancel)
	case TypeResume:
		return new(Resume)
	case TypeOpen:
		return new(Open)
	case TypeCredit:
		return new(Credit)
	case TypeConfig:
		return new(Config)
	case TypeFacts:
		return new(FactsUpdate)
	case TypeLog:
		return new(Log)
	case TypeGoodbye:
		return new(Goodbye)
	case TypePing:
		return new(Ping)
	case TypePong:
		return new(Pong)
	case TypeEpoch:
		return new(Epoch)
	default:
		return nil
	}
}

// Package body has the bodies of the record's rows: the bytes that are hashed and kept.
package body

import (
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// The bodies. Members are only ever added; v tells the set. Salts, results, messages of
// hosts and unsalted hashes of arguments never enter: what must be forgotten one day can't
// be in bytes that are kept for ever. The line of an evidence is the one exception: it says
// what an agent knows of a call, not what the call printed.
type (
	// Intent tells of a call that's about to be sent, or is queued.
	Intent struct {
		V          int            `json:"v"`
		Kind       string         `json:"kind"`
		ID         string         `json:"id"`
		At         string         `json:"at"`
		CallID     string         `json:"call_id"`
		Principal  string         `json:"principal"`
		Name       string         `json:"name"`
		Client     string         `json:"client"`
		Edge       string         `json:"edge"`
		Agent      string         `json:"agent_id"`
		Generation int64          `json:"generation"`
		Tool       string         `json:"tool"`
		Effect     string         `json:"effect"`
		Args       jsontext.Value `json:"args"`
		Commitment string         `json:"commitment"`
		Deadline   string         `json:"deadline,omitempty"`
		Key        string         `json:"idempotency_key,omitempty"`
		Instance   string         `json:"instance"`
		Boot       string         `json:"boot,omitempty"`
		QueueUntil string         `json:"queue_until,omitempty"`
	}
	// Sent tells of a queued call that's about to be sent.
	Sent struct {
		V        int    `json:"v"`
		Kind     string `json:"kind"`
		ID       string `json:"id"`
		At       string `json:"at"`
		CallID   string `json:"call_id"`
		Boot     string `json:"boot"`
		Instance string `json:"instance"`
	}
	// Evidence tells what was learnt after an unknown outcome.
	Evidence struct {
		V        int    `json:"v"`
		Kind     string `json:"kind"`
		ID       string `json:"id"`
		At       string `json:"at"`
		CallID   string `json:"call_id"`
		Text     string `json:"text"`
		Instance string `json:"instance"`
	}
	// Outcome tells how a call ended.
	Outcome struct {
		V          int    `json:"v"`
		Kind       string `json:"kind"`
		ID         string `json:"id"`
		At         string `json:"at"`
		CallID     string `json:"call_id"`
		State      string `json:"state"`
		Code       string `json:"code"`
		Reason     string `json:"reason"`
		ExitCode   *int   `json:"exit_code,omitempty"`
		TookUS     int64  `json:"took_us"`
		Commitment string `json:"commitment,omitempty"`
	}
	// Refusal tells what was turned away before it was a call.
	Refusal struct {
		V         int    `json:"v"`
		Kind      string `json:"kind"`
		ID        string `json:"id"`
		At        string `json:"at"`
		Principal string `json:"principal"`
		Name      string `json:"name"`
		Client    string `json:"client"`
		Edge      string `json:"edge"`
		Tool      string `json:"tool"`
		Agent     string `json:"agent_id"`
		Code      string `json:"code"`
		Message   string `json:"message"`
		Count     int    `json:"count"`
	}
	// Admin tells of an act of managing Drover itself.
	Admin struct {
		V         int               `json:"v"`
		Kind      string            `json:"kind"`
		ID        string            `json:"id"`
		At        string            `json:"at"`
		Principal string            `json:"principal"`
		Action    string            `json:"action"`
		Object    string            `json:"object"`
		Detail    map[string]string `json:"detail"`
	}
	// Cancel tells that the end of an open call was asked for.
	Cancel struct {
		V         int    `json:"v"`
		Kind      string `json:"kind"`
		ID        string `json:"id"`
		At        string `json:"at"`
		CallID    string `json:"call_id"`
		Principal string `json:"principal"`
		Name      string `json:"name"`
		Instance  string `json:"instance"`
	}
)

// Marshal encodes what the store made itself of cleaned text; that can't fail. Raw
// members stay as they are, byte for byte.
func Marshal(v any) []byte {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true), jsontext.PreserveRawStrings(true))
	if err != nil {
		panic("store: " + err.Error())
	}
	return b
}

// Stamp is a time in a record's body: RFC 3339 with microseconds, UTC.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000Z")
}

// Unstamp reverses Stamp.
func Unstamp(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, s)
}

// IDAt is the smallest UUIDv7 of a moment: ids made earlier sort before it.
func IDAt(t time.Time) string {
	var u uuid.UUID
	ms := uint64(max(t.UnixMilli(), 0))
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	u[6], u[8] = 0x70, 0x80
	return u.String()
}

// AgentOf finds the agent that an administrative event is about, "" if it's about none:
// the object "agent:ID", that of "agent.…" and "enroll.use", or the detail "agent_id" or "agent".
func AgentOf(ev fleet.AdminEvent) string {
	name, ok := strings.CutPrefix(ev.Object, "agent:")
	switch {
	case ok:
	case strings.HasPrefix(ev.Action, "agent."), ev.Action == "enroll.use":
		name = ev.Object
	default:
		name = ev.Detail["agent_id"] + ev.Detail["agent"] // an event has one of them
	}
	id, _ := fleet.ParseAgentID(name)
	return string(id)
}

package restapi

import (
	"context"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
	"github.com/drover-fleet/drover/server/internal/store/body"
)

// Store keeps agents, calls and the record: store.DB. Errors are *fleet.Error.
type Store interface {
	// SetAgent changes labels (nil: as they are) and description (nil: as it is).
	SetAgent(ctx context.Context, id fleet.AgentID, labels map[string]string, description *string, ev fleet.AdminEvent) error
	Calls(ctx context.Context, f store.CallFilter) (calls []fleet.Call, next string, err error)
	Records(ctx context.Context, f store.RecordFilter) (rows []store.Record, next string, err error)
	// RecordAdmin writes an administrative row of its own, durable when it returns.
	RecordAdmin(ctx context.Context, ev fleet.AdminEvent) error
	Ping(ctx context.Context) error
}

// AuditRow is one row of the record.
type AuditRow struct {
	ID        string         `json:"id"`
	At        string         `json:"at" format:"date-time" doc:"As it stands in the row: with six digits of a second's fraction, UTC."`
	Kind      string         `json:"kind" enum:"intent,sent,cancel,outcome,evidence,refusal,admin" doc:"sent: a queued call was sent. cancel: the end of an open call was asked for. evidence: what was learnt of a call whose outcome is outcome_unknown."`
	CallID    string         `json:"call_id,omitzero"`
	AgentID   string         `json:"agent_id,omitzero" doc:"In refusals as the caller gave it."`
	Principal string         `json:"principal,omitzero" doc:"Absent when unauthenticated."`
	Body      jsontext.Value `json:"body" doc:"The row itself, to read. null where what's kept isn't JSON: Drover wrote no such row."`
	Exact     string         `json:"exact" doc:"The row's exact bytes, as text: what hashes are checked over. Whatever decodes JSON and writes it anew may write body otherwise."`
	Leaf      string         `json:"leaf" doc:"SHA-256 over a byte 0x00 and then the row's exact bytes, in base64url without padding."`
}

type listAuditIn struct {
	Kind    string `query:"kind" enum:"intent,sent,cancel,outcome,evidence,refusal,admin" doc:"Only rows of this kind."`
	AgentID string `query:"agent_id" maxLength:"63" doc:"Only rows about this agent."`
	CallID  string `query:"call_id" maxLength:"64" doc:"Only rows about this call."`
	Limit   int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many."`
	Cursor  string `query:"cursor" maxLength:"200" doc:"next_cursor of the page before."`
}

type auditList struct {
	Body AuditList
}

// AuditList is a page of the record, the newest first.
type AuditList struct {
	Rows       []AuditRow `json:"rows"`
	NextCursor string     `json:"next_cursor,omitzero"`
}

func (a *API) listAudit(ctx context.Context, _ fleet.Principal, in *listAuditIn) (*auditList, error) {
	if err := fleet.CheckRowCursor(in.Cursor); err != nil {
		return nil, err
	}
	rows, next, err := a.Store.Records(ctx, store.RecordFilter{
		Kind: store.Kind(in.Kind), Agent: in.AgentID, CallID: fleet.CallID(in.CallID), Before: in.Cursor, Limit: in.Limit,
	})
	if err != nil {
		return nil, err
	}
	out := AuditList{Rows: []AuditRow{}, NextCursor: next}
	for _, r := range rows {
		row := AuditRow{
			ID: r.ID, At: body.Stamp(r.At), Kind: string(r.Kind), CallID: string(r.CallID), AgentID: r.Agent, Principal: r.Principal,
			Body: jsontext.Value(r.Body), Exact: strings.ToValidUTF8(string(r.Body), "\uFFFD"), Leaf: protocol.B64(r.Leaf),
		}
		if !row.Body.IsValid() { // changed by somebody: the others, and this one's leaf, are to be seen all the same
			row.Body = jsontext.Value("null")
		}
		out.Rows = append(out.Rows, row)
	}
	return &auditList{Body: out}, nil
}

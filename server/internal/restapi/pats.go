package restapi

import (
	"context"
	"net/http"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// PATs issues personal access tokens: authn.Service.
type PATs interface {
	CreatePAT(ctx context.Context, by fleet.Principal, n authn.NewPAT) (token string, pat store.PAT, err error)
	PATs(ctx context.Context) ([]store.PAT, error)
	RevokePAT(ctx context.Context, by fleet.Principal, id string) error
}

// Agents says which agents a grant names: exactly one of its members is given.
type Agents struct {
	All      bool              `json:"all,omitzero" doc:"Every agent, now and later."`
	IDs      []string          `json:"ids,omitzero" doc:"These agents."`
	Selector map[string]string `json:"selector,omitzero" doc:"Agents that have all of these labels, now and later."`
}

// Tools says which tools a grant names: exactly one of its members is given.
type Tools struct {
	All   bool     `json:"all,omitzero" doc:"Every tool, now and later."`
	Names []string `json:"names,omitzero" doc:"These tools; a group such as fs stands for all of its tools."`
}

// Grant is what a principal may do: agents × tools.
type Grant struct {
	Agents Agents `json:"agents"`
	Tools  Tools  `json:"tools"`
}

func grantOf(g fleet.Grant) Grant {
	out := Grant{Agents: Agents{All: g.Agents.All, Selector: g.Agents.Selector}, Tools: Tools{All: g.Tools.All, Names: g.Tools.Names}}
	for _, id := range g.Agents.IDs {
		out.Agents.IDs = append(out.Agents.IDs, string(id))
	}
	return out
}

func (g Grant) fleet() fleet.Grant {
	out := fleet.Grant{Agents: fleet.AgentSet{All: g.Agents.All, Selector: g.Agents.Selector}, Tools: fleet.ToolSet{All: g.Tools.All, Names: g.Tools.Names}}
	for _, id := range g.Agents.IDs {
		out.Agents.IDs = append(out.Agents.IDs, fleet.AgentID(id))
	}
	return out
}

// PAT is a personal access token, without its text.
type PAT struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	State      string    `json:"state" enum:"active,expired,revoked"`
	Admin      bool      `json:"admin" doc:"May manage PATs, enrolment, labels and removal, and read all calls."`
	Grant      Grant     `json:"grant"`
	CreatedAt  time.Time `json:"created_at"`
	CreatedBy  string    `json:"created_by"`
	ExpiresAt  time.Time `json:"expires_at,omitzero" doc:"Absent: never."`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	LastUsedAt time.Time `json:"last_used_at,omitzero" doc:"To the minute or so."`
}

func patOf(p store.PAT, now time.Time) PAT {
	out := PAT{
		ID: p.ID, Name: p.Name, State: "active", Admin: p.Admin, Grant: grantOf(p.Grant), CreatedAt: p.CreatedAt.UTC(), CreatedBy: p.CreatedBy,
		ExpiresAt: p.ExpiresAt.UTC(), RevokedAt: p.RevokedAt.UTC(), LastUsedAt: p.LastUsedAt.UTC(),
	}
	switch {
	case !p.RevokedAt.IsZero():
		out.State = "revoked"
	case !p.ExpiresAt.IsZero() && !now.Before(p.ExpiresAt):
		out.State = "expired"
	}
	return out
}

// PATRequest asks for a personal access token.
type PATRequest struct {
	Name         string `json:"name" minLength:"1" maxLength:"64" doc:"What people know it by: at most 64 bytes of UTF-8, all printable."`
	Grant        Grant  `json:"grant" doc:"Neither side has a default."`
	Admin        bool   `json:"admin,omitzero" doc:"Also lets it manage Drover."`
	TTLSeconds   *int64 `json:"ttl_seconds,omitzero" minimum:"1" maximum:"315360000" doc:"How long it lives; 90 days when absent."`
	NeverExpires bool   `json:"never_expires,omitzero" doc:"It lives until it's revoked."`
}

type createPATIn struct {
	Body PATRequest
}

// NewPAT is a token with its text.
type NewPAT struct {
	PAT
	Token string `json:"token" doc:"The token. It's shown this once."`
}

type createPATOut struct {
	Status int
	Body   NewPAT
}

// maxTTL bounds a life that isn't for ever: ten years, in seconds.
const maxTTL = 10 * 365 * 24 * 60 * 60

func (a *API) createPAT(ctx context.Context, who fleet.Principal, in *createPATIn) (*createPATOut, error) {
	b := in.Body
	n := authn.NewPAT{Name: b.Name, Grant: b.Grant.fleet(), Admin: b.Admin, TTL: time.Duration(value(b.TTLSeconds)) * time.Second}
	switch {
	case outside(b.TTLSeconds, 1, maxTTL):
		return nil, fleet.Errorf(protocol.CodeBadArgs, "ttl_seconds must be 1 to %d (ten years)", int64(maxTTL))
	case b.NeverExpires && b.TTLSeconds != nil:
		return nil, fleet.Errorf(protocol.CodeBadArgs, "give ttl_seconds or never_expires, not both")
	case b.NeverExpires:
		n.TTL = authn.Forever
	}
	token, pat, err := a.PATs.CreatePAT(ctx, who, n)
	if err != nil {
		return nil, err
	}
	return &createPATOut{Status: http.StatusCreated, Body: NewPAT{PAT: patOf(pat, time.Now()), Token: token}}, nil
}

type patList struct {
	Body PATList
}

// PATList is all tokens, the newest first.
type PATList struct {
	PATs []PAT `json:"pats"`
}

func (a *API) listPATs(ctx context.Context, _ fleet.Principal, _ *nothing) (*patList, error) {
	pats, err := a.PATs.PATs(ctx)
	if err != nil {
		return nil, err
	}
	out := PATList{PATs: []PAT{}}
	for _, p := range pats {
		out.PATs = append(out.PATs, patOf(p, time.Now()))
	}
	return &patList{Body: out}, nil
}

type patPath struct {
	PATID string `path:"pat_id" maxLength:"64" doc:"The token's id, as list-pats shows it."`
}

func (a *API) revokePAT(ctx context.Context, who fleet.Principal, in *patPath) (*nothing, error) {
	return &nothing{}, a.PATs.RevokePAT(ctx, who, in.PATID)
}

// Whoami is the principal behind a credential.
type Whoami struct {
	Principal string    `json:"principal" doc:"Unique and stable, such as pat:ID."`
	Kind      string    `json:"kind"`
	Name      string    `json:"name"`
	Admin     bool      `json:"admin"`
	Grant     Grant     `json:"grant"`
	ExpiresAt time.Time `json:"expires_at,omitzero" doc:"Absent: never."`
	Server    string    `json:"server_version"`
	Enroll    string    `json:"enroll_command,omitzero" doc:"For administrators: what makes an enrolment token on the server's machine, without --agent-id."`
}

type whoamiOut struct {
	Body Whoami
}

func (a *API) whoami(_ context.Context, who fleet.Principal, _ *nothing) (*whoamiOut, error) {
	me := Whoami{
		Principal: who.ID, Kind: string(who.Kind), Name: who.Name, Admin: who.Admin, Grant: grantOf(who.Grant),
		ExpiresAt: who.ExpiresAt.UTC(), Server: a.Version,
	}
	if who.Admin { // it names a folder of the server
		me.Enroll = a.EnrollCommand
	}
	return &whoamiOut{Body: me}, nil
}

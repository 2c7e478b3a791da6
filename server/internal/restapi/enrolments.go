package restapi

import (
	"context"
	"net/http"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Enrolment issues one-time tokens for hosts, and removes agents: enroll.Service.
type Enrolment interface {
	Create(ctx context.Context, by string, spec enroll.Spec) (text string, t *enroll.Token, err error)
	List(ctx context.Context) ([]enroll.Token, error)
	Revoke(ctx context.Context, by, id string) error
	RemoveAgent(ctx context.Context, by string, id fleet.AgentID) error
}

// EnrolmentInfo is an enrolment token, without its text.
type EnrolmentInfo struct {
	ID        string            `json:"id"`
	AgentID   string            `json:"agent_id" doc:"The agent that a host becomes with it."`
	State     string            `json:"state" enum:"open,used,revoked,expired"`
	Labels    map[string]string `json:"labels"`
	Replace   bool              `json:"replace" doc:"It gives an agent that exists a new key."`
	CreatedAt time.Time         `json:"created_at"`
	CreatedBy string            `json:"created_by"`
	ExpiresAt time.Time         `json:"expires_at"`
	UsedAt    time.Time         `json:"used_at,omitzero"`
	RevokedAt time.Time         `json:"revoked_at,omitzero"`
}

func enrolmentOf(t enroll.Token, now time.Time) EnrolmentInfo {
	return EnrolmentInfo{
		ID: t.ID, AgentID: string(t.Agent), State: t.State(now), Labels: t.Labels, Replace: t.Replace,
		CreatedAt: t.CreatedAt.UTC(), CreatedBy: t.CreatedBy, ExpiresAt: t.ExpiresAt.UTC(), UsedAt: t.UsedAt.UTC(), RevokedAt: t.RevokedAt.UTC(),
	}
}

// EnrolmentRequest asks for an enrolment token.
type EnrolmentRequest struct {
	AgentID    string            `json:"agent_id" doc:"The id that calls will name: a-z, 0-9 and '-', at most 63 characters."`
	Labels     map[string]string `json:"labels,omitzero" doc:"Labels that the agent gets."`
	TTLSeconds *int64            `json:"ttl_seconds,omitzero" minimum:"1" maximum:"2592000" doc:"How long it can be used; a day when absent."`
	Replace    bool              `json:"replace,omitzero" doc:"Give the agent of this id, which exists, a new key: its present one is void once this is used."`
}

type createEnrolmentIn struct {
	Body EnrolmentRequest
}

// NewEnrolment is an enrolment token with its text.
type NewEnrolment struct {
	EnrolmentInfo
	Token string `json:"token" doc:"The token. It's shown this once."`
}

type createEnrolmentOut struct {
	Status int
	Body   NewEnrolment
}

func (a *API) createEnrolment(ctx context.Context, who fleet.Principal, in *createEnrolmentIn) (*createEnrolmentOut, error) {
	b := in.Body
	if err := fleet.CheckLabels(b.Labels); err != nil {
		return nil, err
	}
	if outside(b.TTLSeconds, 1, int64(enroll.MaxTTL/time.Second)) {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "ttl_seconds is out of range: a token lives for at most %d days", int(enroll.MaxTTL.Hours()/24))
	}
	token, t, err := a.Enrolment.Create(ctx, who.ID, enroll.Spec{
		Agent: b.AgentID, Labels: b.Labels, TTL: time.Duration(value(b.TTLSeconds)) * time.Second, Replace: b.Replace,
	})
	if err != nil {
		return nil, err
	}
	return &createEnrolmentOut{Status: http.StatusCreated, Body: NewEnrolment{EnrolmentInfo: enrolmentOf(*t, time.Now()), Token: token}}, nil
}

type enrolmentList struct {
	Body EnrolmentList
}

// EnrolmentList is all enrolment tokens, the newest first.
type EnrolmentList struct {
	Enrolments []EnrolmentInfo `json:"enrolments"`
}

func (a *API) listEnrolments(ctx context.Context, _ fleet.Principal, _ *nothing) (*enrolmentList, error) {
	tokens, err := a.Enrolment.List(ctx)
	if err != nil {
		return nil, err
	}
	out := EnrolmentList{Enrolments: []EnrolmentInfo{}}
	for _, t := range tokens {
		out.Enrolments = append(out.Enrolments, enrolmentOf(t, time.Now()))
	}
	return &enrolmentList{Body: out}, nil
}

type enrolmentPath struct {
	EnrolmentID string `path:"enrolment_id" maxLength:"64" doc:"The token's id, as list-enrolments shows it."`
}

func (a *API) revokeEnrolment(ctx context.Context, who fleet.Principal, in *enrolmentPath) (*nothing, error) {
	return &nothing{}, a.Enrolment.Revoke(ctx, who.ID, in.EnrolmentID)
}

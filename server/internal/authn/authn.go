// Package authn says who is asking: it issues personal access tokens and turns a bearer
// token into a fleet.Principal.
package authn

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// TokenPrefix begins every personal access token, so that scanners find leaked ones.
const TokenPrefix = "drv_pat_"

// DefaultTTL is how long a token lives when nothing is said: 90 days.
const DefaultTTL = 90 * 24 * time.Hour

// Forever is the TTL of a token that doesn't expire.
const Forever time.Duration = -1

// Service issues and checks personal access tokens.
type Service struct {
	db *store.DB

	mu     sync.Mutex
	looked time.Time // when an unknown token last made the snapshot follow the database
}

// New makes a Service over the store.
func New(db *store.DB) *Service { return &Service{db: db} }

// NewPAT is what a new token is to be. Neither side of the grant has a default.
type NewPAT struct {
	Name  string
	Grant fleet.Grant
	Admin bool
	TTL   time.Duration // 0: DefaultTTL; Forever: never
}

// CreatePAT makes a token. The text is returned once; the store keeps its hash.
func (s *Service) CreatePAT(ctx context.Context, by fleet.Principal, n NewPAT) (token string, pat store.PAT, err error) {
	if err := n.validate(); err != nil {
		return "", store.PAT{}, err
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return "", store.PAT{}, fleet.Wrap(protocol.CodeInternal, err, "no randomness on the server")
	}
	token = TokenPrefix + protocol.B64(secret)
	now := time.Now().UTC()
	pat = store.PAT{
		ID: strings.ReplaceAll(uuid.Must(uuid.NewV7()).String(), "-", "")[8:], Name: n.Name, Hash: sha256.Sum256([]byte(token)),
		Admin: n.Admin, Grant: n.Grant, CreatedAt: now, CreatedBy: by.ID,
	}
	switch {
	case n.TTL == 0:
		pat.ExpiresAt = now.Add(DefaultTTL)
	case n.TTL > 0:
		pat.ExpiresAt = now.Add(n.TTL)
	}
	ev := fleet.AdminEvent{Principal: by.ID, Action: "pat.create", Object: "pat:" + pat.ID, At: now, Detail: map[string]string{
		"name": n.Name, "admin": boolText(n.Admin), "agents": AgentsText(n.Grant.Agents), "tools": ToolsText(n.Grant.Tools),
	}}
	if err := s.db.CreatePAT(ctx, pat, ev); err != nil {
		return "", store.PAT{}, err
	}
	return token, pat, nil
}

// PATs lists all tokens, the newest first, revoked and expired ones too.
func (s *Service) PATs(ctx context.Context) ([]store.PAT, error) { return s.db.PATs(ctx) }

// RevokePAT ends a token at once. An unknown id is not_found; a revoked one stays revoked.
func (s *Service) RevokePAT(ctx context.Context, by fleet.Principal, id string) error {
	id = strings.TrimPrefix(id, "pat:")
	return s.db.RevokePAT(ctx, id, fleet.AdminEvent{Principal: by.ID, Action: "pat.revoke", Object: "pat:" + id, At: time.Now().UTC()})
}

// errUnauthenticated is the one answer to every credential that doesn't count.
func errUnauthenticated() *fleet.Error {
	return fleet.Errorf(protocol.CodeUnauthenticated, "the personal access token that was given isn't valid: it's malformed, unknown, expired or revoked; an administrator makes another with: drover pat create")
}

// Token turns a token's text into its principal, or unauthenticated.
func (s *Service) Token(token string) (fleet.Principal, error) {
	if !strings.HasPrefix(token, TokenPrefix) || len(token) > 128 {
		return fleet.Principal{}, errUnauthenticated()
	}
	hash := sha256.Sum256([]byte(token))
	return s.judge(func(snap *store.Snapshot) *store.PAT { return snap.PATs[hash] })
}

// ByPAT is Token for one whose id, without "pat:", is known (a page's session): it's judged
// anew each time.
func (s *Service) ByPAT(id string) (fleet.Principal, error) {
	return s.judge(func(snap *store.Snapshot) *store.PAT {
		for _, p := range snap.PATs {
			if p.ID == id {
				return p
			}
		}
		return nil
	})
}

// judge gives the principal of a token, if there's one that counts.
func (s *Service) judge(find func(*store.Snapshot) *store.PAT) (fleet.Principal, error) {
	pat := find(s.db.Snapshot())
	if pat == nil && s.mayLook() && s.db.Refresh(context.Background()) == nil {
		pat = find(s.db.Snapshot()) // another process may have made it a moment ago
	}
	now := time.Now()
	if pat == nil || !pat.RevokedAt.IsZero() || (!pat.ExpiresAt.IsZero() && !now.Before(pat.ExpiresAt)) {
		return fleet.Principal{}, errUnauthenticated()
	}
	s.db.TouchPAT(pat.ID, now)
	return PrincipalOf(pat), nil
}

// mayLook limits how often unknown tokens make the server read the database: every 100 ms.
func (s *Service) mayLook() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) < 100*time.Millisecond {
		return false
	}
	s.looked = time.Now()
	return true
}

// Alive tells whether the credential behind a principal's id still counts. System
// principals always do.
func (s *Service) Alive(principal string) bool {
	id, isPAT := strings.CutPrefix(principal, "pat:")
	if !isPAT {
		return strings.HasPrefix(principal, "system:")
	}
	now := time.Now()
	for _, p := range s.db.Snapshot().PATs {
		if p.ID == id {
			return p.RevokedAt.IsZero() && (p.ExpiresAt.IsZero() || now.Before(p.ExpiresAt))
		}
	}
	return false
}

// ByID finds a principal by its id; false when its credential no longer counts.
func (s *Service) ByID(principal string) (fleet.Principal, bool) {
	if !s.Alive(principal) {
		return fleet.Principal{}, false
	}
	if name, ok := strings.CutPrefix(principal, "system:"); ok {
		return System(name), true
	}
	for _, p := range s.db.Snapshot().PATs {
		if "pat:"+p.ID == principal {
			return PrincipalOf(p), true
		}
	}
	return fleet.Principal{}, false
}

// PrincipalOf is the principal that a token stands for.
func PrincipalOf(p *store.PAT) fleet.Principal {
	return fleet.Principal{ID: "pat:" + p.ID, Kind: fleet.KindPAT, Name: p.Name, Admin: p.Admin, Grant: p.Grant, ExpiresAt: p.ExpiresAt}
}

// Bearer authenticates a request by its Authorization header alone. ok is false when the
// request has none, so that another kind of credential may be looked for.
func (s *Service) Bearer(r *http.Request) (who fleet.Principal, ok bool, err error) {
	h := r.Header.Values("Authorization")
	if len(h) == 0 {
		return fleet.Principal{}, false, nil
	}
	scheme, token, _ := strings.Cut(h[0], " ")
	if len(h) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return fleet.Principal{}, true, fleet.Errorf(protocol.CodeUnauthenticated, "what is needed is one personal access token, given as Authorization: Bearer %s…", TokenPrefix)
	}
	who, err = s.Token(strings.TrimSpace(token))
	return who, true, err
}

// System is the principal of what the server or a local administrator starts itself.
func System(name string) fleet.Principal {
	return fleet.Principal{ID: "system:" + name, Kind: fleet.KindSystem, Name: name, Admin: true}
}

func (n NewPAT) validate() error {
	bad := func(format string, args ...any) error { return fleet.Errorf(protocol.CodeBadArgs, format, args...) }
	if n.Name == "" || len(n.Name) > 64 || !utf8.ValidString(n.Name) || strings.ContainsFunc(n.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return bad("the token's name must be 1 to 64 bytes of printable text")
	}
	a := n.Grant.Agents
	given := 0
	for _, set := range []bool{a.All, len(a.IDs) > 0, len(a.Selector) > 0} {
		if set {
			given++
		}
	}
	if given != 1 {
		return bad("say which agents the token may reach, one of: all, a list of agent ids, a label selector; there is no default")
	}
	for _, id := range a.IDs {
		if _, ok := fleet.ParseAgentID(string(id)); !ok {
			return bad("an agent id in the grant is malformed: ids are a-z, 0-9 and '-', at most 63 characters")
		}
	}
	for k, v := range a.Selector {
		if !fleet.ValidLabel(k, v) {
			return bad("a label in the selector is malformed: keys are a-z, 0-9, '.', '_', '-', '/', at most 63 characters; values at most 128 printable ones")
		}
	}
	t := n.Grant.Tools
	if t.All == (len(t.Names) > 0) {
		return bad("say which tools the token may use: all, or a list of groups and names (%s); there is no default", strings.Join(toolWords(), ", "))
	}
	for _, name := range t.Names {
		if !slices.Contains(toolWords(), name) {
			return bad("a tool in the grant is unknown; groups and names are: %s", strings.Join(toolWords(), ", "))
		}
	}
	if n.TTL < 0 && n.TTL != Forever {
		return bad("the token's life must be longer than nothing")
	}
	return nil
}

// toolWords lists what a grant may name: groups, then tools.
func toolWords() []string {
	var groups, names []string
	for _, d := range capability.All() {
		names = append(names, d.Name)
		if !slices.Contains(groups, d.Group()) {
			groups = append(groups, d.Group())
		}
	}
	return append(groups, names...)
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

// AgentsText writes an agent set as the CLI reads it.
func AgentsText(a fleet.AgentSet) string {
	var parts []string
	if a.All {
		return "all"
	}
	for _, id := range a.IDs {
		parts = append(parts, string(id))
	}
	keys := make([]string, 0, len(a.Selector))
	for k := range a.Selector {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		parts = append(parts, k+"="+a.Selector[k])
	}
	return strings.Join(parts, ",")
}

// ToolsText writes a tool set as the CLI reads it.
func ToolsText(t fleet.ToolSet) string {
	if t.All {
		return "all"
	}
	return strings.Join(t.Names, ",")
}

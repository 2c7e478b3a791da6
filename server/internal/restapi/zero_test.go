package restapi

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// zero is the zero value of a member, and whether its schema allows it; "" for no scalar.
func zero(s *huma.Schema) (text string, allowed bool) {
	switch s.Type {
	case "integer", "number":
		return "0", s.Minimum == nil || *s.Minimum <= 0
	case "string":
		return `""`, (s.MinLength == nil || *s.MinLength == 0) && (len(s.Enum) == 0 || slices.Contains(s.Enum, any("")))
	case "boolean":
		return "false", true
	default:
		return "", true
	}
}

// What is given in a body isn't taken for absent because it's 0 or "": it's refused where its
// description doesn't allow it, and means what that says otherwise.
func TestZeroIsNotAbsent(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	bodies := map[string]struct{ method, path, body string }{
		"CallRequest":      {"POST", "/calls", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"}}`},
		"AgentChange":      {"PATCH", "/agents/web-01", `{}`},
		"PATRequest":       {"POST", "/pats", `{"name":"x","grant":{"agents":{"all":true},"tools":{"all":true}}}`},
		"EnrolmentRequest": {"POST", "/enrolments", `{"agent_id":"new-01"}`},
	}
	looked := 0
	for name, s := range document(t).huma.OpenAPI().Components.Schemas.Map() {
		c, isBody := bodies[name]
		if !isBody {
			continue
		}
		for member, p := range s.Properties {
			text, allowed := zero(p)
			if text == "" || slices.Contains(s.Required, member) {
				continue
			}
			looked++
			body := map[string]any{}
			if err := json.Unmarshal([]byte(c.body), &body); err != nil {
				t.Fatal(err)
			}
			var given any
			if err := json.Unmarshal([]byte(text), &given); err != nil {
				t.Fatal(err)
			}
			body[member] = given
			b, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			a := w.do(c.method, Prefix+c.path, admin, string(b))
			if allowed != (a.status < 300) || !allowed && a.code() != "bad_args" {
				t.Errorf("%s.%s %s (allowed: %v): HTTP %d %s", name, member, text, allowed, a.status, a.body)
			}
		}
	}
	if looked < 8 {
		t.Errorf("only %d members were looked at", looked)
	}
}

// wait_seconds 0 is answered with the open call at once, as it is of a call that's asked for.
func TestWaitForNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	w.agent("down-01", nil)
	w.hosts.set("down-01", false, false)
	pat := w.pat("p", false, everyAgent, everyTool)
	goOn := make(chan struct{})
	w.hosts.answer = func(ctx context.Context, req *protocol.Request) *protocol.Response {
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Result: []byte(processOK)}
	}
	for agent, more := range map[string]string{"web-01": "", "down-01": `,"queue_for_seconds":60`} {
		began := time.Now()
		a := w.do("POST", Prefix+"/calls", pat, fmt.Sprintf(`{"agent_id":%q,"tool":"shell_exec","args":{"command":"id"},"wait_seconds":0%s}`, agent, more))
		c := decode[Call](t, a)
		if took := time.Since(began); a.status != http.StatusAccepted || fleet.State(c.State).Final() || c.CallID == "" || took > 25*time.Second {
			t.Fatalf("%s: after %v HTTP %d %s", agent, took, a.status, a.body)
		}
		a = w.do("GET", Prefix+"/calls/"+c.CallID+"?wait_seconds=0", pat, "")
		if took := time.Since(began); a.status != http.StatusAccepted || took > 25*time.Second {
			t.Errorf("%s: after %v HTTP %d %s", agent, took, a.status, a.body)
		}
		if agent == "web-01" {
			close(goOn)
			if a = w.do("GET", Prefix+"/calls/"+c.CallID+"?wait_seconds=30", pat, ""); decode[Call](t, a).State != string(fleet.Succeeded) {
				t.Errorf("HTTP %d %s", a.status, a.body)
			}
		}
	}
}

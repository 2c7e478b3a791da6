package restapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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

// atBounds are values at each bound of a member and one beyond, and whether its schema takes them.
func atBounds(s *huma.Schema) map[string]bool {
	out := map[string]bool{}
	if s.Minimum != nil {
		n := int64(*s.Minimum)
		out[fmt.Sprint(n)], out[fmt.Sprint(n-1)] = true, false
	}
	if s.Maximum != nil {
		n := int64(*s.Maximum)
		out[fmt.Sprint(n)], out[fmt.Sprint(n+1)] = true, false
	}
	if s.MinLength != nil && *s.MinLength > 0 {
		out[strings.Repeat("a", *s.MinLength)], out[strings.Repeat("a", *s.MinLength-1)] = true, false
	}
	if s.MaxLength != nil {
		out[strings.Repeat("a", *s.MaxLength)], out[strings.Repeat("a", *s.MaxLength+1)] = true, false
	}
	for _, v := range s.Enum {
		out[fmt.Sprint(v)], out["no such"] = true, false
	}
	return out
}

// What the description of a body's member, or of a query's parameter, takes at a bound is taken,
// and what is one beyond it is bad_args. Where bytes count, text that has too many is, too.
func TestBoundsAreTheDescribed(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	bodies := map[string]struct{ method, path, body string }{
		"CallRequest":      {"POST", "/calls", `{"agent_id":"web-01","tool":"shell_exec","args":{"command":"id"},"wait_seconds":1}`},
		"AgentChange":      {"PATCH", "/agents/web-01", `{}`},
		"PATRequest":       {"POST", "/pats", `{"name":"x","grant":{"agents":{"all":true},"tools":{"all":true}}}`},
		"EnrolmentRequest": {"POST", "/enrolments", `{"agent_id":"new-01"}`},
	}
	looked := 0
	api := document(t).huma.OpenAPI()
	for name, c := range bodies {
		for member, p := range api.Components.Schemas.Map()[name].Properties {
			values := map[string]bool{}
			for v, taken := range atBounds(p) {
				if p.Type == "string" {
					if taken && member == "tool" {
						continue // it's unknown
					}
					v = `"` + v + `"`
				} else if taken {
					values[v+".0"] = true
				}
				values[v] = taken
			}
			if p.MaxLength != nil {
				values[`"`+strings.Repeat("é", *p.MaxLength/2)+`"`], values[`"`+strings.Repeat("é", *p.MaxLength/2+1)+`"`] = member != "tool", false
			}
			for v, taken := range values {
				body := map[string]jsontext.Value{}
				if err := json.Unmarshal([]byte(c.body), &body); err != nil {
					t.Fatal(err)
				}
				body[member] = jsontext.Value(v)
				b, err := json.Marshal(body)
				if err != nil {
					t.Fatal(err)
				}
				a := w.do(c.method, Prefix+c.path, admin, string(b))
				if taken != (a.status < 300) || !taken && a.status/100 != 4 {
					t.Errorf("%s.%s %.80s (taken: %v): HTTP %d %s", name, member, v, taken, a.status, a.body)
				}
				looked++
			}
		}
	}
	for _, list := range []string{"/calls", "/audit", "/agents"} {
		for _, p := range api.Paths[list].Get.Parameters {
			if p.Name == "cursor" || p.Name == "labels" {
				continue // they have a form
			}
			for v, taken := range atBounds(p.Schema) {
				if v == "" {
					taken = false
				}
				a := w.do("GET", Prefix+list+"?"+p.Name+"="+url.QueryEscape(v), admin, "")
				if taken != (a.status == http.StatusOK) || !taken && a.code() != "bad_args" {
					t.Errorf("%s?%s=%.80s (taken: %v): HTTP %d %s", list, p.Name, v, taken, a.status, a.body)
				}
				looked++
			}
		}
	}
	if looked < 80 {
		t.Errorf("only %d values were looked at", looked)
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

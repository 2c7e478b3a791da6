package mcpapi_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/tests/harness"
)

// An argument that is given isn't taken for absent because it's 0 or "" (or false): where a
// tool's schema doesn't allow that, it's refused, and where it does, the tool takes it.
func TestZeroIsNotAbsent(t *testing.T) {
	f := harness.New(t, harness.Options{})
	connect(t, f, "web-01")
	online(t, f, "web-01")
	s := f.MCP(f.Admin, harness.Modern, nil)
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	refused, taken := 0, 0
	for _, tool := range list.Tools {
		var in jsonschema.Schema
		b, err := json.Marshal(tool.InputSchema)
		if err == nil {
			err = json.Unmarshal(b, &in)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := in.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, p := range in.Properties {
			zero, scalar := map[string]any{"integer": 0, "number": 0, "string": "", "boolean": false}[p.Type]
			if !scalar || slices.Contains(in.Required, name) {
				continue
			}
			args := map[string]any{}
			def := capability.Find(tool.Name)
			if def != nil {
				if err := json.Unmarshal([]byte(def.Example), &args); err != nil {
					t.Fatal(err)
				}
				args["agent_id"] = "web-01"
			} else if tool.Name == "call_result" {
				args["call_id"] = "01929292-0000-7000-8000-000000000001"
			}
			args[name] = zero
			allowed := r.Validate(args) == nil
			if def != nil && allowed { // the host has it then
				continue
			}
			res := call(t, s, tool.Name, args)
			if bad := strings.HasPrefix(text(t, res), "bad_args"); bad == allowed {
				t.Errorf("%s %v (allowed: %v): %s", tool.Name, args, allowed, text(t, res))
			}
			if allowed {
				taken++
			} else {
				refused++
			}
		}
	}
	if refused < 8 || taken < 3 {
		t.Errorf("only %d were refused and %d taken", refused, taken)
	}
}

// What the schema of one of the server's own tools takes at a bound is taken, and what is one
// beyond it is bad_args; an integer in each of its forms.
func TestOwnToolsCheckWhatTheirSchemasSay(t *testing.T) {
	f := harness.New(t, harness.Options{})
	s := f.MCP(f.Admin, harness.Modern, nil)
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for _, tool := range list.Tools {
		if capability.Find(tool.Name) != nil {
			continue
		}
		var in jsonschema.Schema
		b, err := json.Marshal(tool.InputSchema)
		if err == nil {
			err = json.Unmarshal(b, &in)
		}
		if err != nil {
			t.Fatal(err)
		}
		base := map[string]any{}
		if slices.Contains(in.Required, "call_id") {
			base["call_id"] = "01929292-0000-7000-8000-000000000001"
		}
		for name, p := range in.Properties {
			for v, taken := range atBounds(p) {
				args := maps.Clone(base)
				args[name] = json.RawMessage(v)
				res := call(t, s, tool.Name, args)
				if bad := strings.HasPrefix(text(t, res), "bad_args"); bad == taken {
					t.Errorf("%s %s=%.80s (taken: %v): %s", tool.Name, name, v, taken, text(t, res))
				}
				looked++
			}
		}
	}
	if looked < 25 {
		t.Errorf("only %d values were looked at", looked)
	}
}

// atBounds are values at each bound of a member and one beyond, and whether its schema takes them.
func atBounds(p *jsonschema.Schema) map[string]bool {
	out := map[string]bool{}
	text := func(c string, n int) string { return `"` + strings.Repeat(c, n) + `"` }
	if p.Minimum != nil && p.Maximum != nil {
		low, high := int64(*p.Minimum), int64(*p.Maximum)
		out[fmt.Sprint(low)], out[fmt.Sprint(low)+".0"], out[fmt.Sprint(low-1)], out[fmt.Sprint(low)+".5"] = true, true, false, false
		out[fmt.Sprint(high)], out[fmt.Sprint(high)+"0e-1"], out[fmt.Sprint(high+1)] = true, true, false
	}
	if p.MaxLength != nil {
		out[text("a", *p.MaxLength)], out[text("a", *p.MaxLength+1)] = true, false
	}
	if p.MinLength != nil {
		out[text("a", *p.MinLength-1)] = false
	}
	for _, v := range p.Enum {
		out[fmt.Sprintf("%q", v)], out[`"no such"`] = true, false
	}
	return out
}

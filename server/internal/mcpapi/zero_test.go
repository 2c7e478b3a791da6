package mcpapi_test

import (
	"encoding/json"
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

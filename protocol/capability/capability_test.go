package capability

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/drover-fleet/drover/protocol"
)

func TestDefinitionsKeepTheRules(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range All() {
		if seen[d.Name] {
			t.Errorf("%s stands twice", d.Name)
		}
		seen[d.Name] = true
		if d.Title == "" || d.Doc == "" || len(d.Doc) >= 2048 {
			t.Errorf("%s: title or doc missing, or doc over 2 KB", d.Name)
		}
		for what, s := range map[string]any{"in": d.In, "out": d.Out} {
			b, err := json.Marshal(s)
			if err != nil || len(b) >= 16384 {
				t.Errorf("%s: %s schema: %d bytes, %v", d.Name, what, len(b), err)
			}
			if strings.Contains(string(b), `"null"`) {
				t.Errorf("%s: %s schema allows null: %s", d.Name, what, b)
			}
		}
		if d.In.Type != "object" || d.Out.Type != "object" {
			t.Errorf("%s: schemas must be objects", d.Name)
		}
		for name, p := range d.In.Properties {
			if p.Description == "" || p.Type == "" {
				t.Errorf("%s: argument %s has no description or type", d.Name, name)
			}
		}
		for _, name := range d.Redact {
			if d.In.Properties[name] == nil {
				t.Errorf("%s: redacts %s, which isn't an argument", d.Name, name)
			}
		}
	}
}

func TestCheckNamesTheMemberAndNoValue(t *testing.T) {
	for args, want := range map[string]string{
		`{"command":"s3cret","timeout_seconds":0}`:        `"timeout_seconds" of shell_exec must be an integer, at least 1, at most 86400`,
		`{"command":"s3cret","timeout_seconds":"s3cret"}`: `"timeout_seconds"`,
		`{"command":"s3cret","timeout_seconds":1.5}`:      `"timeout_seconds"`,
		`{"Command":"s3cret"}`:                            `no argument "Command"`,
		`{"command":null}`:                                `"command"`,
		`{"command":"a","command":"s3cret"}`:              `twice`,
		`{"argv":[]}`:                                     `at least 1 items`,
		`{"argv":["s3cret",1]}`:                           `array of strings`,
		`{"env":{"A":1}}`:                                 `object of strings`,
		`["s3cret"]`:                                      `must be a JSON object`,
		`{"command":"s3cret"`:                             `not valid JSON`,
		`{"timeout_seconds":9007199254740993}`:            `out of range`,
	} {
		err := ShellExec.Check([]byte(args))
		var pe *protocol.Error
		if !errors.As(err, &pe) || pe.Code != protocol.CodeBadArgs || !strings.Contains(pe.Message, want) {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: repeats a value: %v", args, err)
		}
	}
	if err := FSRead.Check([]byte(`{}`)); err == nil || !strings.Contains(err.Error(), `needs the argument "path"`) {
		t.Errorf("missing path: %v", err)
	}
	if err := FSRead.Check([]byte(`{"path":"/a","unit":"words"}`)); err == nil || !strings.Contains(err.Error(), "one of lines, bytes") {
		t.Errorf("enum: %v", err)
	}
}

func TestSince(t *testing.T) {
	type in struct {
		A string `json:"a,omitempty" jsonschema:"a"`
		B string `json:"b,omitempty" jsonschema:"b" since:"2"`
	}
	d := Define[in, struct{}](Spec{Name: "test_since", Version: 2, Example: `{}`})
	if m := d.Since([]byte(`{"a":"x","b":"y"}`), 1); m != "b" {
		t.Errorf("got %q", m)
	}
	if m := d.Since([]byte(`{"a":"x","b":"y"}`), 2); m != "" {
		t.Errorf("got %q", m)
	}
}

// TestNormalizeKeepsTheSchema: what an agent says is a result is one, or an error.
func TestNormalizeKeepsTheSchema(t *testing.T) {
	const process = `{"exit_code":0,"stdout":"","stderr":"","stdout_bytes":0,"stderr_bytes":0,"duration_ms":1`
	const read = `{"path":"/a","size":1,"unit":"bytes","offset":0,"byte_offset":0,"modified":"x"`
	for _, c := range []struct {
		d   *Definition
		doc string
		ok  bool
	}{
		{ShellExec.Definition, process + `}`, true},
		{ShellExec.Definition, process + `,"of_tomorrow":[1]}`, true},
		{ShellExec.Definition, process + `,"pid":-1}`, false},
		{ShellExec.Definition, `null`, false}, {ShellExec.Definition, `{}`, false}, {ShellExec.Definition, `[]`, false}, {ShellExec.Definition, `"x"`, false},
		{ShellExec.Definition, strings.Replace(process, `"stdout":""`, `"stdout":null`, 1) + `}`, false},
		{ShellExec.Definition, strings.Replace(process, `"exit_code":0`, `"exit_code":-2`, 1) + `}`, false},
		{FSList.Definition, `{"path":"/","entries":[null],"total":1}`, false},
		{FSList.Definition, `{"path":"/","entries":[{"name":"a","path":"/a","type":"file","size":-1,"mode":"0644","modified":"x"}],"total":1}`, false},
		{FSStat.Definition, `{"name":"a","path":"/a","type":"file","size":1,"mode":"0644","modified":"x"}`, true},
		{FSStat.Definition, `{"path":"/a","type":"file","size":1,"mode":"0644","modified":"x"}`, false},
		{FSRead.Definition, read + `,"kind":"text","text":"x"}`, true},
		{FSRead.Definition, read + `,"kind":"binary","data":"eA=="}`, true},
		{FSRead.Definition, read + `,"kind":"binary","data":"!!"}`, false},
		{FSRead.Definition, read + `,"kind":"film"}`, false},
		{FSRead.Definition, strings.Replace(read, `"offset":0`, `"offset":-9`, 1) + `,"kind":"text"}`, true}, // lines from the end
		{FSRead.Definition, strings.Replace(read, `"byte_offset":0`, `"byte_offset":-9`, 1) + `,"kind":"text"}`, false},
	} {
		if _, err := c.d.Normalize([]byte(c.doc)); (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.d.Name, c.doc, err)
		}
	}
}

// TestAbsentMembersStayAway: what a result needn't have, and has no value for, isn't in it: a
// next_offset of 0 would have a reader begin again. It's so of what an older agent sends, too,
// which wrote these as 0 and false.
func TestAbsentMembersStayAway(t *testing.T) {
	said := map[string]bool{"exit_code": true} // 0 is an exit code; the schema says when it's absent
	for _, d := range All() {
		doc, looked := zeroOf(d.Out), 0
		doc["kind"] = "text" // of fs_read, which Check wants; others drop it
		b, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		out, err := d.Normalize(b)
		if err != nil {
			t.Fatalf("%s: %s: %v", d.Name, b, err)
		}
		var got map[string]any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatal(err)
		}
		var look func(s *jsonschema.Schema, v any)
		look = func(s *jsonschema.Schema, v any) {
			switch v := v.(type) {
			case []any:
				for _, item := range v {
					look(s.Items, item)
				}
			case map[string]any:
				for name, p := range s.Properties {
					has, there := v[name]
					if looked++; there && !slices.Contains(s.Required, name) && !said[name] {
						t.Errorf("%s: %s has nothing to say, and is sent as %v", d.Name, name, has)
					}
					if !there && slices.Contains(s.Required, name) {
						t.Errorf("%s: %s is required, and not sent", d.Name, name)
					}
					look(p, has)
				}
			}
		}
		if look(d.Out, got); looked < len(d.Out.Properties) {
			t.Errorf("%s: only %d members were looked at", d.Name, looked)
		}
	}
}

// zeroOf is a result whose members are all there and all empty, with one item in each list that
// must be there.
func zeroOf(s *jsonschema.Schema) map[string]any {
	out := map[string]any{}
	for name, p := range s.Properties {
		switch p.Type {
		case "string":
			out[name] = ""
		case "integer", "number":
			out[name] = 0
		case "boolean":
			out[name] = false
		case "object":
			out[name] = zeroOf(p)
		case "array":
			list := []any{}
			if p.Items.Type == "object" && slices.Contains(s.Required, name) {
				list = append(list, zeroOf(p.Items))
			}
			out[name] = list
		}
	}
	return out
}

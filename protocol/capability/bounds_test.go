package capability

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"
)

// atBounds are values of a member at each of its bounds, and one beyond each: as JSON, and
// whether its schema takes them.
func atBounds(p *jsonschema.Schema) map[string]bool {
	out := map[string]bool{}
	text := func(n int) string { return `"` + strings.Repeat("a", n) + `"` }
	if p.Minimum != nil {
		low := int64(*p.Minimum)
		out[fmt.Sprint(low)], out[fmt.Sprint(low)+".0"], out[fmt.Sprint(low-1)], out[fmt.Sprint(low)+".5"] = true, true, false, false
	}
	if p.Maximum != nil {
		high := int64(*p.Maximum)
		out[fmt.Sprint(high)], out[fmt.Sprint(high)+"0e-1"], out[fmt.Sprint(high+1)] = true, true, false
	}
	if p.MinLength != nil && *p.MinLength > 0 {
		out[text(*p.MinLength)], out[text(*p.MinLength-1)] = true, false
	}
	if p.MaxLength != nil {
		out[text(*p.MaxLength)], out[text(*p.MaxLength+1)] = true, false
		// Characters count, as long as all arguments together aren't too large.
		out[`"`+strings.Repeat("é", *p.MaxLength)+`"`] = 2**p.MaxLength < MaxArgs
	}
	if p.MinItems != nil {
		out[`["a"]`], out[`[]`] = true, false
	}
	if p.MaxItems != nil {
		out["["+strings.Repeat(`"a",`, *p.MaxItems-1)+`"a"]`] = true
		out["["+strings.Repeat(`"a",`, *p.MaxItems)+`"a"]`] = false
	}
	if p.Enum != nil {
		out = map[string]bool{`"no such"`: false, `""`: false}
		for _, v := range p.Enum {
			out[fmt.Sprintf("%q", v)] = true
		}
	}
	return out
}

// TestChecksAreTheSchemas: of every member of every tool, what its schema takes at a bound is taken,
// and what is one beyond it isn't; by the server's check, and by the agent's, which decodes.
func TestChecksAreTheSchemas(t *testing.T) {
	looked := 0
	for _, d := range All() {
		var example map[string]any
		if err := json.Unmarshal([]byte(d.Example), &example); err != nil {
			t.Fatal(err)
		}
		for name, p := range d.In.Properties {
			for v, taken := range atBounds(p) {
				args := maps.Clone(example)
				delete(args, name)
				b, err := json.Marshal(args)
				if err != nil {
					t.Fatal(err)
				}
				sep := ","
				if len(args) == 0 {
					sep = ""
				}
				doc := append(b[:len(b)-1], sep+`"`+name+`":`+v+`}`...)
				own := d.CheckOwn(doc)
				if err := d.Check(doc); (err == nil) != taken || (own == nil) != taken {
					t.Errorf("%s.%s = %.60s (taken: %v): %v, %v", d.Name, name, v, taken, err, own)
				}
				looked++
			}
		}
		for _, name := range d.In.Required {
			args := maps.Clone(example)
			delete(args, name)
			b, err := json.Marshal(args)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Check(b); err == nil {
				t.Errorf("%s takes arguments without %s", d.Name, name)
			}
		}
	}
	if looked < 200 {
		t.Errorf("only %d values were looked at", looked)
	}
}

// What the server alone gives is offered to nobody, and taken from nobody else.
func TestOwnMembers(t *testing.T) {
	d := JobStop.Definition
	if d.In.Properties["principal"] != nil || !slices.Contains(d.In.Required, "job_id") || slices.Contains(d.In.PropertyOrder, "principal") {
		t.Errorf("offered: %v, required %v", d.In.PropertyOrder, d.In.Required)
	}
	for args, want := range map[string][2]bool{
		`{"job_id":"x"}`: {true, true}, `{"principal":"pat:1"}`: {false, true}, `{"principal":"pat:1","grace_seconds":2}`: {false, true}, `{"job_id":"x","principal":"pat:1"}`: {false, true},
		`{"job_id":""}`: {false, false}, `{"principal":7}`: {false, false}, `{"nobody":1}`: {false, false},
	} {
		if got := [2]bool{d.Check([]byte(args)) == nil, d.CheckOwn([]byte(args)) == nil}; got != want {
			t.Errorf("%s: a client, the server: %v, want %v", args, got, want)
		}
		if _, err := JobStop.Decode([]byte(args)); (err == nil) != want[1] {
			t.Errorf("%s: the agent: %v", args, err)
		}
	}
}

// An integer has the value that it's written for, in each form; the bytes aren't touched.
func TestIntegralValues(t *testing.T) {
	in, err := ShellExec.Decode([]byte(`{"command":"id","timeout_seconds":1e1,"max_output":2000.0}`))
	if err != nil || in.TimeoutSeconds != 10 || in.MaxOutput != 2000 {
		t.Errorf("%+v, %v", in, err)
	}
	stop, err := JobStop.Decode([]byte(`{"job_id":"x","grace_seconds":50e-1}`))
	if err != nil || stop.GraceSeconds == nil || *stop.GraceSeconds != 5 {
		t.Errorf("%+v, %v", stop, err)
	}
	for _, bad := range []string{"1.5", "10.0000000000000000001", "1e-1", `"10"`, "9007199254740993.0"} {
		if err := ShellExec.Check([]byte(`{"command":"id","timeout_seconds":` + bad + `}`)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

package capability

import (
	"encoding/json"
	"testing"

	"github.com/drover-fleet/drover/protocol/strict"
)

// values are what the members of arguments are given in turn.
var values = []string{
	`"/"`, `""`, `"x"`, `"\u0061"`, `"\n"`, `"ää"`, `"💩"`, `0`, `1`, `-1`, `5`, `1000`, `999`, `86400`, `86401`, `1048576`, `1048577`, `1.0`, `1e3`, `1.5`,
	`9007199254740993`, `true`, `false`, `null`, `[]`, `["a"]`, `["a",1]`, `{}`, `{"a":"b"}`, `{"a":1}`, `"lines"`, `"bytes"`, `"text"`, `"base64"`,
}

// The quick way never vouches for what the validator refuses, and it vouches for the
// ordinary calls that it's there for.
func TestQuickAgreesWithTheValidator(t *testing.T) {
	for _, d := range All() {
		if !d.quick.fits([]byte(d.Example)) {
			t.Errorf("%s: the example goes the long way", d.Name)
		}
		var example map[string]json.RawMessage
		if err := json.Unmarshal([]byte(d.Example), &example); err != nil {
			t.Fatal(err)
		}
		for name := range d.In.Properties {
			for _, v := range values {
				with := map[string]json.RawMessage{}
				for k, have := range example {
					with[k] = have
				}
				with[name] = json.RawMessage(v)
				agree(t, d, with)
			}
			without := map[string]json.RawMessage{}
			for k, have := range example {
				if k != name {
					without[k] = have
				}
			}
			agree(t, d, without)
		}
		agree(t, d, map[string]json.RawMessage{"no_such": json.RawMessage(`1`)})
	}
	for _, args := range []string{`[]`, `null`, `"x"`, `{"p\u0061th":"/"}`} {
		if FSStat.quick.fits([]byte(args)) {
			t.Errorf("fs_stat takes %s", args)
		}
	}
}

func agree(t *testing.T, d *Definition, args map[string]json.RawMessage) {
	t.Helper()
	b, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	if strict.Check(b, strict.Limits{Numbers: true}) != nil {
		return // it never comes to either
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	if err := d.check.Validate(m); err != nil && d.quick.fits(b) {
		t.Errorf("%s: the quick way takes %s, the validator says %v", d.Name, b, err)
	}
}

func BenchmarkCheck(b *testing.B) {
	args := []byte(`{"path":"/etc/hosts"}`)
	for b.Loop() {
		if err := FSStat.Check(args); err != nil {
			b.Fatal(err)
		}
	}
}

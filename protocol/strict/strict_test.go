package strict

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

type inner struct {
	N int `json:"n"`
}

type outer struct {
	A    string            `json:"a"`
	B    *inner            `json:"b,omitempty"`
	L    []inner           `json:"l,omitempty"`
	M    map[string]string `json:"m,omitempty"`
	Raw  jsontext.Value    `json:"raw,omitempty"`
	Flag bool              `json:"flag,omitzero"`
}

func TestUnmarshal(t *testing.T) {
	deep := strings.Repeat("[", 65) + strings.Repeat("]", 65)
	for _, c := range []struct {
		name, doc string
		want      Kind // "" is: accepted
		path      string
	}{
		{"plain", `{"a":"x"}`, "", ""},
		{"all", ` {"a":"x","b":{"n":1},"l":[{"n":2}],"m":{"k":"v"},"raw":{"x":null,"y":[1]},"flag":true} `, "", ""},
		{"raw null", `{"a":"x","raw":null}`, "", ""},
		{"missing", `{}`, Missing, "/a"},
		{"missing inside", `{"a":"x","b":{}}`, Missing, "/b/n"},
		{"missing in list", `{"a":"x","l":[{"n":1},{}]}`, Missing, "/l/1/n"},
		{"unknown", `{"a":"x","zz":1}`, Unknown, "/zz"},
		{"other case", `{"A":"x"}`, Unknown, "/A"},
		{"unknown inside", `{"a":"x","b":{"n":1,"N":2}}`, Unknown, "/b/N"},
		{"twice", `{"a":"x","a":"y"}`, Duplicate, "/a"},
		{"twice by escape", `{"a":"x","\u0061":"y"}`, Duplicate, "/a"},
		{"twice in raw", `{"a":"x","raw":{"k":{"q":1,"q":2}}}`, Duplicate, "/raw/k/q"},
		{"null", `{"a":null}`, Null, "/a"},
		{"null in list", `{"a":"x","l":[null]}`, Null, ""},
		{"null in map", `{"a":"x","m":{"k":null}}`, Null, ""},
		{"null itself", `null`, Null, ""},
		{"type", `{"a":1}`, Type, "/a"},
		{"type of object", `{"a":"x","b":[]}`, Type, ""},
		{"fraction", `{"a":"x","b":{"n":1.5}}`, Type, "/b/n"},
		{"array", `[]`, Type, ""},
		{"trailing", `{"a":"x"} {}`, Trailing, ""},
		{"trailing brace", `{"a":"x"}}`, Trailing, ""},
		{"deep", `{"a":"x","raw":` + deep + `}`, Depth, ""},
		{"cut", `{"a":"x"`, Syntax, ""},
		{"empty", ``, Syntax, ""},
		{"bad utf8", "{\"a\":\"\xff\"}", Syntax, ""},
		{"lone surrogate", `{"a":"\ud800"}`, Syntax, ""},
		{"large", `{"a":"` + strings.Repeat("x", 4096) + `"}`, Size, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v outer
			err := Unmarshal([]byte(c.doc), &v, Limits{MaxBytes: 4096})
			if c.want == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			var se *Error
			if !errors.As(err, &se) || se.Kind != c.want {
				t.Fatalf("got %v, want kind %s", err, c.want)
			}
			if c.path != "" && se.Path != c.path {
				t.Errorf("path %q, want %q", se.Path, c.path)
			}
		})
	}
}

func TestCheckNumbers(t *testing.T) {
	for doc, ok := range map[string]bool{
		`9007199254740992`: true, `9007199254740993`: false, `-9007199254740993`: false, `1e400`: false,
		`1.5`: true, `{"a":[1,2,12345678901234567890]}`: false, `1e16`: false, `0.1e-5`: true,
	} {
		err := Check([]byte(doc), Limits{Numbers: true})
		if (err == nil) != ok {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func TestErrorsHoldNoValues(t *testing.T) {
	for _, doc := range []string{`{"a":{"b":"s3cret"}}`, `{"a":"x","b":"s3cret"}`, `{"a":"s3cret"`, `{"a":"s3cret"} s3cret`} {
		var v outer
		if err := Unmarshal([]byte(doc), &v, Limits{}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"a":"x","b":{"n":1}}`))
	f.Add([]byte(`{"a":"x","raw":[1,{"k":null}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var v outer
		if err := Unmarshal(doc, &v, Limits{MaxBytes: 1 << 16}); err == nil && v.B != nil && len(doc) == 0 {
			t.Fatal("accepted nothing")
		}
	})
}

type base struct {
	ID string `json:"id"`
}

type extended struct {
	base
	Size int `json:"size,omitzero"`
}

// TestExtra: a newer peer's members pass where that's said, everything else stays strict.
func TestExtra(t *testing.T) {
	for doc, want := range map[string]Kind{
		`{"id":"x","new":{"a":[1,null]}}`: "", `{"id":"x","size":3}`: "", `{"new":1}`: Missing, `{"id":null,"new":1}`: Null, `{"id":"x","new":1,"new":2}`: Duplicate,
	} {
		var v extended
		err := Unmarshal([]byte(doc), &v, Limits{Extra: true})
		var se *Error
		if (want == "") != (err == nil) || (err != nil && (!errors.As(err, &se) || se.Kind != want)) {
			t.Errorf("%s: %v, want %q", doc, err, want)
		}
	}
	var v extended
	if err := Unmarshal([]byte(`{"id":"x","new":1}`), &v, Limits{}); err == nil {
		t.Error("an unknown member passed without Extra")
	}
}

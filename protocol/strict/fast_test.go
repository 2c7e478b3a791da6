package strict

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// bothWays holds the fast path to the slow one.
func bothWays(t *testing.T, doc []byte) {
	t.Helper()
	for _, lim := range []Limits{{MaxDepth: DefaultDepth}, {MaxDepth: 2}, {MaxDepth: DefaultDepth, Numbers: true}} {
		slow := checkSlowly(doc, lim)
		if fast := fine(doc, lim); fast != (slow == nil) {
			t.Errorf("%.80q %+v: fast says %t, slow says %v", doc, lim, fast, slow)
		}
		if slow == nil {
			slow = shaper{dec: jsontext.NewDecoder(bytes.NewReader(doc))}.shape(reflect.TypeFor[outer]())
		}
		if fits(doc, reflect.TypeFor[outer](), lim) && slow != nil {
			t.Errorf("%.80q %+v: fast accepts, slow says %v", doc, lim, slow)
		}
	}
}

func TestFastPathAgrees(t *testing.T) {
	for _, doc := range []string{
		`{"a":"x"}`, `{"a":"x","b":{"n":1},"l":[{"n":2},{"n":3}],"m":{"k":"v","l":"w"},"raw":{"x":[null,{"y":{}}]},"flag":true}`,
		`{"\u0061":"x"}`, `{"a":"x","a":"y"}`, `{"a":"x","\u0061":"y"}`, `{"a":null}`, `{"a":"x","b":null}`, `{"a":"x","l":[null]}`, `{"a":"x","m":{"k":null}}`,
		`{"a":"x","m":{"k":"1","k":"2"}}`, `{"a":"x","raw":{"k":1,"k":2}}`, `{"a":"x","raw":[[[[]]]]}`, `{"a":"x"}x`, `{"a":"x"} `, ``, ` `, `{`, `{"a"`, `{"a":"x",}`, `{"a":"x","l":[{"n":1},]}`,
		`[]`, `null`, `"a"`, `1`, `{"a":"]]]]{{{\"["}`, `{"a":"\\"}`, `{"a":"x","raw":12345678901234567890}`, `{"a":"x","raw":[-9007199254740993]}`, `{"a":"x","raw":1e400}`, `{"a":"x","raw":-0.5E-3}`,
		`{"a":"x","raw":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`, `{"a":"x","raw":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`,
		"{\"a\":\"\xff\"}", `{"a":"\ud800"}`, `{"a":"x","b":{"n":1,"n":2}}`, `{"a":"x","flag":"12"}`, `{"a":"x" "flag":true}`, `{"a":"x","l":[{"n":1}{"n":2}]}`,
	} {
		bothWays(t, []byte(doc))
	}
}

// A lent decoder remembers nothing of the document before.
func TestReadersAreClean(t *testing.T) {
	for range 100 {
		var v outer
		if err := Unmarshal([]byte(`{"a":"x","raw":{"k":1`), &v, Limits{}); err == nil {
			t.Fatal("a cut document was accepted")
		}
		if err := Unmarshal([]byte(`{"a":"x","raw":{"k":1}}`), &v, Limits{}); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzFastPath(f *testing.F) {
	f.Add([]byte(`{"a":"x","b":{"n":1},"l":[{"n":2}],"m":{"k":"v"},"raw":{"x":[null]},"flag":true}`))
	f.Add([]byte(`{"a":"x","raw":[1e5,-0,9007199254740993]}`))
	f.Fuzz(func(t *testing.T, doc []byte) { bothWays(t, doc) })
}

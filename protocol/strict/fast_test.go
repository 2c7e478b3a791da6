package strict

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// bothWays holds the fast path to the slow one.
func bothWays(t *testing.T, doc []byte) {
	t.Helper()
	for _, lim := range []Limits{{MaxDepth: DefaultDepth}, {MaxDepth: 2}, {MaxDepth: DefaultDepth, Numbers: true}, {MaxDepth: 3, Numbers: true, Extra: true}} {
		slow := checkSlowly(doc, lim)
		if fast := fine(doc, lim); fast != (slow == nil) {
			t.Errorf("%.80q %+v: fast says %t, slow says %v", doc, lim, fast, slow)
		}
		if slow == nil {
			slow = shaper{jsontext.NewDecoder(bytes.NewReader(doc)), lim.Extra}.shape(reflect.TypeFor[outer]())
		}
		var v outer
		if json.Unmarshal(doc, &v, json.RejectUnknownMembers(!lim.Extra)) == nil && fits(doc, reflect.TypeFor[outer](), lim) && slow != nil {
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
		`{"a":"x","more":{"b":[1,{"c":"}]"}]},"flag":true}`, `{"more":[[[1]]],"a":"x"}`, `{"a":"x","more":{"k":1,"k":2}}`, `{"a":"x","more":9007199254740993}`, `{"a":"x","more":null}`, `{"more":1}`,
		" { \"a\" :\t\"x\" ,\n\"l\" : [ { \"n\" : 1 } , { \"n\" : 2 } ] , \"raw\" : [ 1 , true , null ] } \r\n",
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

// A type that reads itself takes no null either.
func TestNullForATypeThatReadsItself(t *testing.T) {
	var v struct {
		At   time.Time  `json:"at"`
		Then *time.Time `json:"then,omitempty"`
	}
	for _, doc := range []string{`{"at":null}`, `{"at":"2026-11-30T09:00:00Z","then":null}`} {
		var e *Error
		if err := Unmarshal([]byte(doc), &v, Limits{}); !errors.As(err, &e) || e.Kind != Null {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// Values counts what a decoder finds.
func countsAlike(t *testing.T, doc []byte) {
	t.Helper()
	got, want := Values(doc), 0
	dec := jsontext.NewDecoder(bytes.NewReader(doc))
	for {
		tok, err := dec.ReadToken()
		if err == io.EOF {
			break
		}
		if err != nil {
			return // not JSON: it must only end
		}
		if dec.StackDepth() == 0 && want > 0 && tok.Kind() != '}' && tok.Kind() != ']' {
			return // a second document
		}
		parent, n := dec.StackIndex(dec.StackDepth())
		name := parent == '{' && n%2 == 1 && tok.Kind() == '"'
		if k := tok.Kind(); k != '}' && k != ']' && !name {
			want++
		}
	}
	if want > 0 && got != want {
		t.Errorf("%.80q: %d, a decoder finds %d", doc, got, want)
	}
}

func TestValues(t *testing.T) {
	for doc, want := range map[string]int{
		`0`: 1, `"a,[{"`: 1, ` [ ] `: 1, `{}`: 1, `[0]`: 2, `[ {} , {} ]`: 3, `[[[]]]`: 3, `{"a":0,"b":[1,2]}`: 5, `{"a\\\",":"\\","b":{"c":null}}`: 4, "[\n[\t]\r]": 2,
	} {
		if got := Values([]byte(doc)); got != want {
			t.Errorf("%s: %d, want %d", doc, got, want)
		}
		countsAlike(t, []byte(doc))
	}
	for _, broken := range []string{``, `"`, `"\\`, `[`, `{"a`, `]`, `,`} {
		_ = Values([]byte(broken))
	}
}

func FuzzValues(f *testing.F) {
	f.Add([]byte(`{"a":[0,{},[[]],"x\"y"],"b":{}}`))
	f.Fuzz(countsAlike)
}

// Members gives each member as it's written, and what it let through is let through by it alone.
func TestMembers(t *testing.T) {
	const doc = ` { "a" : [1, {"b":2}] ,"\u0061":{"c":null}, "d":"}" } `
	for range 100 { // the decoder is used again
		var got []string
		err := Members([]byte(doc), true, func(name, v jsontext.Value, from, to int) bool {
			if part := doc[from:to]; !strings.HasPrefix(part, string(name)) || !strings.HasSuffix(part, string(v)) {
				t.Errorf("%s %s isn't at %q", name, v, part)
			}
			got = append(got, string(name)+string(v))
			return len(got) < 3
		})
		if want := []string{`"a"[1, {"b":2}]`, `"\u0061"{"c":null}`, `"d""}"`}; err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q, %v", got, err)
		}
		if err := Check([]byte(doc), Limits{}); err == nil || fine([]byte(doc), Limits{MaxDepth: 9}) {
			t.Fatal("Check lets equal names through")
		}
		var se *Error
		n := 0
		err = Members([]byte(doc), false, func(_, _ jsontext.Value, _, _ int) bool { n++; return true })
		if !errors.As(err, &se) || se.Kind != Duplicate || n != 1 {
			t.Fatalf("equal names: %v after %d", err, n)
		}
		for bad, kind := range map[string]Kind{`[]`: Type, `"a"`: Type, ``: Syntax, `{"a":1`: Syntax, `{"a":1,}`: Syntax, `{"a" 1}`: Syntax} {
			if err := Members([]byte(bad), true, func(_, _ jsontext.Value, _, _ int) bool { return true }); !errors.As(err, &se) || se.Kind != kind {
				t.Fatalf("%s: %v", bad, err)
			}
		}
	}
}

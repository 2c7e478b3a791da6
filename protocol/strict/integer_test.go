package strict

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestIntegersInEachOfTheirForms(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "-0": 0, "0.0": 0, "0e999999999999": 0, "0.000e-999999999": 0, "10": 10, "10.0": 10, "1e1": 10, "1E+1": 10, "1.0e1": 10, "100e-1": 10, "0.1e2": 10, "-25e0": -25, "12.50e1": 125,
		"9007199254740992": 1 << 53, "-9007199254740992": -1 << 53, "9007199254740992.000": 1 << 53, "9.007199254740992e15": 1 << 53, "0." + strings.Repeat("0", 400) + "1e401": 1,
		"1" + strings.Repeat("0", 300) + "e-300": 1,
	} {
		if n, ok := Integer(s); !ok || n != want {
			t.Errorf("%s: %d, %v", s, n, ok)
		}
		var v outer
		if err := Unmarshal([]byte(`{"a":"x","b":{"n":`+s+`}}`), &v, Limits{Numbers: true}); err != nil && !strings.Contains(s, "000000000") || err == nil && int64(v.B.N) != want {
			t.Errorf("%s: %v, %v", s, v.B, err)
		}
	}
	for _, s := range []string{
		"1.5", "1e-1", "0.1", "-1.0000000000000000001", "9007199254740993", "9007199254740992.5", "9007199254740993.0", "1e16", "1e400", "1e99999999999999999999", "1e-99999999999999999999",
		"", "-", "+1", "01", "1.", ".5", "1e", "0x10", "1_0", " 1", "1 ", "1,0", "NaN", `"1"`, "true", "--1", "1e1e1",
	} {
		if n, ok := Integer(s); ok {
			t.Errorf("%q: %d", s, n)
		}
		var v outer
		if err := Unmarshal([]byte(`{"a":"x","b":{"n":`+s+`}}`), &v, Limits{Numbers: true}); err == nil && s != " 1" && s != "1 " {
			t.Errorf("%q was taken for %d", s, v.B.N)
		}
	}
	// A peer of Drover's writes integers in one form.
	var v outer
	var se *Error
	if err := Unmarshal([]byte(`{"a":"x","b":{"n":1.0}}`), &v, Limits{}); !errors.As(err, &se) || se.Kind != Type {
		t.Errorf("of a peer: %v", err)
	}
	if err := Unmarshal([]byte(`{"a":"x","b":{"n":1.5}}`), &v, Limits{Numbers: true}); !errors.As(err, &se) || se.Kind != Type || se.Path != "/b/n" {
		t.Errorf("a fraction: %v", err)
	}
}

// FuzzInteger holds it to exact arithmetic.
func FuzzInteger(f *testing.F) {
	for _, s := range []string{"1e1", "-10.50e2", "9007199254740992.0", "0.001e3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, ok := Integer(s)
		if len(s) > 40 || strings.Count(s, "e")+strings.Count(s, "E") == 1 && len(s) > 3 && len(s[strings.IndexAny(s, "eE"):]) > 5 {
			return // beyond what can be calculated exactly here
		}
		r, valid := new(big.Rat), jsontext.Value(s).IsValid() && jsontext.Value(s).Kind() == '0' && strings.TrimSpace(s) == s
		if valid {
			_, valid = r.SetString(s)
		}
		if want := valid && r.IsInt() && new(big.Int).Abs(r.Num()).Cmp(big.NewInt(1<<53)) <= 0; want != ok || ok && r.Num().Int64() != n {
			t.Errorf("%q: %d, %v; exactly %v", s, n, ok, r)
		}
	})
}

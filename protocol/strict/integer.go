package strict

import (
	"errors"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Integer reads a JSON number that is an integer, as JSON Schema has it: 10, 10.0 and 1e1 are
// the same one. It's exact, or false: of 1.5, of what is beyond ±2^53, and of what isn't written
// as a JSON number.
func Integer(s string) (int64, bool) {
	digits, negative := strings.CutPrefix(s, "-")
	if digits == "" || digits[0] < '0' || digits[0] > '9' || !jsontext.Value(s).IsValid() {
		return 0, false
	}
	mantissa, exponent, scale := digits, "", 0
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		mantissa, exponent = digits[:i], digits[i+1:]
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := strings.TrimLeft(whole+fraction, "0")
	if all == "" {
		return 0, true // however far it's shifted
	}
	if exponent != "" {
		n, err := strconv.Atoi(exponent)
		if err != nil || n > len(s)+20 || n < -len(s) { // beyond what its digits can make up for
			return 0, false
		}
		scale = n
	}
	scale -= len(fraction)
	short := strings.TrimRight(all, "0")
	scale += len(all) - len(short)
	if scale < 0 || len(short)+scale > 16 { // 2^53 has 16 digits
		return 0, false
	}
	n, err := strconv.ParseInt(short+strings.Repeat("0", scale), 10, 64)
	if err != nil || n > 1<<53 {
		return 0, false
	}
	if negative {
		n = -n
	}
	return n, true
}

// Decode decodes doc into v as json.Unmarshal does, and takes integers in each of their forms.
func Decode(doc []byte, v any, opts ...json.Options) error {
	err := json.Unmarshal(doc, v, opts...)
	if _, ok := errors.AsType[*json.SemanticError](err); !ok {
		return err
	}
	// Seldom: so that who writes 10 pays nothing for 1e1.
	integers := json.JoinUnmarshalers(json.UnmarshalFromFunc(integer[int]), json.UnmarshalFromFunc(integer[int64]))
	return json.Unmarshal(doc, v, append(opts, json.WithUnmarshalers(integers))...)
}

func integer[N int | int64](dec *jsontext.Decoder, v *N) error {
	if dec.PeekKind() != '0' {
		return errors.ErrUnsupported // the ordinary reader says what is wrong
	}
	raw, err := dec.ReadValue()
	if err != nil {
		return err
	}
	n, ok := Integer(string(raw))
	if !ok {
		return errors.New("not an integer that can be kept")
	}
	*v = N(n)
	return nil
}

// Package strict is the one JSON reader of Drover: the tunnel, both HTTP edges and the
// agents use it. Ordinary decoders take the last of two equal names, match names in any
// case and ignore what they don't know; each of these has sent a command to a wrong host
// somewhere. This reader refuses all of it, and its errors never repeat a value.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Kind says what is wrong with a document.
type Kind string

// The kinds of fault.
const (
	Syntax    Kind = "syntax"    // not JSON, or not valid UTF-8
	Duplicate Kind = "duplicate" // a name stands twice in one object
	Unknown   Kind = "unknown"   // a member that nothing here is called, wrong case included
	Missing   Kind = "missing"   // a required member is absent
	Null      Kind = "null"      // a member is null
	Type      Kind = "type"      // a member has another type
	Trailing  Kind = "trailing"  // data after the value
	Depth     Kind = "depth"     // nested too deep
	Size      Kind = "size"      // too many bytes
	Number    Kind = "number"    // an integer beyond ±2^53, or a number out of range
)

// Error is a fault with the JSON pointer of where it is. It holds no values; names in the
// pointer are cut to 64 bytes.
type Error struct {
	Kind Kind
	Path string
}

// Error implements error.
func (e *Error) Error() string {
	at := ""
	if e.Path != "" {
		at = " at " + e.Path
	}
	switch e.Kind {
	case Duplicate:
		return "a name stands twice" + at
	case Unknown:
		return "unknown member" + at
	case Missing:
		return "missing member" + at
	case Null:
		return "null isn't allowed" + at
	case Type:
		return "wrong type" + at
	case Trailing:
		return "data after the JSON value"
	case Depth:
		return "nested too deep"
	case Size:
		return "too large"
	case Number:
		return "a number out of range (integers reach ±2^53)" + at
	default:
		return "not valid JSON" + at
	}
}

// Limits bound a document. Zero values mean: no byte limit, DefaultDepth.
type Limits struct {
	MaxBytes int  // bytes of the whole document
	MaxDepth int  // objects and arrays inside each other
	Numbers  bool // refuse integers beyond ±2^53 and numbers beyond float64, and take 10.0 and 1e1 for 10
	Extra    bool // let members be that the type doesn't have: a newer peer's
}

// DefaultDepth is the nesting that is allowed where nothing else is said.
const DefaultDepth = 64

// Check reads one whole document and reports its first fault as *Error.
func Check(doc []byte, lim Limits) error {
	if lim.MaxBytes > 0 && len(doc) > lim.MaxBytes {
		return &Error{Kind: Size}
	}
	if lim.MaxDepth == 0 {
		lim.MaxDepth = DefaultDepth
	}
	if fine(doc, lim) {
		return nil
	}
	return checkSlowly(doc, lim)
}

// checkSlowly finds and names the first fault.
func checkSlowly(doc []byte, lim Limits) error {
	dec := jsontext.NewDecoder(bytes.NewReader(doc))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return syntaxError(err)
		}
		if dec.StackDepth() > lim.MaxDepth {
			return &Error{Kind: Depth}
		}
		if lim.Numbers && tok.Kind() == '0' && !safeNumber(tok.String()) {
			return &Error{Kind: Number, Path: clip(string(dec.StackPointer()))}
		}
		if dec.StackDepth() == 0 {
			break
		}
	}
	if len(bytes.TrimLeft(doc[dec.InputOffset():], " \t\r\n")) > 0 {
		return &Error{Kind: Trailing}
	}
	return nil
}

// Unmarshal checks doc against lim and decodes it into v, a pointer to a struct. Names
// match exactly; every field without omitempty or omitzero must be there; null is refused
// for every member except one of type jsontext.Value, whose inside is left alone. After an
// error v holds whatever was read until then.
func Unmarshal(doc []byte, v any, lim Limits) error {
	if lim.MaxBytes > 0 && len(doc) > lim.MaxBytes {
		return &Error{Kind: Size}
	}
	if lim.MaxDepth == 0 {
		lim.MaxDepth = DefaultDepth
	}
	t := reflect.TypeOf(v).Elem()
	read := json.Unmarshal
	if lim.Numbers {
		read = Decode
	}
	err := read(doc, v, json.RejectUnknownMembers(!lim.Extra))
	if err == nil && fits(doc, t, lim) {
		return nil
	}
	if err := checkSlowly(doc, lim); err != nil {
		return err
	}
	sh := shaper{jsontext.NewDecoder(bytes.NewReader(doc)), lim.Extra}
	if err := sh.shape(t); err != nil {
		return err
	}
	if err != nil {
		return semanticError(err)
	}
	return nil
}

// safeNumber tells whether a JSON number survives a float64 unchanged in magnitude, and,
// when it's written as an integer, exactly.
func safeNumber(s string) bool {
	if !strings.ContainsAny(s, ".eE") {
		n, err := strconv.ParseInt(s, 10, 64)
		return err == nil && n <= 1<<53 && n >= -(1<<53)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) {
		return false
	}
	if f == math.Trunc(f) && math.Abs(f) > 1<<53 {
		return false
	}
	return true
}

func syntaxError(err error) error {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		var se *jsontext.SyntacticError
		path := ""
		if errors.As(err, &se) {
			path = clip(string(se.JSONPointer))
		}
		return &Error{Kind: Duplicate, Path: path}
	}
	var se *jsontext.SyntacticError
	if errors.As(err, &se) {
		if strings.Contains(se.Err.Error(), "depth") {
			return &Error{Kind: Depth}
		}
		return &Error{Kind: Syntax, Path: clip(string(se.JSONPointer))}
	}
	return &Error{Kind: Syntax}
}

func semanticError(err error) error {
	var se *json.SemanticError
	if errors.As(err, &se) {
		if errors.Is(se.Err, json.ErrUnknownName) {
			return &Error{Kind: Unknown, Path: clip(string(se.JSONPointer))}
		}
		return &Error{Kind: Type, Path: clip(string(se.JSONPointer))}
	}
	return syntaxError(err)
}

func clip(path string) string {
	const max = 64
	if len(path) > max {
		path = strings.ToValidUTF8(path[:max], "") + "…"
	}
	clean := strings.Map(func(r rune) rune {
		if r < 0x20 || (r >= 0x7f && r < 0xa0) || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) {
			return '.'
		}
		return r
	}, path)
	return clean
}

// plan is what shape needs to know of one struct type.
type plan struct {
	fields   map[string]reflect.Type
	required []string
	// The same for the fast path: fields by number, and the required ones as bits.
	custom bool // the type reads itself
	list   []reflect.Type
	index  map[string]int
	must   uint64
}

var plans sync.Map // reflect.Type → *plan: a cache of facts about types, never of state

var rawType = reflect.TypeFor[jsontext.Value]()

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p := &plan{fields: map[string]reflect.Type{}, index: map[string]int{}, custom: hasDecoder(t)}
	if t.Kind() != reflect.Struct {
		plans.Store(t, p)
		return p
	}
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("json")
		if f.Anonymous && tag == "" {
			continue // its own fields are visible
		}
		name, opts, _ := strings.Cut(tag, ",")
		if !f.IsExported() || tag == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		p.fields[name] = f.Type
		p.index[name] = len(p.list)
		if !strings.Contains(opts, "omitempty") && !strings.Contains(opts, "omitzero") {
			p.required = append(p.required, name)
			p.must |= 1 << len(p.list) // past 64 fields the fast path isn't taken
		}
		p.list = append(p.list, f.Type)
	}
	plans.Store(t, p)
	return p
}

// shaper walks the document beside the type and reports unknown, missing and null members.
// Types with their own decoder (time, raw values) are skipped whole.
type shaper struct {
	dec   *jsontext.Decoder
	extra bool
}

func (s shaper) shape(t reflect.Type) error {
	dec := s.dec
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	custom := hasDecoder(t)
	kind := dec.PeekKind()
	switch {
	case custom:
		return skip(dec)
	case kind == 'n':
		return &Error{Kind: Null, Path: clip(string(dec.StackPointer()))}
	case t.Kind() == reflect.Struct && kind == '{':
		return s.shapeStruct(planOf(t))
	case t.Kind() == reflect.Map && kind == '{':
		return s.shapeMap(t.Elem())
	case t.Kind() == reflect.Slice && kind == '[':
		return s.shapeSlice(t.Elem())
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		return &Error{Kind: Type, Path: clip(string(dec.StackPointer()))}
	}
	return skip(dec)
}

func skip(dec *jsontext.Decoder) error {
	if err := dec.SkipValue(); err != nil {
		return syntaxError(err)
	}
	return nil
}

func (s shaper) shapeStruct(p *plan) error {
	dec := s.dec
	if _, err := dec.ReadToken(); err != nil {
		return syntaxError(err)
	}
	parent := string(dec.StackPointer())
	seen := make(map[string]bool, len(p.fields))
	for dec.PeekKind() != '}' {
		tok, err := dec.ReadToken()
		if err != nil {
			return syntaxError(err)
		}
		name := tok.String()
		ft, ok := p.fields[name]
		if !ok && s.extra {
			if err := skip(dec); err != nil {
				return err
			}
			continue
		}
		if !ok {
			return &Error{Kind: Unknown, Path: clip(parent + "/" + name)}
		}
		if dec.PeekKind() == 'n' && ft != rawType {
			return &Error{Kind: Null, Path: clip(parent + "/" + name)}
		}
		if err := s.shape(ft); err != nil {
			return err
		}
		seen[name] = true
	}
	if _, err := dec.ReadToken(); err != nil {
		return syntaxError(err)
	}
	for _, name := range p.required {
		if !seen[name] {
			return &Error{Kind: Missing, Path: clip(fmt.Sprintf("%s/%s", parent, name))}
		}
	}
	return nil
}

func (s shaper) shapeMap(elem reflect.Type) error {
	dec := s.dec
	if _, err := dec.ReadToken(); err != nil {
		return syntaxError(err)
	}
	for dec.PeekKind() != '}' {
		if _, err := dec.ReadToken(); err != nil {
			return syntaxError(err)
		}
		if err := s.shape(elem); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	if err != nil {
		return syntaxError(err)
	}
	return nil
}

func (s shaper) shapeSlice(elem reflect.Type) error {
	dec := s.dec
	if _, err := dec.ReadToken(); err != nil {
		return syntaxError(err)
	}
	for dec.PeekKind() != ']' {
		if err := s.shape(elem); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	if err != nil {
		return syntaxError(err)
	}
	return nil
}

package strict

import (
	"bytes"
	"reflect"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The fast path only ever says "certainly fine". Whatever it can't vouch for goes the slow
// way, which finds the first fault and names it; so both accept the same documents, and a
// test and a fuzz target hold them to it.

// reader is a decoder that is used again.
type reader struct {
	dec jsontext.Decoder
	buf bytes.Buffer
}

// readers lends them out; it holds memory, no state.
var readers = sync.Pool{New: func() any { return new(reader) }}

func borrow(doc []byte) *reader {
	r := readers.Get().(*reader)
	r.buf = *bytes.NewBuffer(doc)
	r.dec.Reset(&r.buf)
	return r
}

func (r *reader) giveBack() {
	r.buf = bytes.Buffer{}
	r.dec.Reset(&r.buf) // lets go of the document
	readers.Put(r)
}

// ended tells whether nothing but white space follows what was read.
func (r *reader) ended(doc []byte) bool {
	return len(bytes.TrimLeft(doc[r.dec.InputOffset():], " \t\r\n")) == 0
}

// fine tells that Check would find no fault. doc's size has been checked.
func fine(doc []byte, lim Limits) bool {
	r := borrow(doc)
	defer r.giveBack()
	v, err := r.dec.ReadValue()
	return err == nil && r.ended(doc) && scan(v, lim.MaxDepth, lim.Numbers)
}

// scan walks over the bytes of a valid JSON value: false when it's nested deeper than depth
// or, with numbers, has a number out of range.
func scan(v []byte, depth int, numbers bool) bool {
	d := 0
	for i := 0; i < len(v); i++ {
		switch c := v[i]; c {
		case '"':
			for i++; v[i] != '"'; i++ {
				if v[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			if d++; d > depth {
				return false
			}
		case '}', ']':
			d--
		default:
			if !numbers || c != '-' && (c < '0' || c > '9') {
				continue
			}
			from := i
			for i+1 < len(v) && partOfNumber(v[i+1]) {
				i++
			}
			if !safeNumber(string(v[from : i+1])) {
				return false
			}
		}
	}
	return true
}

func partOfNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

// fits tells that doc is fine and has the shape of t.
func fits(doc []byte, t reflect.Type, lim Limits) bool {
	r := borrow(doc)
	defer r.giveBack()
	return !lim.Numbers && r.value(t, lim.MaxDepth) && r.ended(doc)
}

// value reads one value of type t, at most depth deep.
func (r *reader) value(t reflect.Type, depth int) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p := planOf(t)
	kind := r.dec.PeekKind()
	switch {
	case p.custom:
	case kind == 'n':
		return false
	case t.Kind() == reflect.Struct && kind == '{':
		return depth > 0 && r.object(p, depth)
	case t.Kind() == reflect.Map && kind == '{', t.Kind() == reflect.Slice && kind == '[':
		return depth > 0 && r.elements(t, kind == '{', depth)
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		return false
	}
	v, err := r.dec.ReadValue()
	return err == nil && scan(v, depth, false)
}

func (r *reader) object(p *plan, depth int) bool {
	if _, err := r.dec.ReadToken(); err != nil || len(p.list) > 64 {
		return false
	}
	var seen uint64
	for r.dec.PeekKind() == '"' {
		name, err := r.dec.ReadValue()
		if err != nil || len(name) < 2 {
			return false
		}
		i, ok := p.index[string(name[1:len(name)-1])] // a name with escapes goes the slow way
		if !ok {
			return false
		}
		t := p.list[i]
		if r.dec.PeekKind() == 'n' && t != rawType || !r.value(t, depth-1) {
			return false
		}
		seen |= 1 << i
	}
	_, err := r.dec.ReadToken()
	return err == nil && seen&p.must == p.must
}

func (r *reader) elements(t reflect.Type, named bool, depth int) bool {
	if _, err := r.dec.ReadToken(); err != nil {
		return false
	}
	for {
		switch r.dec.PeekKind() {
		case 0:
			return false
		case '}', ']':
			_, err := r.dec.ReadToken()
			return err == nil
		}
		if named {
			if _, err := r.dec.ReadValue(); err != nil {
				return false
			}
		}
		if !r.value(t.Elem(), depth-1) {
			return false
		}
	}
}

// hasDecoder tells whether t reads itself (raw values, times).
func hasDecoder(t reflect.Type) bool {
	return t == rawType || reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()) ||
		reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

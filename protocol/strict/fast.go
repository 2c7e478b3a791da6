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

func borrow(doc []byte, opts ...jsontext.Options) *reader {
	r := readers.Get().(*reader)
	r.buf = *bytes.NewBuffer(doc)
	r.dec.Reset(&r.buf, opts...)
	return r
}

func (r *reader) giveBack() {
	r.buf = bytes.Buffer{}
	r.dec.Reset(&r.buf) // lets go of the document
	readers.Put(r)
}

// Members calls f for each member of doc, an object, in its order, until f returns false:
// first the name as it's written, with its quotes, then the value. Both are parts of doc, and
// from and to say where the name begins and the value ends. Equal names are a fault unless
// equal lets each have its turn. Members is for a document that Check has passed; of another
// one f sees what comes before the first fault, which is the error.
func Members(doc []byte, equal bool, f func(name, value jsontext.Value, from, to int) bool) error {
	r := borrow(doc, jsontext.AllowDuplicateNames(equal))
	defer r.giveBack()
	if tok, err := r.dec.ReadToken(); err != nil {
		return syntaxError(err)
	} else if tok.Kind() != '{' {
		return &Error{Kind: Type}
	}
	for r.dec.PeekKind() != '}' {
		name, err := r.dec.ReadValue()
		if err != nil {
			return syntaxError(err)
		}
		nameEnd := int(r.dec.InputOffset())
		from := nameEnd - len(name)
		v, err := r.dec.ReadValue()
		if err != nil {
			return syntaxError(err)
		}
		to := int(r.dec.InputOffset())
		if !f(doc[from:nameEnd], doc[to-len(v):to], from, to) {
			return nil
		}
	}
	return nil
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
	if err != nil || !r.ended(doc) {
		return false
	}
	_, ok := scan(v, lim.MaxDepth, lim.Numbers)
	return ok
}

// endOfString returns where the string that begins at i ends, in valid JSON.
func endOfString(v []byte, i int) int {
	for i++; v[i] != '"'; i++ {
		if v[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// scan walks over the bytes of the valid JSON value that v begins with, and returns its end:
// false when it's nested deeper than depth or, with numbers, has a number out of range.
func scan(v []byte, depth int, numbers bool) (end int, ok bool) {
	d := 0
	for i := 0; i < len(v); {
		switch c := v[i]; {
		case c == '"':
			i = endOfString(v, i)
		case c == '{', c == '[':
			if d++; d > depth {
				return i, false
			}
			i++
			continue
		case c == '}', c == ']':
			d--
			i++
		case c == ' ', c == '\t', c == '\r', c == '\n', c == ',', c == ':':
			i++
			continue
		default: // a number, true, false, null
			from := i
			for i++; i < len(v) && partOfLiteral(v[i]); i++ {
			}
			if numbers && (c == '-' || c <= '9') && !safeNumber(string(v[from:i])) {
				return i, false
			}
		}
		if d == 0 {
			return i, true
		}
	}
	return len(v), false
}

// Values counts the values of doc without reading it: objects, arrays and whatever is in them,
// names apart. Once it's decoded each takes memory for itself, however short it's written. Of
// what isn't valid JSON it's some number.
func Values(doc []byte) int {
	n, opened := 1, false
	for i := 0; i < len(doc); i++ {
		c := doc[i]
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		case ',':
			n++
		}
		if opened && c != ']' && c != '}' {
			n++
		}
		opened = c == '[' || c == '{'
		if c == '"' {
			for i++; i < len(doc) && doc[i] != '"'; i++ {
				if doc[i] == '\\' {
					i++
				}
			}
		}
	}
	return n
}

func partOfLiteral(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '.' || c == 'E' || c == '+' || c == '-'
}

// fits tells that a document which json.Unmarshal has decoded into a t is as deep as it may
// be, and has the members that it must have and no others. It's valid JSON without equal
// names then, so that its bytes alone say it.
func fits(doc []byte, t reflect.Type, lim Limits) bool {
	w := walker{doc: doc, lim: lim}
	return w.value(t, lim.MaxDepth)
}

// walker walks over the bytes of a valid JSON value, beside a type.
type walker struct {
	doc []byte
	at  int
	lim Limits
}

// next passes over white space, commas and colons, and returns the byte after them.
func (w *walker) next() byte {
	for {
		switch c := w.doc[w.at]; c {
		case ' ', '\t', '\r', '\n', ',', ':':
			w.at++
		default:
			return c
		}
	}
}

// value walks over one value of type t, at most depth deep.
func (w *walker) value(t reflect.Type, depth int) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	p, c := planOf(t), w.next()
	switch {
	case p.custom:
	case c == 'n':
		return false
	case t.Kind() == reflect.Struct && c == '{':
		return depth > 0 && w.object(p, depth)
	case t.Kind() == reflect.Map && c == '{', t.Kind() == reflect.Slice && c == '[':
		return depth > 0 && w.elements(t.Elem(), c == '{', depth)
	case t.Kind() == reflect.Struct || t.Kind() == reflect.Map:
		return false
	}
	return w.skip(depth)
}

// skip walks over one value of any type.
func (w *walker) skip(depth int) bool {
	w.next()
	n, ok := scan(w.doc[w.at:], depth, w.lim.Numbers)
	w.at += n
	return ok
}

// name walks over a string, and returns what is between its quotes.
func (w *walker) name() []byte {
	w.next()
	from := w.at + 1
	w.at = endOfString(w.doc, w.at)
	return w.doc[from : w.at-1]
}

func (w *walker) object(p *plan, depth int) bool {
	if len(p.list) > 64 {
		return false
	}
	w.at++
	var seen uint64
	for w.next() != '}' {
		i, ok := p.index[string(w.name())] // a name with escapes goes the slow way
		switch {
		case ok:
			t := p.list[i]
			if w.next() == 'n' && t != rawType || !w.value(t, depth-1) {
				return false
			}
			seen |= 1 << i
		case !w.lim.Extra || !w.skip(depth-1):
			return false
		}
	}
	w.at++
	return seen&p.must == p.must
}

func (w *walker) elements(t reflect.Type, named bool, depth int) bool {
	w.at++
	for c := w.next(); c != '}' && c != ']'; c = w.next() {
		if named {
			w.name()
		}
		if !w.value(t, depth-1) {
			return false
		}
	}
	w.at++
	return true
}

// hasDecoder tells whether t reads itself (raw values, times).
func hasDecoder(t reflect.Type) bool {
	return t == rawType || reflect.PointerTo(t).Implements(reflect.TypeFor[json.UnmarshalerFrom]()) ||
		reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

package capability

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
)

// quick vouches for ordinary arguments without building them up for the schema's
// validator, which costs more than everything else a small call needs. Like strict's fast
// path it only ever says "certainly fits": what it can't vouch for goes to the validator,
// which then has the last word, and a test holds the two to it.
type quick struct {
	props    map[string]quickProp
	required []string
}

type quickProp struct {
	kind     jsontext.Kind // '"', '0' for an integer, 't' for a boolean; 0: ask the validator
	minLen   int
	maxLen   int // -1: no limit
	min, max int64
	enum     []string
}

// newQuick reads the schema of an object. A schema with anything beyond properties and
// required has no quick way: nil.
func newQuick(s *jsonschema.Schema) *quick {
	if s.Type != "object" || s.PatternProperties != nil || s.DependentRequired != nil || s.MinProperties != nil || s.MaxProperties != nil ||
		s.AllOf != nil || s.AnyOf != nil || s.OneOf != nil || s.Not != nil || s.If != nil || s.PropertyNames != nil || len(s.Required) > 64 {
		return nil
	}
	q := &quick{props: map[string]quickProp{}, required: s.Required}
	for name, p := range s.Properties {
		q.props[name] = quickPropOf(p)
	}
	return q
}

func quickPropOf(p *jsonschema.Schema) quickProp {
	ask := quickProp{}
	if p.Pattern != "" || p.Format != "" || p.Const != nil || p.MultipleOf != nil || p.ExclusiveMinimum != nil || p.ExclusiveMaximum != nil ||
		p.AllOf != nil || p.AnyOf != nil || p.OneOf != nil || p.Not != nil || p.If != nil || p.Ref != "" || len(p.Types) > 0 {
		return ask
	}
	out := quickProp{maxLen: -1, min: -1 << 53, max: 1 << 53}
	switch p.Type {
	case "string":
		out.kind = '"'
		if p.MinLength != nil {
			out.minLen = *p.MinLength
		}
		if p.MaxLength != nil {
			out.maxLen = *p.MaxLength
		}
		for _, v := range p.Enum {
			s, ok := v.(string)
			if !ok {
				return ask
			}
			out.enum = append(out.enum, s)
		}
	case "integer":
		out.kind = '0'
		for limit, at := range map[*float64]*int64{p.Minimum: &out.min, p.Maximum: &out.max} {
			if limit != nil {
				if *at = int64(*limit); float64(*at) != *limit {
					return ask
				}
			}
		}
		if p.Enum != nil {
			return ask
		}
	case "boolean":
		out.kind = 't'
		if p.Enum != nil {
			return ask
		}
	}
	return out
}

// fits is Check up to the decoding into In, or CheckOwn.
func (d *Definition) fits(args []byte, own bool) error {
	lim := strict.Limits{MaxBytes: MaxArgs, MaxDepth: protocol.MaxDepth - 4, Numbers: true}
	if err := strict.Check(args, lim); err != nil {
		return badArgs(d.Name, err)
	}
	if d.quick.fits(args) {
		return nil
	}
	var m any
	if err := json.Unmarshal(args, &m); err != nil {
		return badArgs(d.Name, &strict.Error{Kind: strict.Syntax})
	}
	obj, ok := m.(map[string]any)
	if !ok {
		return protocol.Errorf(protocol.CodeBadArgs, "the arguments of %s must be a JSON object", d.Name)
	}
	if d.check.Validate(obj) == nil || own && d.own != nil && d.own.Validate(obj) == nil {
		return nil
	}
	return d.explain(obj)
}

// fits tells that args, which are strict JSON, certainly fit.
func (q *quick) fits(args []byte) bool {
	if q == nil {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(args), jsontext.AllowDuplicateNames(true)) // looked for before
	if tok, err := dec.ReadToken(); err != nil || tok.Kind() != '{' {
		return false
	}
	var seen uint64
	for dec.PeekKind() == '"' {
		raw, err := dec.ReadValue()
		if err != nil {
			return false
		}
		name := string(raw[1 : len(raw)-1]) // one with escapes is none of ours
		p, ok := q.props[name]
		if !ok {
			return false
		}
		v, err := dec.ReadValue()
		if err != nil || !p.fits(v) {
			return false
		}
		if i := slices.Index(q.required, name); i >= 0 {
			seen |= 1 << i
		}
	}
	return seen == 1<<len(q.required)-1
}

func (p *quickProp) fits(v jsontext.Value) bool {
	switch kind := v.Kind(); {
	case p.kind == '"' && kind == '"':
		return p.fitsText(v[1 : len(v)-1])
	case p.kind == '0' && kind == '0':
		n, err := strconv.ParseInt(string(v), 10, 64) // 1.0 and 1e3 go to the validator
		return err == nil && n >= p.min && n <= p.max
	case p.kind == 't':
		return kind == 't' || kind == 'f'
	}
	return false
}

// fitsText judges a string by its written form. It has at least as many bytes as the
// string has characters, and where nothing is escaped each character at most four.
func (p *quickProp) fitsText(raw []byte) bool {
	escaped := bytes.IndexByte(raw, '\\') >= 0
	switch {
	case p.maxLen >= 0 && len(raw) > p.maxLen:
		return false
	case p.enum != nil:
		return !escaped && slices.Contains(p.enum, string(raw))
	case p.minLen > 1:
		return !escaped && len(raw) >= 4*p.minLen
	}
	return len(raw) >= p.minLen
}

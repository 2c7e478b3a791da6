package capability

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Fits makes the check of arguments against a schema for a tool that is no capability: one of the
// server's own. It's what Check is without a type to decode into.
func Fits(name string, in *jsonschema.Schema) func(args []byte) error {
	d := &Definition{Spec: Spec{Name: name}, In: in, check: resolved(name, in), quick: newQuick(in)}
	return func(args []byte) error { return d.fits(args, false) }
}

func resolved(name string, s *jsonschema.Schema) *jsonschema.Resolved {
	r, err := s.CloneSchemas().Resolve(nil)
	if err != nil {
		panic(fmt.Sprintf("capability: %s: %v", name, err))
	}
	return r
}

// offer makes of the schema of t what clients are offered, and tells whether that is another.
func offer(s *jsonschema.Schema, t reflect.Type) (other bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Tag.Get("own") != "" {
			delete(s.Properties, name)
			s.PropertyOrder = slices.DeleteFunc(slices.Clone(s.PropertyOrder), func(n string) bool { return n == name })
			other = true
		}
		if f.Tag.Get("must") != "" {
			s.Required = append(slices.Clone(s.Required), name)
			other = true
		}
	}
	return other
}

// schemaFor infers a schema and adds what struct tags say. d collects the fields' since.
func schemaFor[T any](d *Definition) *jsonschema.Schema {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		panic(fmt.Sprintf("capability: schema of %T: %v", *new(T), err))
	}
	decorate(s, reflect.TypeFor[T](), d)
	return s
}

func decorate(s *jsonschema.Schema, t reflect.Type, d *Definition) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if len(s.Types) == 2 && s.Types[0] == "null" {
			s.Type, s.Types = s.Types[1], nil
		}
		if t.Kind() == reflect.Slice && s.Items != nil {
			s = s.Items
		}
		t = t.Elem()
	}
	if len(s.Types) == 2 && s.Types[0] == "null" {
		s.Type, s.Types = s.Types[1], nil
	}
	if t.Kind() != reflect.Struct || s.Properties == nil {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if p == nil {
			continue
		}
		bounds(p, f.Tag)
		if n := f.Tag.Get("since"); n != "" && d != nil {
			d.since[name], _ = strconv.Atoi(n)
		}
		decorate(p, f.Type, nil)
	}
}

func bounds(p *jsonschema.Schema, tag reflect.StructTag) {
	if v, err := strconv.ParseFloat(tag.Get("min"), 64); err == nil {
		p.Minimum = &v
	}
	if v, err := strconv.ParseFloat(tag.Get("max"), 64); err == nil {
		p.Maximum = &v
	}
	if v, err := strconv.Atoi(tag.Get("minlen")); err == nil {
		p.MinLength = &v
	}
	if v, err := strconv.Atoi(tag.Get("maxlen")); err == nil {
		p.MaxLength = &v
	}
	if v, err := strconv.Atoi(tag.Get("minitems")); err == nil {
		p.MinItems = &v
	}
	if v, err := strconv.Atoi(tag.Get("maxitems")); err == nil {
		p.MaxItems = &v
	}
	if v := tag.Get("enum"); v != "" {
		for e := range strings.SplitSeq(v, "|") {
			p.Enum = append(p.Enum, e)
		}
	}
}

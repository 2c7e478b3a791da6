// Package capability defines the built-in tools: one file each, with everything that MCP,
// REST, the CLI, the agent, the record and the docs need to know of it.
package capability

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
)

// Effect is how much a capability can change on a host.
type Effect string

// The effects; anything else counts as NormalChange, the strictest.
const (
	ReadOnly       Effect = "read_only"
	StandardChange Effect = "standard_change"
	NormalChange   Effect = "normal_change"
)

// Trait is a fact for the guard that keeps private data, untrusted input and a way out
// from meeting in one grant.
type Trait string

// The traits.
const (
	ReadsPrivate   Trait = "reads_private"
	UntrustedInput Trait = "untrusted_input"
	SendsOut       Trait = "sends_out"
)

// Render says how a result is shown to a model.
type Render string

// The ways to show a result.
const (
	RenderJSON    Render = "json"    // structured content
	RenderProcess Render = "process" // text: the status line, stdout, stderr
	RenderFile    Render = "file"    // text: the status line, then the file's text, or an image
	RenderOutput  Render = "output"  // text: the status line, then a page of a command's output
)

// MaxArgs bounds a call's arguments, in bytes of JSON.
const MaxArgs = 4 << 20

// Spec is what a capability says of itself.
type Spec struct {
	Name    string // group_verb, [a-z0-9_], at most 40 characters, never renamed
	Title   string
	Doc     string // what a model reads; under 2 KB
	Version int    // raised with each change of In or Out
	Effect  Effect
	Traits  []Trait
	// Destructive and Idempotent are MCP hints; every tool here has an open world's effect
	// only if OpenWorld says so.
	Destructive, Idempotent, OpenWorld bool
	Consent                            bool // the person at the host is asked
	Render                             Render
	// Redact names members of In whose values never enter the record, only their length.
	Redact []string
	// Example is a valid argument object, as JSON.
	Example string
	// Timeout is the default time for a call, in seconds; In may have timeout_seconds.
	Timeout int
	// Stream says that a file's bytes travel beside the call. Such a tool isn't offered over
	// MCP and can't be called like others: the files interface of REST does it.
	Stream Stream
}

// Stream is the way of the bytes beside a call.
type Stream string

// The ways.
const (
	NoStream Stream = ""
	ToHost   Stream = "to_host"
	FromHost Stream = "from_host"
)

// Group is the part of the name before the first underscore: what grants may name.
func (s Spec) Group() string { g, _, _ := strings.Cut(s.Name, "_"); return g }

// Definition is a capability without its Go types.
type Definition struct {
	Spec
	// In is what clients are offered and may give.
	In, Out *jsonschema.Schema
	since   map[string]int
	check   *jsonschema.Resolved
	own     *jsonschema.Resolved // what the server itself may give instead; nil: the same
	quick   *quick
	decode  func([]byte) error
	// normalize decodes a result into Out and writes it again.
	normalize func([]byte) ([]byte, error)
}

// Tool is a capability with its Go types; the agent binds a function to it.
type Tool[In, Out any] struct{ *Definition }

// Define makes a capability from its spec and its types. Field tags: json (the name),
// jsonschema (the description), and min, max, maxlen, enum (a|b), since; own for a member that the
// server alone gives, and of such a tool must for one that clients have to give. It panics when the
// spec breaks a rule: definitions are compiled in, and a test makes each.
func Define[In, Out any](s Spec) *Tool[In, Out] {
	if !regexp.MustCompile(`^[a-z0-9]+_[a-z0-9_]{1,38}$`).MatchString(s.Name) || len(s.Name) > 40 {
		panic("capability: bad name " + s.Name)
	}
	d := &Definition{Spec: s, since: map[string]int{}}
	d.In, d.Out = schemaFor[In](d), schemaFor[Out](nil)
	if offered := d.In.CloneSchemas(); offer(offered, reflect.TypeFor[In]()) {
		d.own, d.In = resolved(s.Name, d.In), offered
	}
	d.check, d.quick = resolved(s.Name, d.In), newQuick(d.In)
	d.decode = func(b []byte) error { return decodeStrict(b, new(In)) }
	d.normalize = func(b []byte) ([]byte, error) {
		out := new(Out)
		if err := strict.Unmarshal(b, out, strict.Limits{MaxDepth: protocol.MaxDepth, Extra: true}); err != nil {
			return nil, err
		}
		if err := inBounds(reflect.ValueOf(out).Elem()); err != nil {
			return nil, err
		}
		if c, ok := any(out).(interface{ Check() error }); ok {
			if err := c.Check(); err != nil {
				return nil, err
			}
		}
		return json.Marshal(out)
	}
	if err := d.Check([]byte(s.Example)); err != nil {
		panic(fmt.Sprintf("capability: %s: example: %v", s.Name, err))
	}
	return &Tool[In, Out]{d}
}

// Decode checks args, which may be the server's own, and decodes them.
func (t *Tool[In, Out]) Decode(args []byte) (In, error) {
	var in In
	if err := t.fits(args, true); err != nil {
		return in, err
	}
	err := decodeStrict(args, &in)
	return in, err
}

// Check tells whether args fit: strict JSON, known members of the right types within
// their bounds. The error is a *protocol.Error with bad_args that names the member and
// never repeats a value.
func (d *Definition) Check(args []byte) error {
	if err := d.fits(args, false); err != nil {
		return err
	}
	return d.decode(args)
}

// CheckOwn is Check for a call that the server makes itself: it may give what clients may not.
func (d *Definition) CheckOwn(args []byte) error {
	if err := d.fits(args, true); err != nil {
		return err
	}
	return d.decode(args)
}

// Normalize makes an agent's result fit Out, so that whoever promised the schema to a
// client keeps the promise: a member that is missing, null, of a wrong type or below its
// min is an error, as is what Out's own Check refuses; members that this build doesn't know
// (a newer agent's) go.
func (d *Definition) Normalize(result []byte) ([]byte, error) {
	out, err := d.normalize(result)
	if err != nil {
		return nil, protocol.Failf("bad_result", "the agent's answer doesn't fit the tool %s; is the agent genuine and up to date?", d.Name)
	}
	return out, nil
}

// Since tells in which version of the capability each member of args came, so that an
// older agent is told to be updated instead of dropping a member: the first member of args
// that needs more than version, or "".
func (d *Definition) Since(args []byte, version int) (member string) {
	if version >= d.Version {
		return ""
	}
	var m map[string]jsontext.Value
	if json.Unmarshal(args, &m) != nil {
		return ""
	}
	for name := range m {
		if d.since[name] > version && (member == "" || name < member) {
			member = name
		}
	}
	return member
}

// explain finds the member that doesn't fit.
func (d *Definition) explain(obj map[string]any) error {
	for _, name := range d.In.Required {
		if _, ok := obj[name]; !ok {
			return protocol.Errorf(protocol.CodeBadArgs, "%s needs the argument %q", d.Name, name)
		}
	}
	names := make([]string, 0, len(obj))
	for name := range obj {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		sub, ok := d.In.Properties[name]
		if !ok {
			return protocol.Errorf(protocol.CodeBadArgs, "%s has no argument %s; it takes %s", d.Name, quoteName(name), strings.Join(d.members(), ", "))
		}
		if r, err := sub.CloneSchemas().Resolve(nil); err == nil && r.Validate(obj[name]) != nil {
			return protocol.Errorf(protocol.CodeBadArgs, "the argument %q of %s must be %s", name, d.Name, describe(sub))
		}
	}
	return protocol.Errorf(protocol.CodeBadArgs, "the arguments don't fit the schema of %s", d.Name)
}

func (d *Definition) members() []string {
	return d.In.PropertyOrder
}

func quoteName(name string) string {
	if len(name) > 64 {
		name = name[:64]
	}
	return strconv.QuoteToASCII(name)
}

func describe(s *jsonschema.Schema) string {
	what := s.Type
	switch {
	case len(s.Enum) > 0:
		var vs []string
		for _, v := range s.Enum {
			vs = append(vs, fmt.Sprint(v))
		}
		return "one of " + strings.Join(vs, ", ")
	case s.Type == "array" && s.Items != nil:
		what = "an array of " + s.Items.Type + "s"
	case s.Type == "object" && s.AdditionalProperties != nil:
		what = "an object of " + s.AdditionalProperties.Type + "s"
	case s.Type == "integer":
		what = "an integer"
	case s.Type == "object":
		what = "an object"
	default:
		what = "a " + what
	}
	if s.Minimum != nil {
		what += fmt.Sprintf(", at least %v", *s.Minimum)
	}
	if s.Maximum != nil {
		what += fmt.Sprintf(", at most %v", *s.Maximum)
	}
	if s.MinLength != nil && *s.MinLength == 1 {
		what += ", not empty"
	}
	if s.MaxLength != nil {
		what += fmt.Sprintf(", at most %d characters", *s.MaxLength)
	}
	if s.MinItems != nil {
		what += fmt.Sprintf(", at least %d items", *s.MinItems)
	}
	return what
}

func badArgs(tool string, err error) error {
	var se *strict.Error
	if errors.As(err, &se) {
		return protocol.Errorf(protocol.CodeBadArgs, "the arguments of %s: %s", tool, se.Error())
	}
	return protocol.Errorf(protocol.CodeBadArgs, "the arguments of %s are not valid", tool)
}

func decodeStrict(b []byte, v any) error {
	if err := strict.Decode(b, v, json.RejectUnknownMembers(true)); err != nil {
		var se *json.SemanticError
		if errors.As(err, &se) && se.JSONPointer != "" {
			return protocol.Errorf(protocol.CodeBadArgs, "the argument %q has the wrong type", strings.TrimPrefix(string(se.JSONPointer), "/"))
		}
		return protocol.Errorf(protocol.CodeBadArgs, "the arguments don't fit")
	}
	return nil
}

// inBounds checks the min of numbers in a result, in lists and inner objects too.
func inBounds(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Slice:
		for i := range v.Len() {
			if err := inBounds(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			low, err := strconv.ParseInt(v.Type().Field(i).Tag.Get("min"), 10, 64)
			if err == nil && f.CanInt() && f.Int() < low {
				return fmt.Errorf("%s is below %d", v.Type().Field(i).Name, low)
			}
			if err := inBounds(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// All lists every definition, in the order of lists and docs.
func All() []*Definition {
	return []*Definition{
		ShellExec.Definition, PowerShellExec.Definition, ShellOutput.Definition,
		FSList.Definition, FSStat.Definition, FSRead.Definition, FSWrite.Definition, FSDownload.Definition, FSUpload.Definition,
		DiagSystem.Definition,
		JobStart.Definition, JobList.Definition, JobOutput.Definition, JobStop.Definition,
	}
}

// Find returns the definition of that name, or nil.
func Find(name string) *Definition {
	for _, d := range All() {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// Package callargs makes a call's arguments of what stands on a command line.
package callargs

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Schema is as much of a tool's JSON schema as converting arguments needs.
type Schema struct {
	Type       string            `json:"type"`
	Properties map[string]Schema `json:"properties"`
	Items      *Schema           `json:"items"`
}

// Build makes a call's argument object from key=value and key:=JSON words and from the
// text of --args ("" if there's none). A key stands once, whatever it comes from; only
// lists and maps take several values. The text of --args alone goes out byte for byte.
// The errors are *fleet.Error with bad_args.
func Build(words []string, whole string, s Schema) (jsontext.Value, error) {
	base := map[string]jsontext.Value{}
	if whole != "" {
		raw := jsontext.Value(strings.TrimSpace(whole))
		if err := strict.Check(raw, strict.Limits{MaxBytes: capability.MaxArgs, Numbers: true}); err != nil {
			return nil, fleet.Errorf(protocol.CodeBadArgs, "--args: %v", err)
		}
		if err := json.Unmarshal(raw, &base); raw.Kind() != '{' || err != nil {
			return nil, fleet.Errorf(protocol.CodeBadArgs, "--args must be one JSON object, such as {\"command\":\"uptime\"}")
		}
		if len(words) == 0 {
			return raw, nil
		}
	}
	values := map[string][]string{}
	var order []string
	for _, word := range words {
		key, value, isJSON, err := splitWord(word)
		if err != nil {
			return nil, err
		}
		if _, twice := base[key]; twice {
			return nil, givenTwice(key)
		}
		if isJSON {
			if err := strict.Check([]byte(value), strict.Limits{Numbers: true}); err != nil || len(values[key]) > 0 {
				if err == nil {
					return nil, givenTwice(key)
				}
				return nil, fleet.Errorf(protocol.CodeBadArgs, "%s:= wants JSON (%v); for text write %s=…", text.Line(key, 64), err, text.Line(key, 64))
			}
			base[key] = jsontext.Value(value)
			continue
		}
		if !slices.Contains(order, key) {
			order = append(order, key)
		}
		values[key] = append(values[key], value)
	}
	for _, key := range order {
		v, err := convert(key, values[key], s.Properties[key])
		if err != nil {
			return nil, err
		}
		base[key] = v
	}
	return json.Marshal(base, json.Deterministic(true))
}

func givenTwice(key string) error {
	return fleet.Errorf(protocol.CodeBadArgs, "the argument %s is given twice", text.Quote(key, 64))
}

// splitWord reads key=value or key:=JSON: whichever sign comes first.
func splitWord(word string) (key, value string, isJSON bool, err error) {
	key, value, ok := strings.Cut(word, "=")
	if ok {
		key, isJSON = strings.CutSuffix(key, ":")
	}
	switch {
	case !ok || key == "" || strings.ContainsAny(key, " \t\n\"'{}"):
		return "", "", false, fleet.Errorf(protocol.CodeBadArgs, "%s is not an argument: write key=value, key:=JSON, or --args '{…}'", text.Quote(word, 60))
	case key == "agent_id":
		return "", "", false, fleet.Errorf(protocol.CodeBadArgs, "agent_id is no argument of a tool: --agent names the host")
	}
	return key, value, isJSON, nil
}

// convert turns text into JSON of the type that the tool's Schema has for the key. A key
// that the schema lacks stays text: the server says what is wrong with it.
func convert(key string, texts []string, s Schema) (jsontext.Value, error) {
	switch s.Type {
	case "array":
		item := Schema{Type: "string"}
		if s.Items != nil {
			item = *s.Items
		}
		var list []jsontext.Value
		for _, t := range texts {
			v, err := scalar(key, t, item.Type)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return json.Marshal(list)
	case "object":
		m := map[string]string{}
		for _, t := range texts {
			k, v, ok := strings.Cut(t, "=")
			if _, twice := m[k]; twice || !ok || k == "" {
				return nil, fleet.Errorf(protocol.CodeBadArgs, "the argument %s takes NAME=VALUE, each name once: %s=LANG=C, or %s:='{\"LANG\":\"C\"}'", key, key, key)
			}
			m[k] = v
		}
		return json.Marshal(m, json.Deterministic(true))
	}
	if len(texts) > 1 {
		return nil, givenTwice(key)
	}
	return scalar(key, texts[0], s.Type)
}

func scalar(key, word, kind string) (jsontext.Value, error) {
	want := map[string]string{"integer": "a whole number", "number": "a number", "boolean": "true or false"}[kind]
	if want == "" {
		b, err := jsontext.AppendQuote(nil, word)
		if err != nil {
			return nil, fleet.Errorf(protocol.CodeBadArgs, "the argument %s is not valid UTF-8; send bytes as base64 where the tool takes it", text.Quote(key, 64))
		}
		return b, nil
	}
	v := jsontext.Value(word)
	ok := v.IsValid() && strings.TrimSpace(word) == word && v.Kind() == '0' && (kind == "number" || !strings.ContainsAny(word, ".eE"))
	if kind == "boolean" {
		ok = word == "true" || word == "false"
	}
	if !ok {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "the argument %s must be %s", text.Quote(key, 64), want)
	}
	return v, nil
}

// Read reads what --args names: @FILE, - for standard input (in), or the JSON itself. It's "" for
// "". The errors are *fleet.Error with bad_args or too_large.
func Read(spec string, in io.Reader) (string, error) {
	var b []byte
	var err error
	switch {
	case spec == "":
		return "", nil
	case spec == "-" || spec == "@-":
		b, err = io.ReadAll(io.LimitReader(in, capability.MaxArgs+1))
	case strings.HasPrefix(spec, "@"):
		b, err = os.ReadFile(spec[1:])
	case strings.HasPrefix(strings.TrimSpace(spec), "{"):
		return spec, nil
	default:
		return "", fleet.Errorf(protocol.CodeBadArgs, "--args takes @FILE, - for standard input, or a JSON object")
	}
	if err != nil {
		return "", fleet.Wrap(protocol.CodeBadArgs, err, "--args: %v", err)
	}
	if len(b) > capability.MaxArgs {
		return "", fleet.Errorf(protocol.CodeTooLarge, "--args: more than %d bytes", capability.MaxArgs)
	}
	if len(strings.TrimSpace(string(b))) == 0 {
		return "", fleet.Errorf(protocol.CodeBadArgs, "--args: there is nothing in it")
	}
	return string(b), nil
}

// SchemaOf reads the input schema of a tool as the server lists it.
func SchemaOf(raw jsontext.Value) (Schema, error) {
	var s Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("the tool's Schema: %w", err)
	}
	return s, nil
}

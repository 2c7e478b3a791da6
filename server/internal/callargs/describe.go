package callargs

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
)

// Tool is what Describe shows of a tool, as the server lists it.
type Tool struct {
	Name, Title, Description, Effect, Stream string
	InputSchema                              jsontext.Value
}

// argument is as much of an argument's JSON schema as people need.
type argument struct {
	name      string
	needed    bool
	Type      string         `json:"type"`
	Doc       string         `json:"description"`
	Enum      []string       `json:"enum"`
	Default   jsontext.Value `json:"default"`
	Min       jsontext.Value `json:"minimum"`
	Max       jsontext.Value `json:"maximum"`
	MinLength jsontext.Value `json:"minLength"`
	MaxLength jsontext.Value `json:"maxLength"`
	MinItems  jsontext.Value `json:"minItems"`
	MaxItems  jsontext.Value `json:"maxItems"`
	Items     *argument      `json:"items"`
}

// How wide descriptions are, in bytes: below a table's other columns, and alone.
const (
	docWidth   = 60
	aloneWidth = 96
)

// Describe writes what a tool does, its arguments, and a command line that calls it on an agent.
func Describe(w io.Writer, t Tool, agent string) error {
	args, err := arguments(t.InputSchema)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s (%s): %s\n\n", text.Line(t.Name, 64), text.Line(t.Effect, 40), text.Line(t.Title, 200))
	for _, line := range wrapped(t.Description, aloneWidth) {
		fmt.Fprintln(w, line)
	}
	if len(args) == 0 {
		fmt.Fprintln(w, "\nIt takes no arguments.")
	} else {
		fmt.Fprintln(w)
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "ARGUMENT\tTYPE\tNEEDED\tLIMITS\tWHAT")
		for _, a := range args {
			doc := wrapped(a.Doc, docWidth)
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", text.Line(a.name, 64), a.kind(), map[bool]string{true: "yes", false: "-"}[a.needed], cmp.Or(a.limits(), "-"), doc[0])
			for _, line := range doc[1:] {
				fmt.Fprintf(tw, "\t\t\t\t%s\n", line)
			}
		}
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "\nExample:\n  %s\n", example(t, args, cmp.Or(agent, "ID")))
	return err
}

// arguments reads a tool's schema: what is needed first, then in the schema's own order.
func arguments(schema jsontext.Value) ([]argument, error) {
	var s struct {
		Properties jsontext.Value `json:"properties"`
		Required   []string       `json:"required"`
	}
	if err := json.Unmarshal(schema, &s); err != nil {
		return nil, fmt.Errorf("the tool's schema: %w", err)
	}
	if len(s.Properties) == 0 {
		return nil, nil
	}
	var out []argument
	dec := jsontext.NewDecoder(bytes.NewReader(s.Properties))
	if _, err := dec.ReadToken(); err != nil {
		return nil, fmt.Errorf("the tool's schema: %w", err)
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, fmt.Errorf("the tool's schema: %w", err)
		}
		a := argument{name: name.String()}
		if err := json.UnmarshalDecode(dec, &a); err != nil {
			return nil, fmt.Errorf("the tool's schema: %s: %w", text.Quote(a.name, 64), err)
		}
		a.needed = slices.Contains(s.Required, a.name)
		out = append(out, a)
	}
	slices.SortStableFunc(out, func(a, b argument) int {
		switch {
		case a.needed == b.needed:
			return 0
		case a.needed:
			return -1
		default:
			return 1
		}
	})
	return out, nil
}

// kind is an argument's type in the words of the command line.
func (a *argument) kind() string {
	switch a.Type {
	case "string":
		return "text"
	case "integer":
		return "whole number"
	case "boolean":
		return "true or false"
	case "array":
		if a.Items != nil && a.Items.Type != "object" && a.Items.Type != "array" {
			return "list of " + a.Items.kind()
		}
		return "list (JSON)"
	case "object":
		return "NAME=VALUE pairs"
	default:
		return text.Line(cmp.Or(a.Type, "JSON"), 40)
	}
}

func (a *argument) limits() string {
	var out []string
	if len(a.Enum) > 0 {
		out = append(out, strings.Join(a.Enum, ", "))
	}
	between := func(low, high jsontext.Value, unit string) {
		switch {
		case len(low) > 0 && len(high) > 0:
			out = append(out, fmt.Sprintf("%s to %s%s", low, high, unit))
		case len(low) > 0:
			out = append(out, fmt.Sprintf("at least %s%s", low, unit))
		case len(high) > 0:
			out = append(out, fmt.Sprintf("at most %s%s", high, unit))
		}
	}
	between(a.Min, a.Max, "")
	between(a.MinLength, a.MaxLength, " characters")
	between(a.MinItems, a.MaxItems, " times")
	if len(a.Default) > 0 {
		out = append(out, "by default "+string(a.Default))
	}
	return text.Line(strings.Join(out, "; "), 120)
}

// example is a line that uses the tool: with its definition's own example where this program has
// it, else with what is needed.
func example(t Tool, args []argument, agent string) string {
	agent = Word(text.Line(agent, 64))
	switch capability.Stream(t.Stream) {
	case capability.ToHost:
		return "drover cp ./FILE " + agent + ":/PATH"
	case capability.FromHost:
		return "drover cp " + agent + ":/PATH ."
	}
	given := map[string]jsontext.Value{}
	if d := capability.Find(t.Name); d != nil {
		_ = json.Unmarshal([]byte(d.Example), &given) // without it, as of a tool that isn't known
	}
	line := "drover call --agent " + agent + " " + Word(text.Line(t.Name, 64))
	for _, a := range args {
		switch v, ok := given[a.name]; {
		case ok:
			line += " " + a.word(v)
		case a.needed && len(given) == 0:
			line += " " + Word(text.Line(a.name, 64)+"="+strings.ToUpper(a.kind()))
		}
	}
	return line
}

// word gives an argument a value on a command line.
func (a *argument) word(v jsontext.Value) string {
	var list []string
	var one string
	switch {
	case a.Type == "array" && json.Unmarshal(v, &list) == nil:
		words := make([]string, len(list))
		for i, item := range list {
			words[i] = Word(a.name + "=" + item)
		}
		return strings.Join(words, " ")
	case a.Type == "string" && json.Unmarshal(v, &one) == nil:
		return Word(a.name + "=" + one)
	case a.Type == "integer" || a.Type == "number" || a.Type == "boolean":
		return Word(a.name + "=" + string(v))
	default:
		return Word(a.name + ":=" + string(v))
	}
}

// wrapped is a text in visible lines of about width bytes; there's at least one.
func wrapped(s string, width int) []string {
	lines := []string{""}
	for word := range strings.FieldsSeq(text.Visible(s)) {
		last := &lines[len(lines)-1]
		switch {
		case *last == "":
			*last = word
		case len(*last)+1+len(word) <= width:
			*last += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

// Word is a word of a shell's command line.
func Word(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-+:@%=", r) && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// InsteadOf says what the command line has instead of a tool of the server's own, which MCP
// clients alone have; "" of another name. prefix is where REST begins.
func InsteadOf(tool, prefix string) string {
	switch tool {
	case "list_agents", "fleet_overview":
		return "drover agents list"
	case "select_agent":
		return "drover agents show ID"
	case "whoami":
		return "drover tools and drover agents list, which show what the token reaches (GET " + prefix + "/whoami tells whose it is)"
	case "call_result":
		return "the call's own command with the same --idempotency-key, and GET " + prefix + "/calls/ID"
	case "call_cancel":
		return "Ctrl-C in drover call, and POST " + prefix + "/calls/ID/cancel"
	default:
		return ""
	}
}

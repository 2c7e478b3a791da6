package callargs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

func schemaFor(t *testing.T, tool string) Schema {
	t.Helper()
	raw, err := capability.Find(tool).In.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	s, err := SchemaOf(raw)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		tool, words, text, want string // words are separated by |; want that begins with ! is part of an error
	}{
		{"shell_exec", "command=uptime", "", `{"command":"uptime"}`},
		{"shell_exec", "command=a=b c:=d", "", `{"command":"a=b c:=d"}`},
		{"shell_exec", "command=", "", `{"command":""}`},
		{"shell_exec", "command=7|timeout_seconds=7", "", `{"command":"7","timeout_seconds":7}`},
		{"shell_exec", "command=true", "", `{"command":"true"}`},
		{"shell_exec", "argv=ls|argv=-l|argv=a b", "", `{"argv":["ls","-l","a b"]}`},
		{"shell_exec", "argv:=[\"x\"]", "", `{"argv":["x"]}`},
		{"shell_exec", "command=x|env=LANG=C|env=A=b=c", "", `{"command":"x","env":{"A":"b=c","LANG":"C"}}`},
		{"shell_exec", "command:=\"q\\n\"", "", `{"command":"q\n"}`},
		{"fs_write", "path=/x|content=true|create_parents=true", "", `{"content":"true","create_parents":true,"path":"/x"}`},
		{"fs_read", "path=/x|offset=-5", "", `{"offset":-5,"path":"/x"}`},
		{"shell_exec", "timeout_seconds=3", `{"command":"x"}`, `{"command":"x","timeout_seconds":3}`},
		{"shell_exec", "", ` {"command" : "x", "timeout_seconds":1.0} `, `{"command" : "x", "timeout_seconds":1.0}`},
		{"shell_exec", "", "", `{}`},
		{"nope", "a=1|b:=2", "", `{"a":"1","b":2}`},
		{"shell_exec", "zzz=1", "", `{"zzz":"1"}`},

		{"shell_exec", "timeout_seconds=soon", "", `!must be a whole number`},
		{"shell_exec", "timeout_seconds=1.5", "", `!must be a whole number`},
		{"shell_exec", "timeout_seconds= 1", "", `!must be a whole number`},
		{"shell_exec", "timeout_seconds=", "", `!must be a whole number`},
		{"fs_write", "create_parents=yes", "", `!must be true or false`},
		{"shell_exec", "command=a|command=b", "", `!given twice`},
		{"shell_exec", "command=a|command:=\"b\"", "", `!given twice`},
		{"shell_exec", "command:=\"b\"|command=a", "", `!given twice`},
		{"shell_exec", "command=a", `{"command":"b"}`, `!given twice`},
		{"shell_exec", "env=A=1|env=A=2", "", `!each name once`},
		{"shell_exec", "env=A", "", `!NAME=VALUE`},
		{"shell_exec", "uptime", "", `!write key=value`},
		{"shell_exec", "=x", "", `!write key=value`},
		{"shell_exec", "agent_id=web-01", "", `!--agent names the host`},
		{"shell_exec", "command:=uptime", "", `!wants JSON`},
		{"shell_exec", "env:={\"A\":\"1\",\"A\":\"2\"}", "", `!wants JSON`},
		{"shell_exec", "command=\xff", "", `!not valid UTF-8`},
		{"shell_exec", "", `{"command":"a","command":"b"}`, `!--args`},
		{"shell_exec", "", `["a"]`, `!one JSON object`},
		{"shell_exec", "", `{"n":9007199254740993}`, `!--args`},
		{"shell_exec", "", `{"a":1} {}`, `!--args`},
	} {
		var words []string
		if c.words != "" {
			words = strings.Split(c.words, "|")
		}
		var s Schema
		if capability.Find(c.tool) != nil {
			s = schemaFor(t, c.tool)
		}
		got, err := Build(words, c.text, s)
		want, fails := strings.CutPrefix(c.want, "!")
		switch {
		case fails && (err == nil || !strings.Contains(err.Error(), want) || fleet.AsError(err).Code != "bad_args"):
			t.Errorf("%q %q: %s, %v; want an error with %q", c.words, c.text, got, err, want)
		case !fails && (err != nil || string(got) != want):
			t.Errorf("%q %q: %s, %v; want %s", c.words, c.text, got, err, want)
		}
	}
}

func TestArgsFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.json")
	if err := os.WriteFile(file, []byte(`{"command":"file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	in := strings.NewReader(`{"command":"stdin"}`)
	for spec, want := range map[string]string{"": "", "@" + file: `{"command":"file"}`, "-": `{"command":"stdin"}`, `{"a":1}`: `{"a":1}`} {
		if got, err := Read(spec, in); err != nil || got != want {
			t.Errorf("%s: %q, %v", spec, got, err)
		}
	}
	for _, spec := range []string{"@/nope/nope", "plain", "-"} { // - is at its end now
		if got, err := Read(spec, in); err == nil {
			t.Errorf("%s: %q", spec, got)
		}
	}
}

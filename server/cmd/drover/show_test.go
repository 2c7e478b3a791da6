package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/server/internal/restapi"
)

func process(exit, signal, stdout string) jsontext.Value {
	return jsontext.Value(`{"exit_code":` + exit + `,"signal":"` + signal + `","stdout":` + stdout + `,"stderr":"e\n","stdout_bytes":1,"stderr_bytes":2,"duration_ms":1}`)
}

func TestHowACallIsShown(t *testing.T) {
	fail := func(code, reason string) *restapi.CallError {
		return &restapi.CallError{Code: code, Reason: reason, Message: "why\x1b[2J"}
	}
	hostile := `"\u001b[2J\u009b\u202e\rx\n"`
	for _, c := range []struct {
		name     string
		call     restapi.Call
		o        callFlags
		tty      bool
		code     int
		out, err string
	}{
		{name: "ok", call: restapi.Call{State: "succeeded", Result: process("0", "", `"o\n"`)}, out: "o\n", err: "e\n"},
		{name: "exit code", call: restapi.Call{State: "succeeded", Result: process("7", "", `"o\n"`)}, code: 7, out: "o\n", err: "e\n"},
		{name: "255", call: restapi.Call{State: "succeeded", Result: process("255", "", `""`)}, code: 255, err: "e\ndrover: the command itself exited with 255\n"},
		{name: "windows", call: restapi.Call{State: "succeeded", Result: process("3221225477", "", `""`)}, code: 5, err: "e\n"},
		{name: "never 0 by cutting", call: restapi.Call{State: "succeeded", Result: process("256", "", `""`)}, code: 1, err: "e\n"},
		{name: "negative", call: restapi.Call{State: "succeeded", Result: process("-1", "", `""`)}, code: 255, err: "e\ndrover: the command itself exited with -1\n"},
		{name: "signal", call: restapi.Call{State: "failed", Result: process("137", "SIGKILL", `"o\n"`), Error: fail("tool_failed", "signal")}, code: 137, out: "o\n", err: "e\ndrover: tool_failed (signal): why\\x1b[2J\n"},
		{name: "time", call: restapi.Call{State: "timed_out", Result: process("-1", "", `"o\n"`), Error: fail("timed_out", "")}, code: 255, out: "o\n", err: "e\ndrover: timed_out: why\\x1b[2J\n"},
		{name: "offline", call: restapi.Call{State: "not_started", Error: fail("offline", "")}, code: 255, err: "drover: offline: why\\x1b[2J\n"},
		{name: "raw in a pipe", call: restapi.Call{State: "succeeded", Result: process("0", "", hostile)}, out: "\x1b[2J\u009b\u202e\rx\n", err: "e\n"},
		{name: "escaped on a terminal", call: restapi.Call{State: "succeeded", Result: process("0", "", hostile)}, tty: true, out: `\x1b[2J\xc2\x9b\xe2\x80\xae\x0dx` + "\n", err: "e\n"},
		{name: "raw if asked", call: restapi.Call{State: "succeeded", Result: process("0", "", hostile)}, o: callFlags{raw: true}, tty: true, out: "\x1b[2J\u009b\u202e\rx\n", err: "e\n"},
		{name: "json", call: restapi.Call{Tool: "fs_stat", State: "succeeded", Result: jsontext.Value(`{"name":"a\u202e\u007f"}`)}, out: "{\n  \"name\": \"a\\u202e\\u007f\"\n}\n"},
		{name: "json of a process", call: restapi.Call{CallID: "c", Tool: "shell_exec", State: "succeeded", Result: process("3", "", `"o\n"`)}, o: callFlags{json: true}, code: 3, out: "{\n  \"call_id\": \"c\""},
		{name: "file", call: restapi.Call{Tool: "fs_read", State: "succeeded", Result: jsontext.Value(`{"kind":"text","text":"a\nb","size":3,"unit":"lines"}`)}, out: "a\nb"},
		{name: "part of a file", call: restapi.Call{Tool: "fs_read", State: "succeeded", Result: jsontext.Value(`{"kind":"text","text":"a\n","size":30,"unit":"lines","next_offset":1}`)}, out: "a\n", err: "drover: the file has 30 bytes and goes on: offset=1\n"},
		{name: "binary", call: restapi.Call{Tool: "fs_read", State: "succeeded", Result: jsontext.Value(`{"kind":"binary","data":"AAH/","mime":"application/x","size":3,"unit":"bytes"}`)}, out: "\x00\x01\xff"},
		{name: "binary on a terminal", call: restapi.Call{Tool: "fs_read", State: "succeeded", Result: jsontext.Value(`{"kind":"binary","data":"AAH/","mime":"application/x","size":3,"unit":"bytes"}`)}, tty: true, err: "drover: 3 bytes of application/x; redirect standard output to a file to get them\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			a := &app{out: &out, err: &errOut, outTTY: c.tty, errTTY: c.tty}
			code, err := a.show(&c.o, &c.call)
			if err != nil || code != c.code {
				t.Errorf("exit code %d, %v; want %d", code, err, c.code)
			}
			if c.o.json && strings.HasPrefix(out.String(), c.out) {
				return
			}
			if out.String() != c.out || errOut.String() != c.err {
				t.Errorf("\nout %q\nwant %q\nerr %q\nwant %q", out.String(), c.out, errOut.String(), c.err)
			}
		})
	}
}

func TestTableCellsAreOneVisibleLine(t *testing.T) {
	var out bytes.Buffer
	if err := table(&out, []string{"A", "B"}, [][]string{{"x\n\x1b[2Jy\u202e", ""}, {strings.Repeat("é", 500), "z"}}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 3 || strings.ContainsAny(got, "\x1b\u202e") || !strings.Contains(got, "-") {
		t.Errorf("%q", got)
	}
}

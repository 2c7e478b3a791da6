//go:build linux

package capability_test

import (
	"encoding/base64"
	"encoding/binary"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
)

// standIn puts a program named pwsh first in PATH that records its arguments and input. No
// real PowerShell runs in this test: it proves what PowerShell is given, not what it does.
func standIn(t *testing.T) (record string) {
	t.Helper()
	dir := t.TempDir()
	record = dir + "/record"
	script := "#!/bin/sh\nprintf '%s\\0' \"$@\" >" + record + "\ncat >" + record + ".stdin\nprintf '%s' \"$DROVER_SCRIPT\" >" + record + ".script\nprintf 'täst\\n'\nexit 7\n"
	if err := os.WriteFile(dir+"/pwsh", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return record
}

func TestX08_X09_PowerShellGetsTheScriptUnchanged(t *testing.T) {
	record := standIn(t)
	r := newRig(t)
	run := ""
	for _, script := range []string{
		"$x=\"a b\"; Write-Host \"$x %PATH% 'q' `t C:\\\"\nWrite-Output '测试 äöü €😀' # comment",
		"param([string]$Name = 'x')\nWrite-Output $Name",
		"using namespace System.Text\n[Encoding]::UTF8.WebName",
		"#requires -Version 5.1\n'@\n$env:DROVER_SCRIPT",
	} {
		out, fault := call[spec.ProcessOut](t.Context(), t, r, "powershell_exec", args{"script": script, "stdin": "in\n"})
		if fault != nil || out.ExitCode != 7 || out.Stdout != "täst\n" {
			t.Fatalf("got %+v, %v", out, fault)
		}
		// It's data, byte for byte: what precedes it stands apart from it and is always the same.
		if got := readFile(t, record+".script"); got != script {
			t.Errorf("the script is %q, not %q", got, script)
		}
		text := encodedCommand(t, record)
		if run == "" {
			run = text
		}
		if text != run {
			t.Errorf("another script is run by\n%s\nnot by\n%s", text, run)
		}
		if got := readFile(t, record+".stdin"); got != "in\n" {
			t.Errorf("stdin %q", got)
		}
	}
	for _, part := range []string{"[Console]::OutputEncoding", "UTF8Encoding $false", "$env:DROVER_SCRIPT", "Remove-Item Env:DROVER_SCRIPT", "[ScriptBlock]::Create($DroverScript", ". $DroverBlock"} {
		if !strings.Contains(run, part) {
			t.Errorf("no %s in\n%s", part, run)
		}
	}
}

// encodedCommand is the text that the stand-in was told to run.
func encodedCommand(t *testing.T, record string) string {
	t.Helper()
	argv := strings.Split(strings.TrimSuffix(readFile(t, record), "\x00"), "\x00")
	want := []string{"-NoLogo", "-NoProfile", "-NonInteractive", "-InputFormat", "Text", "-OutputFormat", "Text", "-EncodedCommand"}
	if len(argv) != len(want)+1 || !slices.Equal(argv[:len(want)], want) {
		t.Fatalf("argv %q", argv)
	}
	b, err := base64.StdEncoding.DecodeString(argv[len(want)])
	if err != nil {
		t.Fatal(err)
	}
	var units []uint16
	for i := 0; i < len(b); i += 2 {
		units = append(units, binary.LittleEndian.Uint16(b[i:]))
	}
	return string(utf16.Decode(units))
}

// A script of the allowed length fits a variable of Windows, and what runs it fits a command
// line: either has 32,767 characters.
func TestPowerShellScriptsFitTheSystem(t *testing.T) {
	record := standIn(t)
	r := newRig(t)
	if _, fault := call[spec.ProcessOut](t.Context(), t, r, "powershell_exec", args{"script": strings.Repeat("é", 10_000)}); fault != nil {
		t.Fatal(fault)
	}
	if n := len(readFile(t, record)) + len(`"C:\Program Files\PowerShell\7\pwsh.exe" `); n > 32_767 {
		t.Errorf("%d characters of command line", n)
	}
	if n := len([]rune(readFile(t, record+".script"))); n != 10_000 {
		t.Errorf("%d characters of script", n)
	}
	_, fault := call[spec.ProcessOut](t.Context(), t, r, "powershell_exec", args{"script": "a\x00b"})
	wantFault(t, fault, protocol.CodeBadArgs, "")
}

func TestPowerShellIsOfferedOnlyWhereItIs(t *testing.T) {
	offers := func() bool {
		return slices.ContainsFunc(newRig(t).reg.Capabilities(), func(c protocol.Capability) bool { return c.Name == "powershell_exec" })
	}
	t.Setenv("PATH", t.TempDir())
	if offers() {
		t.Error("offered without PowerShell")
	}
	_, fault := call[spec.ProcessOut](t.Context(), t, newRig(t), "powershell_exec", args{"script": "1"})
	wantFault(t, fault, protocol.CodeUnsupported, "")
	standIn(t)
	if !offers() {
		t.Error("not offered with PowerShell")
	}
}

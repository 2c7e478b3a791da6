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
	script := "#!/bin/sh\nprintf '%s\\0' \"$@\" >" + record + "\ncat >" + record + ".stdin\nprintf 'täst\\n'\nexit 7\n"
	if err := os.WriteFile(dir+"/pwsh", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return record
}

func TestX08_X09_PowerShellGetsTheScriptUnchanged(t *testing.T) {
	record := standIn(t)
	r := newRig(t)
	script := "$x=\"a b\"; Write-Host \"$x %PATH% 'q' `t C:\\\"\nWrite-Output '测试 äöü €😀' # comment"
	out, fault := call[spec.ProcessOut](t.Context(), t, r, "powershell_exec", args{"script": script, "stdin": "in\n"})
	if fault != nil || out.ExitCode != 7 || out.Stdout != "täst\n" {
		t.Fatalf("got %+v, %v", out, fault)
	}
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
	text := string(utf16.Decode(units))
	if !strings.Contains(text, "\n"+script+"\n") || !strings.Contains(text, "[Console]::OutputEncoding") || !strings.Contains(text, "UTF8Encoding $false") {
		t.Errorf("decoded:\n%s", text)
	}
	if got := readFile(t, record+".stdin"); got != "in\n" {
		t.Errorf("stdin %q", got)
	}
}

// A script of the allowed length still fits Windows' command line of 32,767 characters.
func TestPowerShellScriptsFitTheCommandLine(t *testing.T) {
	record := standIn(t)
	r := newRig(t)
	if _, fault := call[spec.ProcessOut](t.Context(), t, r, "powershell_exec", args{"script": strings.Repeat("é", 10_000)}); fault != nil {
		t.Fatal(fault)
	}
	if n := len(readFile(t, record)) + len(`"C:\Program Files\PowerShell\7\pwsh.exe" `); n > 32_767 {
		t.Errorf("%d characters", n)
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

package capability

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"os/exec"
	"runtime"
	"strings"
	"unicode/utf16"

	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
)

// psScript is the variable that carries the script to psRun, which takes it away again before
// the script begins.
const psScript = "DROVER_SCRIPT"

// psRun makes PowerShell write UTF-8 without a byte order mark whatever the console's code page
// is, keeps progress bars out of the output, and runs the script, which is data to it: nothing
// stands before the script's own first line, where alone param, using and #requires may be.
// It's run in this scope, as if it stood here. After it, the code of the program that failed
// last is the exit code, where PowerShell itself would make it 1; a script of named blocks
// (begin, process, end), after which nothing may follow, goes without. What #requires asks for
// is checked by PowerShell for files alone, so the parts that a script can't do without are
// checked here.
const psRun = `$ProgressPreference='SilentlyContinue'
try { [Console]::OutputEncoding=[Console]::InputEncoding=New-Object System.Text.UTF8Encoding $false } catch {}
$OutputEncoding=New-Object System.Text.UTF8Encoding $false
$DroverScript=$env:DROVER_SCRIPT
Remove-Item Env:DROVER_SCRIPT
$DroverEnd=@'

if (-not $?) { if ($LASTEXITCODE) { exit $LASTEXITCODE } else { exit 1 } }
'@
try { $DroverBlock=[ScriptBlock]::Create($DroverScript+$DroverEnd) } catch { $DroverBlock=[ScriptBlock]::Create($DroverScript) }
$DroverNeeds=$DroverBlock.Ast.ScriptRequirements
if ($DroverNeeds) {
  if ($DroverNeeds.RequiredPSVersion -gt $PSVersionTable.PSVersion) { throw "#requires: PowerShell $($DroverNeeds.RequiredPSVersion); this is $($PSVersionTable.PSVersion)" }
  if ($DroverNeeds.RequiredPSEditions -and $DroverNeeds.RequiredPSEditions -notcontains $PSVersionTable.PSEdition) { throw "#requires: PowerShell edition $($DroverNeeds.RequiredPSEditions)" }
  if ($DroverNeeds.IsElevationRequired -and [Environment]::OSVersion.Platform -eq 'Win32NT' -and -not (New-Object Security.Principal.WindowsPrincipal ([Security.Principal.WindowsIdentity]::GetCurrent())).IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) { throw '#requires: an administrator' }
  foreach ($DroverModule in $DroverNeeds.RequiredModules) { Import-Module -FullyQualifiedName $DroverModule -ErrorAction Stop }
}
$DroverInput=@($input)
if ($DroverInput.Count) { $DroverInput | . $DroverBlock } else { . $DroverBlock }
`

// powerShellExec runs a script. It's passed as a variable, so that nothing between here and
// PowerShell reads quotes, dollar or percent signs.
func (h *Host) powerShellExec(ctx context.Context, c *run.Call, in capability.PowerShellExecIn) (capability.ProcessOut, error) {
	if strings.ContainsRune(in.Script, 0) {
		return capability.ProcessOut{}, protocol.Errorf(protocol.CodeBadArgs, "script holds a NUL byte")
	}
	cmd, err := h.newCommand(c, in.Cwd, in.Env)
	if err != nil {
		return capability.ProcessOut{}, err
	}
	cmd.path = h.pwsh
	cmd.argv = []string{h.pwsh, "-NoLogo", "-NoProfile", "-NonInteractive", "-InputFormat", "Text", "-OutputFormat", "Text",
		"-EncodedCommand", encodeScript(psRun)}
	cmd.env = append(cmd.env, psScript+"="+in.Script)
	cmd.stdin = in.Stdin
	cmd.timeout = timeoutOf(in.TimeoutSeconds)
	cmd.limit = cmp.Or(in.MaxOutput, capability.DefaultOutput)
	return h.runProcess(ctx, c, cmd)
}

// encodeScript is the form of -EncodedCommand: base64 of UTF-16, little endian.
func encodeScript(script string) string {
	units := utf16.Encode([]rune(script))
	b := make([]byte, 0, 2*len(units))
	for _, u := range units {
		b = binary.LittleEndian.AppendUint16(b, u)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// findPowerShell looks for pwsh, on Windows also for Windows PowerShell; "" when there is
// none.
func findPowerShell() string {
	names := []string{"pwsh"}
	if runtime.GOOS == "windows" {
		names = append(names, "powershell")
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

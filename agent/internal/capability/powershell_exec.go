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

// psBefore makes PowerShell write UTF-8 without a byte order mark whatever the console's
// code page is, and keeps progress bars out of the output.
const psBefore = `$ProgressPreference='SilentlyContinue'
try { [Console]::OutputEncoding=[Console]::InputEncoding=New-Object System.Text.UTF8Encoding $false } catch {}
$OutputEncoding=New-Object System.Text.UTF8Encoding $false
`

// psAfter ends with the code of the program that failed last, where PowerShell itself
// would make it 1.
const psAfter = `
if (-not $?) { if ($LASTEXITCODE) { exit $LASTEXITCODE } else { exit 1 } }
`

// powerShellExec runs a script. It's passed encoded, so that nothing between here and
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
		"-EncodedCommand", encodeScript(psBefore + in.Script + psAfter)}
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

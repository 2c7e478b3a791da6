package capability

// PowerShellExecIn are the arguments of powershell_exec.
type PowerShellExecIn struct {
	Script         string            `json:"script" minlen:"1" maxlen:"10000" jsonschema:"A PowerShell script. It's passed as data, never through cmd, so that quotes, $ and % arrive unchanged; param, using or #requires may stand first."`
	Cwd            string            `json:"cwd,omitempty" maxlen:"4096" jsonschema:"The folder to run in; the agent user's home when absent."`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Environment variables added for this script. Names that begin with DROVER_ are refused."`
	Stdin          string            `json:"stdin,omitempty" maxlen:"1048576" jsonschema:"Text given on standard input; without it standard input is empty and closed."`
	TimeoutSeconds int               `json:"timeout_seconds,omitzero" min:"1" max:"86400" jsonschema:"The script and everything it started is killed after this many seconds; 120 when absent."`
	MaxOutput      int               `json:"max_output,omitzero" min:"1000" max:"1048576" jsonschema:"Bytes of output to return over stdout and stderr together; 40000 when absent."`
}

// PowerShellExec runs a PowerShell script on the host.
var PowerShellExec = Define[PowerShellExecIn, ProcessOut](Spec{
	Name: "powershell_exec", Title: "Run a PowerShell script on one host", Version: 2,
	Doc: "Runs a PowerShell script on the host named by agent_id (pwsh, else Windows PowerShell), as the agent's user, and returns its output as UTF-8 and its exit code. " +
		"Offered by hosts that have PowerShell.",
	Effect: NormalChange, Traits: []Trait{ReadsPrivate, UntrustedInput, SendsOut},
	Destructive: true, OpenWorld: true, Render: RenderProcess, Redact: []string{"stdin", "env"},
	Example: `{"script":"Get-Date -Format o"}`, Timeout: 120,
})

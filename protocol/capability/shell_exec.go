package capability

// Output limits of the two command tools, in bytes over stdout, stderr and error text.
const (
	DefaultOutput = 40_000
	MaxOutput     = 1 << 20
)

// ShellExecIn are the arguments of shell_exec; command or argv, not both.
type ShellExecIn struct {
	Command        string            `json:"command,omitempty" maxlen:"131072" jsonschema:"A command line for the host's shell: bash -c (else sh -c), on Windows cmd /d /s /c. Give this or argv."`
	Argv           []string          `json:"argv,omitempty" minitems:"1" maxitems:"1024" jsonschema:"A program and its arguments, executed without a shell; bytes arrive unchanged. Give this or command."`
	Cwd            string            `json:"cwd,omitempty" maxlen:"4096" jsonschema:"The folder to run in; the agent user's home when absent."`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Environment variables added for this command. Names that begin with DROVER_ are refused."`
	Stdin          string            `json:"stdin,omitempty" maxlen:"1048576" jsonschema:"Text given on standard input; without it standard input is empty and closed."`
	TimeoutSeconds int               `json:"timeout_seconds,omitzero" min:"1" max:"86400" jsonschema:"The command and everything it started is killed after this many seconds; 120 when absent."`
	MaxOutput      int               `json:"max_output,omitzero" min:"1000" max:"1048576" jsonschema:"Bytes of output to return over stdout and stderr together; 40000 when absent. What is beyond keeps its head and tail."`
}

// ProcessOut is the result of shell_exec and powershell_exec. Text is valid UTF-8 without
// NUL; invalid bytes are written as \xNN and flagged.
type ProcessOut struct {
	ExitCode    int    `json:"exit_code" min:"-1" jsonschema:"The exit code; 128+n after signal n, -1 if it never started or was ended by a time limit or a cancel."`
	Signal      string `json:"signal,omitempty" jsonschema:"The signal that ended it, such as SIGKILL."`
	Stdout      string `json:"stdout" jsonschema:"Standard output."`
	Stderr      string `json:"stderr" jsonschema:"Standard error."`
	StdoutBytes int64  `json:"stdout_bytes" min:"0" jsonschema:"All bytes written to standard output, also those not returned."`
	StderrBytes int64  `json:"stderr_bytes" min:"0" jsonschema:"All bytes written to standard error, also those not returned."`
	Truncated   bool   `json:"truncated,omitzero" jsonschema:"Output was cut: the middle is missing."`
	Invalid     bool   `json:"invalid_utf8,omitzero" jsonschema:"Output held bytes that aren't UTF-8 or a NUL; they're written as \\xNN."`
	PID         int    `json:"pid,omitzero" min:"0" jsonschema:"The process id on the host."`
	DurationMS  int64  `json:"duration_ms" min:"0" jsonschema:"How long it ran, in milliseconds."`
	Left        []int  `json:"left_behind,omitempty" jsonschema:"Process ids that could not be killed."`
	// Version 2.
	Kept       bool `json:"kept,omitzero" jsonschema:"More was printed than is returned here; the host keeps the full output for a day, for shell_output."`
	KeptPartly bool `json:"kept_partly,omitzero" jsonschema:"The host keeps only the beginning of the output: the rest was beyond its limits."`
}

// ShellExec runs a command on the host.
var ShellExec = Define[ShellExecIn, ProcessOut](Spec{
	Name: "shell_exec", Title: "Run a command on one host", Version: 2,
	Doc: "Runs a command on the host named by agent_id, as the agent's user, and returns its output and exit code. " +
		"A non-zero exit code is a result, not an error. Standard input is empty unless stdin is given, so programs that ask questions end at once; " +
		"use sudo -n. Start what takes longer than a minute, or must not be interrupted, with job_start instead: it outlives this client and the connection. Of long output the head and the tail are returned, and shell_output pages through all of it. Use argv instead of command for values that must not pass through a shell.",
	Effect: NormalChange, Traits: []Trait{ReadsPrivate, UntrustedInput, SendsOut},
	Destructive: true, OpenWorld: true, Render: RenderProcess, Redact: []string{"stdin", "env"},
	Example: `{"command":"uptime","timeout_seconds":10}`, Timeout: 120,
})

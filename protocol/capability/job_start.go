package capability

// Limits of background jobs.
const (
	// DefaultJobTimeout is how long a job may run when the caller says nothing, in seconds.
	DefaultJobTimeout = 24 * 60 * 60
	// DefaultJobOutput is how many bytes of a job's output are kept when the caller says nothing.
	DefaultJobOutput = 256 << 20
	// MaxJobs is how many jobs run at once on one agent.
	MaxJobs = 64
)

// JobStartIn are the arguments of job_start; command or argv, not both.
type JobStartIn struct {
	Command        string            `json:"command,omitempty" maxlen:"131072" jsonschema:"A command line for the host's shell: bash -c (else sh -c), on Windows cmd /d /s /c. Give this or argv."`
	Argv           []string          `json:"argv,omitempty" minitems:"1" maxitems:"1024" jsonschema:"A program and its arguments, executed without a shell; bytes arrive unchanged. Give this or command."`
	Cwd            string            `json:"cwd,omitempty" maxlen:"4096" jsonschema:"The folder to run in; the agent user's home when absent."`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Environment variables added for this job. Names that begin with DROVER_ are refused."`
	Stdin          string            `json:"stdin,omitempty" maxlen:"1048576" jsonschema:"Text given on standard input; without it standard input is empty and closed."`
	TimeoutSeconds int               `json:"timeout_seconds,omitzero" min:"1" max:"604800" jsonschema:"The job and everything it started is ended after this many seconds; 86400 (a day) when absent, at most 604800 (a week)."`
	Name           string            `json:"name,omitempty" maxlen:"100" jsonschema:"A name for lists, such as nightly-backup. It needn't be unique."`
	MaxOutput      int64             `json:"max_output,omitzero" min:"1000" max:"1073741824" jsonschema:"Bytes of output to keep over stdout and stderr together; 268435456 when absent. What comes later is counted and dropped; the job goes on."`
}

// JobStartOut is the result of job_start: the program runs.
type JobStartOut struct {
	JobID     string `json:"job_id" jsonschema:"The job's id, for job_output and job_stop."`
	State     string `json:"state" enum:"running|done|failed|killed|lost" jsonschema:"running; a short job may have ended already."`
	PID       int    `json:"pid" min:"0" jsonschema:"The process id on the host."`
	StartedAt string `json:"started_at" jsonschema:"RFC 3339, UTC, by the host's clock."`
}

// JobStart starts a background job on the host.
var JobStart = Define[JobStartIn, JobStartOut](Spec{
	Name: "job_start", Title: "Start a background job on one host", Version: 1,
	Doc: "Starts a command on the host named by agent_id, as the agent's user, in the background, and returns its job_id once it runs. " +
		"Use it for work that takes longer than a minute or must not be interrupted: the job goes on when the client, the connection, the server or the agent ends, also during an update of the agent; only a restart of the host ends it. " +
		"job_output shows its state and output, job_stop ends it, job_list finds it again. " +
		"Standard input is empty unless stdin is given, so programs that ask questions end at once; use sudo -n. " +
		"A job ends when its program does; processes that the program leaves in the background go on, and what they print then isn't kept. " +
		"At most 64 jobs run at once on one host.",
	Effect: NormalChange, Traits: []Trait{ReadsPrivate, UntrustedInput, SendsOut},
	Destructive: true, OpenWorld: true, Render: RenderJSON, Redact: []string{"stdin", "env"},
	Example: `{"command":"apt-get -y upgrade","name":"upgrade","timeout_seconds":7200}`, Timeout: 40,
})

package capability

// JobListIn are the arguments of job_list.
type JobListIn struct {
	State string `json:"state,omitempty" enum:"running|done|failed|killed|lost" jsonschema:"Only jobs in this state."`
	Limit int    `json:"limit,omitzero" min:"1" max:"1000" jsonschema:"At most this many jobs, the latest first; 50 when absent."`
}

// Job is one background job.
type Job struct {
	JobID       string `json:"job_id" jsonschema:"The job's id: the call id of its job_start."`
	Name        string `json:"name,omitempty" jsonschema:"The name that job_start gave it."`
	Command     string `json:"command" jsonschema:"What was started, cut to 200 bytes."`
	State       string `json:"state" enum:"running|done|failed|killed|lost" jsonschema:"running; done: exit code 0; failed: another exit code, a signal from elsewhere, or it never started; killed: by job_stop, its time limit, a shutdown or a revocation; lost: its supervisor or its host went down, and how it ended isn't known."`
	ExitCode    *int   `json:"exit_code,omitempty" jsonschema:"The exit code of an ended job; 128+n after signal n. Absent where it isn't known."`
	Signal      string `json:"signal,omitempty" jsonschema:"The signal that ended it, such as SIGKILL."`
	Detail      string `json:"detail,omitempty" jsonschema:"Why it ended, where it didn't end by itself."`
	PID         int    `json:"pid,omitzero" min:"0" jsonschema:"The process id on the host."`
	StartedAt   string `json:"started_at" jsonschema:"RFC 3339, UTC, by the host's clock."`
	EndedAt     string `json:"ended_at,omitempty" jsonschema:"RFC 3339, UTC; of a lost job when that was noticed."`
	StdoutBytes int64  `json:"stdout_bytes" min:"0" jsonschema:"All bytes written to standard output, also those not kept."`
	StderrBytes int64  `json:"stderr_bytes" min:"0" jsonschema:"All bytes written to standard error, also those not kept."`
	StartedBy   string `json:"started_by" jsonschema:"Who started it."`
	Left        []int  `json:"left_behind,omitempty" jsonschema:"Process ids that could not be killed."`
}

// JobListOut is the result of job_list.
type JobListOut struct {
	Jobs  []Job `json:"jobs" jsonschema:"The jobs, the latest first."`
	Total int   `json:"total" min:"0" jsonschema:"How many there are, also those beyond limit."`
}

// JobList lists background jobs of one host.
var JobList = Define[JobListIn, JobListOut](Spec{
	Name: "job_list", Title: "List background jobs on one host", Version: 1,
	Doc: "Lists the background jobs that you started on the host named by agent_id, the latest first, with state, exit code and sizes of output. Ended jobs are listed for 7 days, or until there are too many. " +
		"Jobs that others started are shown to an administrator alone, with who started them.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate, UntrustedInput}, Idempotent: true, Render: RenderJSON,
	Example: `{"state":"running"}`, Timeout: 30,
})

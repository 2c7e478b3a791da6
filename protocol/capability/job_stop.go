package capability

// JobStopIn are the arguments of job_stop; job_id, or for the server itself principal.
type JobStopIn struct {
	JobID        string `json:"job_id,omitempty" must:"true" minlen:"1" maxlen:"64" jsonschema:"The job's id."`
	Signal       string `json:"signal,omitempty" enum:"TERM|KILL|INT" jsonschema:"What asks it to end; TERM when absent. On Windows everything is ended at once."`
	GraceSeconds *int   `json:"grace_seconds,omitempty" min:"0" max:"30" jsonschema:"How long it may take to end before what is left is killed; 5 when absent."`
	Principal    string `json:"principal,omitempty" own:"true" maxlen:"256" jsonschema:"For Drover's own use: stops every running job of this principal, when its right was revoked."`
}

// JobStopOut is the result of job_stop.
type JobStopOut struct {
	JobID    string `json:"job_id,omitempty" jsonschema:"The job's id."`
	State    string `json:"state,omitempty" enum:"running|done|failed|killed|lost" jsonschema:"How it has ended; what it was already if it had ended before."`
	ExitCode *int   `json:"exit_code,omitempty" jsonschema:"The exit code of an ended job; 128+n after signal n. Absent where it isn't known."`
	Signal   string `json:"signal,omitempty" jsonschema:"The signal that ended it, such as SIGKILL."`
	Detail   string `json:"detail,omitempty" jsonschema:"Why it ended."`
	Already  bool   `json:"already_ended,omitzero" jsonschema:"It had ended before, and nothing was done."`
	Stopped  int    `json:"stopped" min:"0" jsonschema:"How many jobs were ended by this."`
	Left     []int  `json:"left_behind,omitempty" jsonschema:"Process ids that could not be killed."`
}

// JobStop ends a background job.
var JobStop = Define[JobStopIn, JobStopOut](Spec{
	Name: "job_stop", Title: "Stop a background job on one host", Version: 1,
	Doc: "Ends a background job on the host named by agent_id with everything that it started, and answers when it's dead: it's asked by signal, and what is left after grace_seconds is killed. " +
		"Stopping a job that has ended is no error and says how it had ended. What could not be killed is named. An administrator may stop what others started.",
	Effect: NormalChange, Traits: nil, Destructive: true, Idempotent: true, Render: RenderJSON,
	Example: `{"job_id":"01938d3e-7c00-7000-8000-000000000000","grace_seconds":10}`, Timeout: 60,
})

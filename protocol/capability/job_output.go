package capability

// JobOutputIn are the arguments of job_output.
type JobOutputIn struct {
	JobID       string `json:"job_id" minlen:"1" maxlen:"64" jsonschema:"The job's id."`
	Stream      string `json:"stream,omitempty" enum:"stdout|stderr" jsonschema:"Which output; stdout when absent."`
	Offset      int64  `json:"offset,omitzero" jsonschema:"The byte to begin at: 0, or next_offset of the answer before. A negative one counts from the end of what is there: -2000 shows the last 2000 bytes."`
	Limit       int    `json:"limit,omitzero" min:"100" max:"1048576" jsonschema:"At most this much text, in bytes as JSON; 40000 when absent."`
	WaitSeconds int    `json:"wait_seconds,omitzero" min:"0" max:"45" jsonschema:"How long to wait for output beyond offset or for the job's end before answering; 0 when absent."`
}

// JobOutputOut is the result of job_output.
type JobOutputOut struct {
	JobID       string `json:"job_id" jsonschema:"The job's id."`
	State       string `json:"state" enum:"running|done|failed|killed|lost" jsonschema:"The job's state, as in job_list."`
	ExitCode    *int   `json:"exit_code,omitempty" jsonschema:"The exit code of an ended job; 128+n after signal n. Absent where it isn't known."`
	Signal      string `json:"signal,omitempty" jsonschema:"The signal that ended it, such as SIGKILL."`
	Detail      string `json:"detail,omitempty" jsonschema:"Why it ended, where it didn't end by itself."`
	Stream      string `json:"stream" enum:"stdout|stderr" jsonschema:"Which output this is."`
	Text        string `json:"text" jsonschema:"The output from offset on."`
	Offset      int64  `json:"offset" min:"0" jsonschema:"The byte that text begins at."`
	NextOffset  int64  `json:"next_offset" min:"0" jsonschema:"Give it as offset to go on exactly after text."`
	EOF         bool   `json:"eof" jsonschema:"Whether that was all: the job has ended and nothing follows."`
	Invalid     bool   `json:"invalid_utf8,omitzero" jsonschema:"Output held bytes that aren't UTF-8 or a NUL; they're written as \\xNN."`
	Dropped     int64  `json:"dropped_bytes,omitzero" min:"0" jsonschema:"Bytes at the end of this output that were not kept: the job's quota or the disk was full."`
	StdoutBytes int64  `json:"stdout_bytes" min:"0" jsonschema:"All bytes written to standard output, also those not kept."`
	StderrBytes int64  `json:"stderr_bytes" min:"0" jsonschema:"All bytes written to standard error, also those not kept."`
}

// JobOutput reads a background job's output and state.
var JobOutput = Define[JobOutputIn, JobOutputOut](Spec{
	Name: "job_output", Title: "Read a background job's output on one host", Version: 1,
	Doc: "Returns output of a background job on the host named by agent_id, from a byte offset on, with the job's state and exit code. Going on with next_offset gives each byte exactly once; " +
		"eof is true when the job has ended and all was given. With wait_seconds it waits for news, so poll with that instead of asking often. " +
		"The output of an ended job is kept for a day, all jobs' together within 2 GiB, the oldest going first.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate, UntrustedInput}, Idempotent: true, Render: RenderJSON,
	Example: `{"job_id":"01938d3e-7c00-7000-8000-000000000000","offset":0,"wait_seconds":30}`, Timeout: 60,
})

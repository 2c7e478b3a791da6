package capability

import "errors"

// ShellOutputIn are the arguments of shell_output. Offsets count bytes.
type ShellOutputIn struct {
	CallID string `json:"call_id" minlen:"1" maxlen:"64" jsonschema:"The call whose output to read: its result names it."`
	Stream string `json:"stream,omitempty" enum:"stdout|stderr" jsonschema:"stdout (when absent) or stderr."`
	Offset int64  `json:"offset,omitzero" min:"0" max:"9007199254740991" jsonschema:"The byte to begin at, from 0; go on with next_offset."`
	Limit  int    `json:"limit,omitzero" min:"1000" max:"1048576" jsonschema:"Bytes of text to return at most; 40000 when absent."`
}

// ShellOutputOut is the result of shell_output. Text is valid UTF-8 without NUL; invalid bytes
// are written as \xNN and flagged.
type ShellOutputOut struct {
	CallID     string `json:"call_id" jsonschema:"The call that printed it."`
	Stream     string `json:"stream" jsonschema:"stdout or stderr."`
	Text       string `json:"text" jsonschema:"The output from offset to next_offset."`
	Offset     int64  `json:"offset" min:"0" jsonschema:"Where the text begins, in bytes; after the offset asked for when that was inside a character."`
	NextOffset int64  `json:"next_offset" min:"0" jsonschema:"Where to go on, in bytes. A character is never cut in two."`
	Total      int64  `json:"total" min:"0" jsonschema:"Bytes kept of this stream."`
	EOF        bool   `json:"eof" jsonschema:"The text ends where what is kept ends, and no more will come."`
	Partly     bool   `json:"kept_partly,omitzero" jsonschema:"Only the beginning is kept: the rest was beyond the host's limits."`
	Invalid    bool   `json:"invalid_utf8,omitzero" jsonschema:"The text has bytes that aren't UTF-8 or a NUL; they're written as \\xNN."`
}

// Check refuses a result that contradicts itself.
func (o *ShellOutputOut) Check() error {
	if o.NextOffset < o.Offset || o.NextOffset > o.Total && o.Text != "" {
		return errors.New("its offsets don't fit")
	}
	return nil
}

// ShellOutput reads the full output of a command.
var ShellOutput = Define[ShellOutputIn, ShellOutputOut](Spec{
	Name: "shell_output", Title: "Read the full output of a command on one host", Version: 1,
	Doc: "Reads what a shell_exec or powershell_exec on the host named by agent_id printed, where that was more than its result returned: " +
		"the host keeps it for a day, for the one who made the call. Text comes in pages by byte offset; the answer states the total and the offset to go on with.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate, UntrustedInput}, Idempotent: true, Render: RenderOutput,
	Example: `{"call_id":"019ce6f0-0000-7000-8000-000000000000","offset":40000}`, Timeout: 30,
})

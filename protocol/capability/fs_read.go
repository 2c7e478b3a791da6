package capability

import (
	"encoding/base64"
	"errors"
)

// FSReadIn are the arguments of fs_read. Offsets count lines unless unit is bytes.
type FSReadIn struct {
	Path     string `json:"path" minlen:"1" maxlen:"8192" jsonschema:"An absolute path of a regular file on the host."`
	Unit     string `json:"unit,omitempty" enum:"lines|bytes" jsonschema:"What offset and limit count: lines (when absent) or bytes."`
	Offset   int64  `json:"offset,omitzero" min:"-1000000000000" max:"9007199254740991" jsonschema:"Where to begin, from 0; negative counts from the end."`
	Limit    int64  `json:"limit,omitzero" min:"1" max:"1048576" jsonschema:"How many lines or bytes; 2000 lines or 40000 bytes when absent. max_output holds anyway."`
	MaxBytes int    `json:"max_output,omitzero" min:"1000" max:"1048576" jsonschema:"Bytes of content to return at most; 40000 when absent."`
}

// FSReadOut is the result of fs_read.
type FSReadOut struct {
	Path string `json:"path" jsonschema:"The file."`
	// Kind says which of Text and Data is filled.
	Kind       string `json:"kind" jsonschema:"text, image (data holds it whole) or binary (data holds the bytes asked for)."`
	Text       string `json:"text,omitempty" jsonschema:"The text, for kind text."`
	Data       string `json:"data,omitempty" jsonschema:"Base64, for kind image and binary."`
	MIME       string `json:"mime,omitempty" jsonschema:"The media type, for kind image and binary."`
	Size       int64  `json:"size" min:"0" jsonschema:"Bytes of the whole file; for files of /proc what was read."`
	Unit       string `json:"unit" jsonschema:"lines or bytes."`
	Offset     int64  `json:"offset" min:"-1000000000000" jsonschema:"Where the content begins, in units; negative, as it was asked for, where lines were counted from the end."`
	NextOffset int64  `json:"next_offset,omitzero" min:"-1000000000000" jsonschema:"Where to go on, in units; absent at the end."`
	ByteOffset int64  `json:"byte_offset" min:"0" jsonschema:"Where the content begins, in bytes."`
	// NextByteOffset goes on inside a line that was cut.
	NextByteOffset int64  `json:"next_byte_offset,omitzero" min:"0" jsonschema:"Where to go on with unit bytes; for lines too long to be returned whole."`
	Truncated      bool   `json:"truncated,omitzero" jsonschema:"A line was cut, or the file goes on beyond what was asked."`
	SHA256         string `json:"sha256,omitempty" jsonschema:"Hex SHA-256 of the whole file, where it's at most 16 MiB: use it as if_sha256 of fs_write."`
	Modified       string `json:"modified" jsonschema:"Time of the last change, RFC 3339, UTC."`
}

// Check refuses a result that contradicts itself.
func (o *FSReadOut) Check() error {
	switch {
	case o.Kind == "text" && o.Data == "":
		return nil
	case (o.Kind == "image" || o.Kind == "binary") && o.Text == "":
		_, err := base64.StdEncoding.DecodeString(o.Data)
		return err
	default:
		return errors.New("its kind doesn't fit its content")
	}
}

// FSRead reads a part of a file.
var FSRead = Define[FSReadIn, FSReadOut](Spec{
	Name: "fs_read", Title: "Read a file on one host", Version: 1,
	Doc: "Reads a regular file on the host named by agent_id, by lines or by bytes. Long files come in windows: the answer states the size and the offset to go on with. " +
		"Images come as images, other binary files as base64 of the bytes asked for. Devices, pipes and sockets are refused. " +
		"Whole files of any size come through drover cp, or GET /api/v1/agents/{agent_id}/files?path=.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate, UntrustedInput}, Idempotent: true, Render: RenderFile,
	Example: `{"path":"/etc/hosts"}`, Timeout: 30,
})

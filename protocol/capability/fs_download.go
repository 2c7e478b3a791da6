package capability

// FSDownloadIn are the arguments of fs_download.
type FSDownloadIn struct {
	Path   string `json:"path" minlen:"1" maxlen:"8192" jsonschema:"An absolute path of a regular file on the host."`
	Offset int64  `json:"offset,omitzero" min:"-9007199254740991" max:"9007199254740991" jsonschema:"Where to begin, in bytes, from 0; negative counts from the end."`
	Length int64  `json:"length,omitzero" min:"1" max:"9007199254740991" jsonschema:"How many bytes at most; up to the end when absent."`
	// IfVersion is what If-Range is in HTTP: a part only of what the caller saw before.
	IfVersion string `json:"if_version,omitzero" maxlen:"128" jsonschema:"Offset and length count only while the file has this version (from an earlier result); otherwise the whole file is sent."`
	FileHash  bool   `json:"file_sha256,omitzero" jsonschema:"Also hash the whole file when a part is sent."`
	Head      bool   `json:"head,omitzero" jsonschema:"Describe what would be sent, and send nothing."`
}

// FSFileHead describes a file and the part of it that is sent. As one line of JSON it's also
// how the stream of fs_download begins: the line, a line feed, and then the file's bytes.
type FSFileHead struct {
	Path     string `json:"path" jsonschema:"The file, after links."`
	Size     int64  `json:"size" min:"0" jsonschema:"Bytes of the whole file; for files of /proc what was read."`
	Mode     string `json:"mode" jsonschema:"Permissions as octal digits."`
	Modified string `json:"modified" jsonschema:"Time of the last change, RFC 3339, UTC."`
	Version  string `json:"version" jsonschema:"Names this state of the file; another one is another word."`
	Offset   int64  `json:"offset" min:"0" jsonschema:"Where the part that is sent begins, in bytes."`
	Length   int64  `json:"length" min:"0" jsonschema:"How many bytes the part has."`
}

// MaxFileHead bounds the line that a stream of fs_download begins with, in bytes.
const MaxFileHead = 256 << 10

// FSDownloadOut is the result of fs_download. One with reason range has the head alone.
type FSDownloadOut struct {
	FSFileHead
	SHA256     string `json:"sha256,omitzero" jsonschema:"Hex SHA-256 of the bytes that were sent."`
	FileSHA256 string `json:"file_sha256,omitzero" jsonschema:"Hex SHA-256 of the whole file, where it was asked for or sent."`
}

// Reasons of a file's bytes that don't arrive.
const (
	ReasonRange   = "range"   // the file ends before the offset
	ReasonChanged = "changed" // the file changed while it was sent
	ReasonCut     = "cut"     // the stream between server and host broke
)

// FSDownload sends a file's bytes.
var FSDownload = Define[FSDownloadIn, FSDownloadOut](Spec{
	Name: "fs_download", Title: "Download a file from one host", Version: 1,
	Doc: "Sends a regular file of any size, or a part of it, from the host named by agent_id, as a stream beside the call: GET /api/v1/agents/{agent_id}/files and drover cp. " +
		"A file that changes meanwhile fails the call.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate, UntrustedInput}, Idempotent: true, Render: RenderJSON, Stream: FromHost,
	Example: `{"path":"/var/log/syslog","offset":-1000}`, Timeout: 86400,
})

package capability

// FSUploadIn are the arguments of fs_upload.
type FSUploadIn struct {
	Path   string `json:"path" minlen:"1" maxlen:"8192" jsonschema:"An absolute path on the host. A link is followed: the file it leads to is replaced."`
	Size   int64  `json:"size" min:"-1" max:"9007199254740991" jsonschema:"Bytes of the whole new content; -1 when that isn't known."`
	Offset int64  `json:"offset,omitzero" min:"0" max:"9007199254740991" jsonschema:"Where the bytes that are sent begin in the whole; what an earlier try sent before is kept."`
	// UploadID names what is resumed: an interrupted upload with an id leaves its part for a day.
	UploadID      string `json:"upload_id,omitzero" maxlen:"128" jsonschema:"The caller's own name for this upload, the same when it's resumed; needs size and sha256."`
	SHA256        string `json:"sha256,omitzero" maxlen:"64" jsonschema:"Hex SHA-256 of the whole new content; anything else is refused."`
	Mode          string `json:"mode,omitzero" maxlen:"5" jsonschema:"Permissions as octal digits, such as 0644; an existing file's are kept when absent, new files get 0644."`
	CreateParents bool   `json:"create_parents,omitzero" jsonschema:"Make missing folders; without it a missing folder is an error."`
	IfSHA256      string `json:"if_sha256,omitzero" minlen:"1" maxlen:"64" jsonschema:"Write only if the present content has this SHA-256 (hex). The word absent: only if there is no file."`
	Probe         bool   `json:"probe,omitzero" jsonschema:"Tell how much of the upload is there, and take nothing."`
}

// FSUploadOut is the result of fs_upload.
type FSUploadOut struct {
	Path     string `json:"path" jsonschema:"The file, after links."`
	Received int64  `json:"received" min:"0" jsonschema:"Bytes of the new content that are on the host."`
	// Complete is true once the file has the new content.
	Complete bool   `json:"complete" jsonschema:"The file has the new content."`
	Size     int64  `json:"size,omitzero" min:"0" jsonschema:"Bytes of the file, once it's complete."`
	SHA256   string `json:"sha256,omitzero" jsonschema:"Hex SHA-256 of the file, once it's complete."`
	Mode     string `json:"mode,omitzero" jsonschema:"Permissions as octal digits, once it's complete."`
	Created  bool   `json:"created,omitzero" jsonschema:"There was no file before."`
}

// Reasons of an upload that can't go on as asked.
const (
	ReasonOffset  = "offset"  // less is there than the offset says
	ReasonDigest  = "digest"  // the content isn't what sha256 promised; what came is gone
	ReasonInUse   = "in_use"  // an upload of this id is under way
	ReasonPartial = "partial" // it was interrupted; what came is kept for a day
)

// FSUpload replaces a file by bytes that are sent.
var FSUpload = Define[FSUploadIn, FSUploadOut](Spec{
	Name: "fs_upload", Title: "Upload a file to one host", Version: 1,
	Doc: "Replaces or creates a file of any size on the host named by agent_id with bytes that are sent as a stream beside the call: PUT /api/v1/agents/{agent_id}/files and drover cp. " +
		"The rules are those of fs_write: readers see the old content or the new. An interrupted upload that has an id can be resumed for a day.",
	Effect: NormalChange, Traits: []Trait{}, Destructive: true, Idempotent: true, Render: RenderJSON, Stream: ToHost,
	Example: `{"path":"/srv/image.tar","size":123456789}`, Timeout: 86400,
})

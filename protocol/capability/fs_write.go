package capability

// FSWriteIn are the arguments of fs_write.
type FSWriteIn struct {
	Path          string `json:"path" minlen:"1" maxlen:"8192" jsonschema:"An absolute path on the host. A link is followed: the file it leads to is replaced."`
	Content       string `json:"content" maxlen:"2097152" jsonschema:"The whole new content."`
	Encoding      string `json:"encoding,omitempty" enum:"utf-8|base64" jsonschema:"How content is written: utf-8 (when absent) or base64 for binary."`
	Mode          string `json:"mode,omitempty" maxlen:"5" jsonschema:"Permissions as octal digits, such as 0644; an existing file's are kept when absent, new files get 0644."`
	CreateParents bool   `json:"create_parents,omitzero" jsonschema:"Make missing folders; without it a missing folder is an error."`
	IfSHA256      string `json:"if_sha256,omitempty" minlen:"1" maxlen:"64" jsonschema:"Write only if the present content has this SHA-256 (hex). The word absent: only if there is no file."`
}

// FSWriteOut is the result of fs_write.
type FSWriteOut struct {
	Path    string `json:"path" jsonschema:"The file."`
	Size    int64  `json:"size" min:"0" jsonschema:"Bytes written."`
	SHA256  string `json:"sha256" jsonschema:"Hex SHA-256 of the new content."`
	Mode    string `json:"mode" jsonschema:"Permissions as octal digits."`
	Created bool   `json:"created" jsonschema:"There was no file before."`
}

// FSWrite replaces a file.
var FSWrite = Define[FSWriteIn, FSWriteOut](Spec{
	Name: "fs_write", Title: "Write a file on one host", Version: 1,
	Doc: "Replaces or creates a file on the host named by agent_id, atomically: readers see the old content or the new, and an error leaves the old. " +
		"Mode and owner are kept, links are followed. Give if_sha256 (from fs_read or fs_stat) to be refused when somebody changed the file meanwhile. " +
		"Files of any size go through drover cp, or PUT /api/v1/agents/{agent_id}/files?path=.",
	Effect: NormalChange, Traits: []Trait{}, Destructive: true, Idempotent: true, Render: RenderJSON, Redact: []string{"content"},
	Example: `{"path":"/tmp/hello.txt","content":"hello\n"}`, Timeout: 60,
})

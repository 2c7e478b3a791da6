package capability

// FSStatIn are the arguments of fs_stat.
type FSStatIn struct {
	Path   string `json:"path" minlen:"1" maxlen:"8192" jsonschema:"An absolute path on the host."`
	SHA256 bool   `json:"sha256,omitzero" jsonschema:"Also hash a regular file of up to 1 GiB."`
}

// FSStatOut is the result of fs_stat.
type FSStatOut struct {
	FSEntry
	// Resolved is the path after links, where it differs and lies within the roots.
	Resolved string `json:"resolved,omitempty" jsonschema:"The path after links."`
	SHA256   string `json:"sha256,omitempty" jsonschema:"Hex SHA-256 of the content."`
}

// FSStat describes one path.
var FSStat = Define[FSStatIn, FSStatOut](Spec{
	Name: "fs_stat", Title: "Describe a file or folder on one host", Version: 1,
	Doc:    "Tells type, size, mode, owner and time of one path on the host named by agent_id, and on request the SHA-256 of a file's content. A link itself is described; resolved says where it leads.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate}, Idempotent: true, Render: RenderJSON,
	Example: `{"path":"/etc/hosts"}`, Timeout: 30,
})

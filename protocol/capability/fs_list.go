package capability

// FSListIn are the arguments of fs_list.
type FSListIn struct {
	Path   string `json:"path" minlen:"1" maxlen:"8192" jsonschema:"An absolute path of a folder on the host."`
	Limit  int    `json:"limit,omitzero" min:"1" max:"2000" jsonschema:"At most this many entries; 500 when absent."`
	Cursor string `json:"cursor,omitempty" maxlen:"8192" jsonschema:"next_cursor of the answer before, to go on after it."`
	Hidden *bool  `json:"hidden,omitempty" jsonschema:"Whether names that begin with a dot are listed; true when absent."`
}

// FSEntry is one file, folder or other object.
type FSEntry struct {
	Name     string `json:"name" jsonschema:"The name. Bytes that aren't UTF-8, control characters and backslashes that would be mistaken are written as \\xNN; the written form is accepted in later calls."`
	Path     string `json:"path" jsonschema:"The absolute path in the same written form."`
	Type     string `json:"type" jsonschema:"file, dir, link, fifo, socket, device or other."`
	Size     int64  `json:"size" min:"0" jsonschema:"Bytes."`
	Mode     string `json:"mode" jsonschema:"Permissions as octal digits, such as 0644."`
	Owner    string `json:"owner,omitempty" jsonschema:"The owner's name or number."`
	Group    string `json:"group,omitempty" jsonschema:"The group's name or number."`
	Modified string `json:"modified" jsonschema:"Time of the last change, RFC 3339, UTC."`
	Target   string `json:"target,omitempty" jsonschema:"What a link points to."`
}

// FSListOut is the result of fs_list.
type FSListOut struct {
	Path       string    `json:"path" jsonschema:"The folder."`
	Entries    []FSEntry `json:"entries" jsonschema:"Its entries, sorted by the bytes of their names."`
	Total      int       `json:"total" min:"0" jsonschema:"How many entries the folder has."`
	NextCursor string    `json:"next_cursor,omitempty" jsonschema:"Give it as cursor for the next entries."`
}

// FSList lists a folder.
var FSList = Define[FSListIn, FSListOut](Spec{
	Name: "fs_list", Title: "List a folder on one host", Version: 1,
	Doc:    "Lists the entries of a folder on the host named by agent_id, with type, size, mode, owner and time. Names that aren't valid text come escaped and can be used as they are in later calls.",
	Effect: ReadOnly, Traits: []Trait{ReadsPrivate, UntrustedInput}, Idempotent: true, Render: RenderJSON,
	Example: `{"path":"/var/log","limit":100}`, Timeout: 30,
})

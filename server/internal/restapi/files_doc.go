package restapi

import (
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

const downloadDoc = `The bytes of a regular file, of any size, as a stream under a call of fs_download. HEAD answers the
headers alone. A single Range is honoured (206, 416), with If-Range and the ETag. Want-Repr-Digest: sha-256=1 has
the whole file hashed too; digests come as headers or, with TE: trailers, as trailers, and are in the call's result
under Drover-Call-Id. The last bytes are held back until the call has succeeded: an answer that is whole is the
file, and one that fails on the way is broken off. With upload, size and sha256 it answers the call that tells in
Upload-Offset how much of that upload is on the host.`

const uploadDoc = `Replaces or creates a file with the body, of any size, as a stream under a call of fs_upload: atomically,
with mode and owner kept. A SHA-256 given as sha256, or as Repr-Digest or (of a whole body) Content-Digest, is
checked before the file is replaced. With upload (a name of your own) and sha256, what an interrupted request has sent is kept
for a day: ask GET for Upload-Offset, and go on with Content-Range: bytes FIRST-LAST/SIZE. Answers 201 for a new
file and 200 otherwise, with the call.`

// describeFiles describes what mountFiles serves beside the HTTP library.
func (a *API) describeFiles() {
	call := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Call](), true, "Call")
	str := func(pattern string) *huma.Schema { return &huma.Schema{Type: "string", Pattern: pattern} }
	query := func(name, doc string, s *huma.Schema) *huma.Param {
		return &huma.Param{Name: name, In: "query", Description: doc, Schema: s, Required: name == "path"}
	}
	header := func(name, doc string) *huma.Param {
		return &huma.Param{Name: name, In: "header", Description: doc, Schema: &huma.Schema{Type: "string"}}
	}
	agent := &huma.Param{Name: "agent_id", In: "path", Required: true, Description: "The exact id of the agent.", Schema: str("")}
	path := query("path", "The file's absolute path on the host.", str(""))
	upload := query("upload", "Your own name for the upload, the same when it's resumed; at most 128 bytes.", str(""))
	sum := query("sha256", "Hex SHA-256 of the whole content.", str("^[0-9a-fA-F]{64}$"))
	bytes := &huma.Schema{Type: "string", Format: "binary"}

	get := a.described(find("download-file"))
	get.Parameters = []*huma.Param{agent, path, upload, query("size", "Bytes of the whole upload.", &huma.Schema{Type: "integer", Format: "int64"}), sum,
		header("Range", "bytes=FIRST-LAST, bytes=FIRST- or bytes=-LAST_N."), header("If-Range", "An ETag: the range counts only while the file is the same."),
		header("Want-Repr-Digest", "sha-256=1 for the hash of the whole file.")}
	file := map[string]*huma.MediaType{"application/octet-stream": {Schema: bytes}}
	get.Responses["200"] = &huma.Response{Description: "The file; with upload, the call.", Headers: fileHeaders(CallIDHeader, UploadOffset, "ETag", "Content-Digest", "Repr-Digest"),
		Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: bytes}, "application/json": {Schema: call}}}
	get.Responses["206"] = &huma.Response{Description: "The range.", Headers: fileHeaders(CallIDHeader, "Content-Range", "ETag", "Content-Digest", "Repr-Digest"), Content: file}
	a.huma.OpenAPI().AddOperation(&get)

	put := a.described(find("upload-file"))
	put.Parameters = []*huma.Param{agent, path, upload, sum, query("mode", "Permissions as octal digits, such as 0644.", str("^[0-7]{1,5}$")),
		query("create_parents", "Make missing folders.", &huma.Schema{Type: "boolean"}),
		query("if_sha256", "Only if the present content has this SHA-256. The word absent: only if there's no file.", str("")),
		header("Content-Range", "bytes FIRST-LAST/SIZE, for what is sent of the whole."),
		header("Repr-Digest", "sha-256=:BASE64: of the whole content (RFC 9530)."), header("Content-Digest", "The same, of a body that is the whole.")}
	put.RequestBody = &huma.RequestBody{Required: true, Description: "The file's bytes.", Content: file}
	for status, doc := range map[string]string{"200": "The file is replaced, or the announced part is kept (complete in the result).", "201": "The file is new."} {
		put.Responses[status] = &huma.Response{Description: doc, Headers: fileHeaders(CallIDHeader, UploadOffset),
			Content: map[string]*huma.MediaType{"application/json": {Schema: call}}}
	}
	a.huma.OpenAPI().AddOperation(&put)
}

// fileHeaders describes headers of an answer.
func fileHeaders(names ...string) map[string]*huma.Param {
	docs := map[string]string{
		CallIDHeader: "The call that moved the bytes.", UploadOffset: "Bytes of the upload that are on the host.",
		"ETag": "Names this state of the file.", "Content-Range": http.StatusText(http.StatusPartialContent) + ": which bytes of how many.",
		"Content-Digest": "sha-256 of the bytes that were sent (RFC 9530).", "Repr-Digest": "sha-256 of the whole file (RFC 9530).",
	}
	out := map[string]*huma.Param{}
	for _, name := range names {
		out[name] = &huma.Param{Description: docs[name], Schema: &huma.Schema{Type: "string"}}
	}
	return out
}

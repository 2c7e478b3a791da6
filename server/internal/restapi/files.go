package restapi

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi/transfer"
)

// Headers of the files interface beside those of HTTP.
const (
	// CallIDHeader names the call that moved, or failed to move, the bytes.
	CallIDHeader = "Drover-Call-Id"
	// UploadOffset is how many bytes of an upload are on the host.
	UploadOffset = "Upload-Offset"
)

// fileIdle is how long a transfer may stand still on the client's side before it's ended.
// One that moves has no time limit but the call's.
const fileIdle = 60 * time.Second

// fileRequest is one request for a file, as far as both ways have it in common.
type fileRequest struct {
	api *API
	w   http.ResponseWriter
	r   *http.Request
	who fleet.Principal
	q   url.Values
	// named is closed when the answer's headers have the call's id, soon after it has begun.
	named chan struct{}
	body  *transfer.Body // of an upload
	gone  atomic.Bool    // the client, while it was served
}

// mountFiles adds the files interface: streams, which the HTTP library can't carry.
func (a *API) mountFiles(r chi.Router) {
	const path = "/agents/{agent_id}/files"
	get := a.fileHandler("download-file", (*fileRequest).get, "path", "upload", "size", "sha256")
	r.Get(path, get)
	r.Head(path, get)
	r.Put(path, a.fileHandler("upload-file", (*fileRequest).put, "path", "upload", "sha256", "mode", "create_parents", "if_sha256"))
}

// fileHandler authenticates a request, checks its query and answers an error of serve.
func (a *API) fileHandler(id string, serve func(*fileRequest) error, query ...string) http.HandlerFunc {
	op := find(id)
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := a.Identify(r)
		if err != nil {
			a.refuse(w, r, op, who, fleet.AsError(err))
			return
		}
		ctx, served := a.begin(w, r, who)
		defer served()
		f := &fileRequest{api: a, w: w, r: r.WithContext(ctx), who: who, named: make(chan struct{})}
		if err := f.check(query); err != nil {
			a.refuse(w, r, op, who, fleet.AsError(err))
			return
		}
		if err := serve(f); err != nil {
			fe := fleet.AsError(err)
			if f.gone.Load() { // nobody waits for this answer any more, and nothing failed here
				writeProblem(w, statusClientGone, fleet.Errorf(protocol.CodeCancelled, "the request was ended before its answer"))
				return
			}
			a.logCause(id, fe)
			writeProblem(w, fileStatus(fe), fe)
		}
	}
}

// check reads the query and refuses conditions that wouldn't be kept.
func (f *fileRequest) check(known []string) error {
	q, err := edge.Query(f.r, known)
	if err != nil {
		return err
	}
	if q.Get("path") == "" {
		return fleet.Errorf(protocol.CodeBadArgs, "the query parameter path is missing: the file's absolute path on the host")
	}
	for _, name := range []string{"If-Match", "If-Unmodified-Since"} {
		if len(f.r.Header.Values(name)) > 0 {
			return fleet.Errorf(protocol.CodeBadArgs, "the condition %s isn't kept here: use If-Range to get a part, and if_sha256 to replace a file", name)
		}
	}
	for _, name := range []string{"Digest", "Content-MD5"} {
		if len(f.r.Header.Values(name)) > 0 {
			return fleet.Errorf(protocol.CodeBadArgs, "the header %s isn't checked here: give the SHA-256 as Repr-Digest, or as sha256", name)
		}
	}
	for _, name := range []string{"Content-Range", "If-None-Match", "If-Range", "Range", "Content-Digest", "Repr-Digest"} {
		if len(f.r.Header.Values(name)) > 1 {
			return fleet.Errorf(protocol.CodeBadArgs, "the header %s is given twice", name)
		}
	}
	f.q = q
	return nil
}

// call makes the call that moves the bytes.
func (f *fileRequest) call(tool string, args any, req dispatch.Request) (dispatch.Result, error) {
	b, err := json.Marshal(args)
	if err != nil {
		return dispatch.Result{}, fleet.Errorf(protocol.CodeBadArgs, "the query isn't valid UTF-8")
	}
	id := chi.URLParam(f.r, "agent_id")
	if f.r.URL.RawPath != "" { // chi has taken it from there; else it's decoded already
		if plain, err := url.PathUnescape(id); err == nil {
			id = plain
		}
	}
	// What isn't text names no agent: dispatch says so as of any other.
	req.Agent, err = jsontext.AppendQuote(nil, id)
	if err != nil {
		req.Agent = jsontext.Value(`"?"`)
	}
	var known sync.Once
	req.Progress = func(u dispatch.Update) {
		known.Do(func() {
			f.w.Header().Set(CallIDHeader, string(u.CallID))
			close(f.named)
		})
	}
	req.Tool, req.Args, req.Client, req.Edge = tool, b, clientName(f.r.UserAgent()), edgeName
	// The request's context ends also when its body is late, or no more of it is read.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(f.r.Context()))
	defer cancel(nil)
	defer context.AfterFunc(f.r.Context(), func() {
		cause := context.Cause(f.r.Context())
		_, ended := errors.AsType[*fleet.Error](cause) // its right to it, as edge.Serving says
		if ended || f.body == nil || !f.body.Late() {
			f.gone.Store(!ended)
			cancel(cause)
		}
	})()
	return f.api.Dispatch.Call(ctx, f.who, req)
}

// failure is the error of a call that didn't succeed, nil for one that did.
func failure(res dispatch.Result) error {
	switch {
	case res.Err != nil:
		return res.Err
	case !res.State.Final():
		return fleet.Errorf(protocol.CodeOutcomeUnknown, "the connection to %s was lost, and what became of the call %s isn't known yet; ask for it later, or try again", res.Agent, res.CallID)
	}
	return nil
}

// fileStatus is an error's HTTP status: that of every interface, but finer where the host
// said what's wrong with the file.
func fileStatus(e *fleet.Error) int {
	if e.Code != protocol.CodeToolFailed {
		return edge.StatusOf(e)
	}
	switch e.Reason {
	case protocol.ReasonENOENT:
		return http.StatusNotFound
	case protocol.ReasonEACCES, protocol.ReasonOutsideRoot, protocol.ReasonEROFS:
		return http.StatusForbidden
	case protocol.ReasonEEXIST, protocol.ReasonSHAMismatch:
		return http.StatusPreconditionFailed
	case capability.ReasonRange:
		return http.StatusRequestedRangeNotSatisfiable
	case capability.ReasonChanged:
		return http.StatusConflict
	case capability.ReasonDigest, protocol.ReasonEISDIR, protocol.ReasonENOTDIR, protocol.ReasonNotRegular, protocol.ReasonENAMETOOLONG, protocol.ReasonEINVAL:
		return http.StatusUnprocessableEntity
	case protocol.ReasonENOSPC:
		return http.StatusInsufficientStorage
	}
	return edge.StatusOf(e)
}

// put uploads.
func (f *fileRequest) put() error {
	args := capability.FSUploadIn{Path: f.q.Get("path"), UploadID: f.q.Get("upload"), SHA256: f.q.Get("sha256"), Mode: f.q.Get("mode"), IfSHA256: f.q.Get("if_sha256")}
	size, err := f.extent(&args)
	if err != nil {
		return f.decline(err)
	}
	body := transfer.New(f.w, f.r, size, args, cmp.Or(f.api.FileIdle, fileIdle))
	f.body = body
	res, err := f.call(capability.FSUpload.Name, args, dispatch.Request{Body: body, BodySize: size, Check: body.Check})
	if err == nil {
		err = failure(res)
	}
	body.Close()
	if err != nil {
		f.w.Header().Set("Connection", "close") // the body may not have been read
		return err
	}
	var out capability.FSUploadOut
	if err := json.Unmarshal(res.Output, &out); err != nil {
		return err
	}
	status := http.StatusOK
	if out.Created {
		status = http.StatusCreated
	}
	f.w.Header().Set(UploadOffset, strconv.FormatInt(out.Received, 10))
	return f.answer(status, res)
}

// decline answers a request that can't become a call, and records it as refused.
func (f *fileRequest) decline(err error) error {
	fe := fleet.AsError(err)
	f.api.Dispatch.Refuse(f.who, fleet.Refusal{Client: clientName(f.r.UserAgent()), Edge: edgeName, Code: fe.Code, Message: fe.Message})
	f.w.Header().Set("Connection", "close")
	return fe
}

// extent reads which bytes of which whole the body has, and the conditions: it completes
// args and returns the body's length, -1 for one that isn't known.
func (f *fileRequest) extent(args *capability.FSUploadIn) (int64, error) {
	bad := func(format string, a ...any) (int64, error) {
		return 0, fleet.Errorf(protocol.CodeBadArgs, format, a...)
	}
	switch v := f.q.Get("create_parents"); v {
	case "", "false":
	case "true":
		args.CreateParents = true
	default:
		return bad("create_parents is true or false")
	}
	switch v := f.r.Header.Values("If-None-Match"); {
	case len(v) == 0:
	case v[0] == "*" && args.IfSHA256 == "":
		args.IfSHA256 = "absent"
	default:
		return bad("If-None-Match takes * alone here, and not beside if_sha256")
	}
	if v := f.r.Header.Get("Content-Encoding"); v != "" && v != "identity" {
		return bad("the body must be the file's bytes as they are, without Content-Encoding")
	}
	size := f.r.ContentLength
	args.Size = size
	part := f.r.Header.Values("Content-Range")
	if err := f.digests(args, len(part) > 0); err != nil || len(part) == 0 {
		return size, err
	}
	m := regexp.MustCompile(`^bytes (\d{1,16})-(\d{1,16})/(\d{1,16})$`).FindStringSubmatch(part[0])
	if m == nil {
		return bad("Content-Range must be of the form bytes FIRST-LAST/SIZE")
	}
	first, _ := strconv.ParseInt(m[1], 10, 64) // sixteen digits fit
	last, _ := strconv.ParseInt(m[2], 10, 64)
	whole, _ := strconv.ParseInt(m[3], 10, 64)
	if first > last || last >= whole || size >= 0 && size != last-first+1 {
		return bad("Content-Range contradicts itself, or the body's length")
	}
	args.Offset, args.Size = first, whole
	return last - first + 1, nil
}

// digests reads the body's and the file's SHA-256 from the fields of RFC 9530 into args: what
// a client gave to be checked is checked, or refused. Of several algorithms sha-256 counts.
func (f *fileRequest) digests(args *capability.FSUploadIn, part bool) error {
	for _, name := range []string{"Content-Digest", "Repr-Digest"} {
		v := f.r.Header.Values(name)
		if len(v) == 0 {
			continue
		}
		if part && name == "Content-Digest" {
			return fleet.Errorf(protocol.CodeBadArgs, "Content-Digest isn't checked for a part of a file: give the whole file's SHA-256 as Repr-Digest or sha256")
		}
		m := regexp.MustCompile(`(?:^|,)[ \t]*sha-256=:([A-Za-z0-9+/]{43}=):[ \t]*(?:$|,)`).FindStringSubmatch(v[0])
		if m == nil || strings.Count(v[0], "sha-256=") > 1 {
			return fleet.Errorf(protocol.CodeBadArgs, "%s must hold one SHA-256, as sha-256=:BASE64:", name)
		}
		b, err := base64.StdEncoding.Strict().DecodeString(m[1])
		if err != nil {
			return fleet.Errorf(protocol.CodeBadArgs, "%s must hold a SHA-256, as sha-256=:BASE64:", name)
		}
		sum := hex.EncodeToString(b)
		if args.SHA256 != "" && !strings.EqualFold(args.SHA256, sum) {
			return fleet.Errorf(protocol.CodeBadArgs, "%s contradicts sha256, or another digest", name)
		}
		args.SHA256 = sum
	}
	return nil
}

// answer gives the call as JSON, as POST /calls does.
func (f *fileRequest) answer(status int, res dispatch.Result) error {
	f.w.Header().Set("Content-Type", "application/json")
	f.w.WriteHeader(status)
	_ = json.MarshalWrite(f.w, callAnswer(res).Body) // a client that is gone needs no answer
	return nil
}

package restapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"mime"
	"net/http"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi/transfer"
)

// get downloads, describes what would be downloaded (HEAD), or tells how much of an upload
// is there.
func (f *fileRequest) get() error {
	if f.q.Has("upload") {
		return f.progress()
	}
	if f.q.Has("size") || f.q.Has("sha256") {
		return f.decline(fleet.Errorf(protocol.CodeBadArgs, "size and sha256 go with upload"))
	}
	args := capability.FSDownloadIn{Path: f.q.Get("path"), Head: f.r.Method == http.MethodHead, FileHash: wantsSHA256(f.r.Header.Get("Want-Repr-Digest"))}
	ranged := !args.Head && byteRange(f.r.Header, &args)
	s := &fileSink{w: f.w, named: f.named, trailers: f.r.ProtoAtLeast(1, 1) && strings.Contains(strings.ToLower(f.r.Header.Get("Te")), "trailers")}
	if ranged {
		s.asked = &args
	}
	s.none = args.Head
	res, err := f.call(capability.FSDownload.Name, args, dispatch.Request{Sink: s, Interrupt: func() { edge.Cut(f.w) }, Check: s.check})
	if err == nil {
		err = failure(res)
	}
	var out capability.FSDownloadOut
	if len(res.Output) > 0 { // what can't be read was no success
		_ = json.Unmarshal(res.Output, &out)
	}
	if args.Head && err == nil {
		s.describe(&out.FSFileHead)
		f.w.Header().Set("Content-Length", strconv.FormatInt(out.Size, 10))
		f.w.WriteHeader(http.StatusOK)
		return nil
	}
	var fe *fleet.Error
	if errors.As(err, &fe) && fe.Reason == capability.ReasonRange {
		f.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", out.Size))
	}
	return s.end(&out, err)
}

// progress tells how much of an upload is on the host.
func (f *fileRequest) progress() error {
	size, err := strconv.ParseInt(f.q.Get("size"), 10, 64)
	if err != nil || size < 0 {
		return f.decline(fleet.Errorf(protocol.CodeBadArgs, "an upload is asked for by upload, size and sha256, as they are given when it's sent"))
	}
	args := capability.FSUploadIn{Path: f.q.Get("path"), UploadID: f.q.Get("upload"), SHA256: f.q.Get("sha256"), Size: size, Probe: true}
	res, err := f.call(capability.FSUpload.Name, args, dispatch.Request{Body: http.NoBody, Check: transfer.New(f.w, f.r, 0, args, fileIdle).Check})
	if err == nil {
		err = failure(res)
	}
	var out capability.FSUploadOut
	if err == nil {
		err = json.Unmarshal(res.Output, &out)
	}
	if err != nil {
		return err
	}
	f.w.Header().Set(UploadOffset, strconv.FormatInt(out.Received, 10))
	return f.answer(http.StatusOK, res)
}

// byteRange takes a Range into args; false when there's none that counts: one that isn't a
// single range of bytes, or whose If-Range can't name a version.
func byteRange(h http.Header, args *capability.FSDownloadIn) bool {
	m := regexp.MustCompile(`^bytes=(\d{0,15})-(\d{0,15})$`).FindStringSubmatch(strings.ReplaceAll(h.Get("Range"), " ", ""))
	if m == nil || m[1] == "" && m[2] == "" {
		return false
	}
	version := ""
	if v := h.Get("If-Range"); v != "" {
		tag := regexp.MustCompile(`^"([0-9a-f-]{1,128})"$`).FindStringSubmatch(v)
		if tag == nil {
			return false
		}
		version = tag[1]
	}
	first, _ := strconv.ParseInt(m[1], 10, 64) // fifteen digits fit
	last, err := strconv.ParseInt(m[2], 10, 64)
	switch {
	case m[1] == "" && last == 0:
		args.Offset = 1<<53 - 1 // the last 0 bytes are no range of any file
	case m[1] == "":
		args.Offset = -last
	case err != nil:
		args.Offset = first
	case last < first:
		return false
	default:
		args.Offset, args.Length = first, last-first+1
	}
	args.IfVersion = version
	return true
}

// wantsSHA256 tells whether a Want-Repr-Digest (RFC 9530) asks for the hash of the whole file.
func wantsSHA256(v string) bool {
	m := regexp.MustCompile(`(?:^|[,\s])sha-256\s*=\s*(\d+)`).FindStringSubmatch(v)
	return m != nil && m[1] != "0"
}

// fileSink writes a file to the client. What came last is held back until the call has
// succeeded and that's on record: a client that has got all bytes has got a file that the
// agent vouches for. The headers go out with the first bytes, so that whatever fails before
// is answered as an error.
type fileSink struct {
	w        http.ResponseWriter
	named    <-chan struct{}          // closed when the call's id is among the headers
	trailers bool                     // the client takes digests after the body
	asked    *capability.FSDownloadIn // the range that was asked for, nil for none
	line     []byte                   // what came of the head
	head     *capability.FSFileHead
	held     []byte
	came     int64     // bytes of the file
	sum      hash.Hash // of them
	none     bool      // no file is to come, only its description
	begun    bool      // the headers are out
}

// heldBytes bounds what's held back.
const heldBytes = 16 << 10

// writeBytes is how much is written at once: that much has to move in the time that the
// edge gives one write.
const writeBytes = 4 << 10

// Write implements io.Writer.
func (s *fileSink) Write(b []byte) (int, error) {
	n := len(b)
	if s.none {
		return 0, badFile("the agent sent a file that nobody asked for")
	}
	if s.head == nil {
		var err error
		if b, err = s.begin(b); err != nil || s.head == nil {
			return n, err
		}
	}
	if s.came += int64(len(b)); s.came > s.head.Length {
		return 0, badFile("the agent sent more of the file than it announced")
	}
	s.sum.Write(b)
	for len(b) > 0 {
		if len(s.held) == heldBytes {
			if err := s.flush(); err != nil {
				return 0, err
			}
		}
		k := min(heldBytes-len(s.held), len(b))
		s.held, b = append(s.held, b[:k]...), b[k:]
	}
	return n, nil
}

// begin reads the head, and returns what came after it.
func (s *fileSink) begin(b []byte) (rest []byte, err error) {
	line, rest, whole := bytes.Cut(b, []byte{'\n'})
	if len(s.line)+len(line) > capability.MaxFileHead {
		return nil, badFile("the agent's description of the file is too long")
	}
	s.line = append(s.line, line...)
	if !whole {
		return nil, nil
	}
	var head capability.FSFileHead
	if err := json.Unmarshal(s.line, &head); err != nil || !sound(&head) {
		return nil, badFile("the agent's description of the file makes no sense")
	}
	s.head, s.line, s.sum = &head, nil, sha256.New()
	return rest, nil
}

// badFile is the end of a download whose agent doesn't send what it should.
func badFile(what string) *fleet.Error {
	return &fleet.Error{Code: protocol.CodeToolFailed, Reason: "bad_result", Message: what + "; try again"}
}

// lostClient is the end of a download whose client doesn't take it.
func lostClient(err error) *fleet.Error {
	what := "the client's connection broke"
	if errors.Is(err, os.ErrDeadlineExceeded) {
		what = "the client took nothing for too long"
	}
	return &fleet.Error{Code: protocol.CodeCancelled, Reason: "client_gone", Err: err, Message: what + " before it had the whole file"}
}

// check judges the end of a download before that's on record: it has succeeded only with the
// bytes that the agent says it sent.
func (s *fileSink) check(result jsontext.Value, err *fleet.Error) *fleet.Error {
	if err != nil {
		return err
	}
	var out capability.FSDownloadOut
	if json.Unmarshal(result, &out) != nil {
		return badFile("the agent's result makes no sense")
	}
	if s.none {
		return nil
	}
	if s.head == nil || s.came != s.head.Length || *s.head != out.FSFileHead {
		return badFile("the agent sent other bytes than it says it did")
	}
	sum := hex.EncodeToString(s.sum.Sum(nil))
	if out.SHA256 != sum || out.Length == out.Size && out.FileSHA256 != "" && out.FileSHA256 != sum {
		return badFile("the agent sent bytes of another SHA-256 than it says it did")
	}
	return nil
}

func sound(h *capability.FSFileHead) bool {
	return h.Offset >= 0 && h.Length >= 0 && h.Size >= 0 && h.Offset <= h.Size && h.Length <= h.Size-h.Offset && versionForm(h.Version)
}

func versionForm(v string) bool { return regexp.MustCompile(`^[0-9a-f-]{1,128}$`).MatchString(v) }

// flush writes what was held back.
func (s *fileSink) flush() error {
	s.start(false)
	for b := s.held; len(b) > 0; {
		k := min(writeBytes, len(b))
		if _, err := s.w.Write(b[:k]); err != nil {
			return lostClient(err)
		}
		b = b[k:]
	}
	s.held = s.held[:0]
	return nil
}

// start sends the headers, once. whole tells that the digests are known and set.
func (s *fileSink) start(whole bool) {
	if s.begun {
		return
	}
	s.begun = true
	<-s.named
	h := s.w.Header()
	s.describe(s.head)
	if s.trailers && !whole {
		h.Set("Trailer", "Content-Digest, Repr-Digest")
	} else {
		h.Set("Content-Length", strconv.FormatInt(s.head.Length, 10))
	}
	if s.asked != nil && s.head.Length > 0 && (s.asked.IfVersion == "" || s.asked.IfVersion == s.head.Version) {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", s.head.Offset, s.head.Offset+s.head.Length-1, s.head.Size))
		s.w.WriteHeader(http.StatusPartialContent)
		return
	}
	s.w.WriteHeader(http.StatusOK)
}

// describe sets the headers of a file.
func (s *fileSink) describe(head *capability.FSFileHead) {
	h := s.w.Header()
	h.Set("Content-Type", "application/octet-stream") // what it really is, a host says: no browser shall run it
	h.Set("Content-Disposition", attachment(head.Path))
	h.Set("Accept-Ranges", "bytes")
	h.Set("X-Accel-Buffering", "no")
	if versionForm(head.Version) {
		h.Set("ETag", `"`+head.Version+`"`)
	}
	if t, err := time.Parse(time.RFC3339Nano, head.Modified); err == nil {
		h.Set("Last-Modified", t.UTC().Format(http.TimeFormat))
	}
}

// attachment names the file for whoever saves the answer.
func attachment(file string) string {
	name := path.Base(strings.ReplaceAll(file, `\`, "/"))
	if v := mime.FormatMediaType("attachment", map[string]string{"filename": name}); v != "" {
		return v
	}
	return "attachment"
}

// end answers with what was held back when the call has succeeded, as the record has it. An error is returned
// while it can be answered; afterwards the connection is broken off, so that nobody takes
// what came for the file.
func (s *fileSink) end(out *capability.FSDownloadOut, err error) error {
	if err != nil && s.begun {
		panic(http.ErrAbortHandler)
	}
	if err != nil {
		return err
	}
	h := s.w.Header()
	if s.trailers || !s.begun { // trailers, or headers still
		setDigest(h, "Content-Digest", out.SHA256)
		setDigest(h, "Repr-Digest", out.FileSHA256)
	}
	s.start(true)
	if s.flush() != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// setDigest writes a hex SHA-256 as RFC 9530 has it.
func setDigest(h http.Header, name, sum string) {
	if b, err := hex.DecodeString(sum); err == nil && len(b) == 32 {
		h.Set(name, "sha-256=:"+base64.StdEncoding.EncodeToString(b)+":")
	}
}

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// probeFrom is the size from which the first try asks what an earlier one has left: below
// it, sending is as quick.
const probeFrom = 1 << 20

// sending is a local file on its way.
type sending struct {
	*transfer
	file *os.File // nil: standard input, of unknown size
	size int64
	sum  string // of the file
	id   string
	at   int64 // what the host had when the last try began

	unsure bool // the last body that was sent may have become the file
}

// upload copies to the agent.
func (t *transfer) upload(ctx context.Context) (*copied, error) {
	s := &sending{transfer: t, size: -1}
	err := s.open()
	if err != nil {
		return nil, err
	}
	if s.file != nil {
		defer func() { _ = s.file.Close() }()
	}
	if strings.HasSuffix(t.remote, "/") || strings.HasSuffix(t.remote, `\`) {
		name, err := remoteName(filepath.Base(t.local), t.remote)
		if err != nil {
			return nil, err
		}
		t.remote += name
	}
	t.measure(s.size)
	if s.size < 0 {
		return s.pour(ctx)
	}
	if s.sum, err = s.hash(ctx); err != nil {
		return nil, err
	}
	if t.o.resume {
		s.id = uploadID(t.agent, t.remote, strconv.FormatInt(s.size, 10), s.sum)
	}
	var c *restapi.Call
	err = t.persist(ctx, func(retry bool) error {
		c, err = s.try(ctx, retry)
		return err
	})
	if err != nil {
		t.meter.Clear()
		return nil, s.worded(err)
	}
	return s.verdict(c, s.sum)
}

// open opens the local side. What isn't a regular file is taken as it comes.
func (s *sending) open() error {
	if s.local == "-" {
		return nil
	}
	if info, err := os.Stat(s.local); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		return aPipe(s.local, "cat PIPE | drover cp - AGENT:/path")
	}
	f, err := os.Open(s.local)
	if err != nil {
		return localError(err)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = localError(err)
	case info.IsDir():
		err = fleet.Errorf(protocol.CodeBadArgs, "%s is a folder; cp copies one file: pack it (tar c DIR | drover cp - AGENT:/path/dir.tar)", text.Quote(s.local, 200))
	case info.Mode().IsRegular():
		s.size = info.Size()
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	s.file = f
	return nil
}

// localError words an error of this machine's files. The command line was in order: what failed is
// coded as it is where a host's file fails.
func localError(err error) error {
	fe := &fleet.Error{Code: protocol.CodeToolFailed, Err: err, Message: "the local file: " + err.Error()}
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		fe.Message = fmt.Sprintf("the local file %s: %v", text.Quote(pe.Path, 200), pe.Err)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fe.Reason = protocol.ReasonENOENT
	case errors.Is(err, fs.ErrPermission):
		fe.Reason = protocol.ReasonEACCES
	case errors.Is(err, syscall.ENOSPC):
		fe.Reason = protocol.ReasonENOSPC
	}
	return fe
}

// uploadID names an upload so that the same command finds what it sent before.
func uploadID(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%d:%s", len(p), p) // a hash takes everything
	}
	return "cp-" + hex.EncodeToString(h.Sum(nil)[:16])
}

// hash is the SHA-256 of the local file.
func (s *sending) hash(ctx context.Context) (string, error) {
	h := sha256.New()
	if _, err := io.Copy(h, &attentive{ctx, io.NewSectionReader(s.file, 0, s.size)}); err != nil {
		return "", localError(err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// attentive is a reader that ends with its context.
type attentive struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (a *attentive) Read(p []byte) (int, error) {
	if a.ctx.Err() != nil {
		return 0, context.Cause(a.ctx)
	}
	return a.r.Read(p)
}

func (s *sending) query() url.Values {
	q := url.Values{}
	for name, v := range map[string]string{"mode": s.o.mode, "upload": s.id, "sha256": s.sum} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if s.o.mkdir {
		q.Set("create_parents", "true")
	}
	return q
}

// try sends what the host doesn't have yet.
func (s *sending) try(ctx context.Context, retry bool) (*restapi.Call, error) {
	s.at = 0
	if s.id != "" && (retry || s.size >= probeFrom) {
		c, out, err := s.probe(ctx)
		if err != nil {
			return nil, err
		}
		if out.Complete && retry { // the answer to the last try was lost, and nothing else
			return c, nil
		}
		if !out.Complete {
			s.unsure = false
			s.at = max(0, min(out.Received, s.size-1)) // a part to send has a byte at least
		}
	}
	s.meter.From(s.at)
	body := io.TeeReader(io.NewSectionReader(s.file, s.at, s.size-s.at), s.meter)
	return s.put(ctx, body, s.size-s.at)
}

// probe asks how much of the upload is there.
func (s *sending) probe(ctx context.Context) (*restapi.Call, *capability.FSUploadOut, error) {
	q := url.Values{"upload": {s.id}, "size": {strconv.FormatInt(s.size, 10)}, "sha256": {s.sum}}
	var c restapi.Call
	if err := s.api.do(ctx, http.MethodGet, s.url(q), nil, &c); err != nil {
		return nil, nil, err
	}
	s.met = true
	out, err := uploadOut(&c)
	return &c, out, err
}

func uploadOut(c *restapi.Call) (*capability.FSUploadOut, error) {
	var out capability.FSUploadOut
	if err := json.Unmarshal(c.Result, &out); err != nil {
		return nil, fleet.Errorf(protocol.CodeInternal, "the server's answer has no result of an upload")
	}
	return &out, nil
}

// put sends the body; size is -1 when it isn't known.
func (s *sending) put(ctx context.Context, body io.Reader, size int64) (*restapi.Call, error) {
	c, err := s.putOnce(ctx, body, size)
	s.unsure = reached(err)
	return c, err
}

func (s *sending) putOnce(ctx context.Context, body io.Reader, size int64) (*restapi.Call, error) {
	req, err := s.api.request(ctx, http.MethodPut, s.url(s.query()), io.NopCloser(body))
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	if size == 0 {
		req.Body = http.NoBody
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	if size < 0 || size >= probeFrom {
		req.Header.Set("Expect", "100-continue") // what is refused isn't sent in vain
	}
	if s.at > 0 {
		req.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", s.at, s.size-1, s.size))
	}
	resp, err := s.ask(ctx, req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, s.api.unreachable(ctx, err)
	}
	var c restapi.Call
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fleet.Errorf(protocol.CodeInternal, "%s doesn't answer like a Drover server; is the URL right?", s.api.base)
	}
	return &c, nil
}

// pour sends what comes from a stream, once.
func (s *sending) pour(ctx context.Context) (*copied, error) {
	from := s.app.in
	if s.file != nil {
		from = s.file
	}
	h := sha256.New()
	c, err := s.put(ctx, io.TeeReader(from, io.MultiWriter(h, s.meter)), -1)
	if err != nil {
		s.meter.Clear()
		return nil, s.worded(err)
	}
	return s.verdict(c, hex.EncodeToString(h.Sum(nil)))
}

// worded adds to an error what this command knows of it.
func (s *sending) worded(err error) error {
	fe, ok := errors.AsType[*fleet.Error](err)
	switch {
	case !ok:
		return err
	case s.unsure:
		how := "look there (fs_stat), or copy it again"
		if s.id != "" {
			how = "the same command looks, and sends what isn't there"
		}
		return fleet.Wrap(protocol.CodeOutcomeUnknown, err, "%s may have got the whole file; %s: %s", s.agent, how, fe.Message)
	}
	hint := *fe
	switch {
	case fe.Reason == protocol.ReasonENOENT && !s.o.mkdir:
		hint.Message += " (drover cp --mkdir makes missing folders on the host)"
	case fe.Reason == protocol.ReasonEISDIR:
		hint.Message += " (to copy into a folder, end its path with /)"
	default:
		return err
	}
	return &hint
}

// verdict checks what the host says that it has.
func (s *sending) verdict(c *restapi.Call, sum string) (*copied, error) {
	out, err := uploadOut(c)
	if err != nil {
		return nil, err
	}
	if !out.Complete || out.SHA256 != sum {
		return nil, &fleet.Error{Code: protocol.CodeToolFailed, Reason: capability.ReasonDigest,
			Message: fmt.Sprintf("%s has the SHA-256 %s on the host, and %s was sent; look at the file there", text.Line(out.Path, 200), text.Line(out.SHA256, 64), sum)}
	}
	s.meter.Finish()
	return &copied{Direction: "upload", Path: out.Path, Size: out.Size, SHA256: sum, Resumed: s.at, CallID: c.CallID}, nil
}

// aPipe refuses a named pipe: opening one waits, for ever perhaps, until its other end is
// opened, and no signal ends that.
func aPipe(path, instead string) error {
	return fleet.Errorf(protocol.CodeBadArgs, "%s is a named pipe; let the shell open it: %s", text.Quote(path, 200), instead)
}

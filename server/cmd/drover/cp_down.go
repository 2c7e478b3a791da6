package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// receiving is a file of a host on its way.
type receiving struct {
	*transfer
	part    *os.File // beside the target; nil when the file goes straight to a stream
	to      io.Writer
	sum     hash.Hash // of all bytes, as long as they came in this run
	at      int64     // bytes that are there
	resumed int64
	version string // of the file that the bytes are of, "" before the first
	size    int64
	callID  string // of the last try
}

// download copies from the agent.
func (t *transfer) download(ctx context.Context) (*copied, error) {
	r := &receiving{transfer: t, size: -1, sum: sha256.New()}
	mode, err := r.target()
	if err != nil {
		return nil, err
	}
	if r.to == nil {
		if err := r.find(); err != nil {
			return nil, err
		}
	}
	t.measure(-1)
	t.meter.From(r.at)
	err = t.persist(ctx, func(bool) error { return r.try(ctx) })
	var out *capability.FSDownloadOut
	if err == nil {
		out, err = r.check(ctx)
	}
	if err == nil && r.part != nil {
		err = r.place(mode)
	}
	t.kept = r.leave()
	if err != nil {
		t.meter.Clear()
		return nil, t.keeps(err)
	}
	t.meter.Finish()
	return &copied{Direction: "download", Path: out.Path, Size: out.Size, SHA256: out.FileSHA256, Resumed: r.resumed, CallID: r.callID}, nil
}

// target settles where the file goes and with which permissions.
func (r *receiving) target() (fs.FileMode, error) {
	mode := fs.FileMode(0)
	if r.o.mode != "" {
		n, err := strconv.ParseUint(r.o.mode, 8, 9)
		if err != nil {
			return 0, fleet.Errorf(protocol.CodeBadArgs, "--mode takes octal digits for a local file, 0000 to 0777, such as 0644")
		}
		mode = fs.FileMode(n)
	}
	if r.local == "-" {
		r.to = r.app.out
		return mode, nil
	}
	info, err := os.Stat(r.local)
	if err == nil && info.IsDir() || os.IsPathSeparator(r.local[len(r.local)-1]) {
		name := remoteBase(r.remote)
		if err := named(name, r.local); err != nil {
			return 0, err
		}
		r.local = filepath.Join(r.local, name)
		info, err = os.Stat(r.local)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return mode, nil
	case err == nil && info.Mode()&os.ModeNamedPipe != 0:
		return 0, aPipe(r.local, "drover cp AGENT:/path - > PIPE")
	case err != nil:
		return 0, localError(err)
	case info.IsDir():
		return 0, fleet.Errorf(protocol.CodeBadArgs, "%s is a folder", text.Quote(r.local, 200))
	case !info.Mode().IsRegular(): // a device or a pipe
		f, err := os.OpenFile(r.local, os.O_WRONLY, 0)
		if err != nil {
			return 0, localError(err)
		}
		r.to = f
		return mode, nil
	}
	if real, err := filepath.EvalSymlinks(r.local); err == nil {
		r.local = real // the file is replaced, not a link to it
	}
	if r.o.mode == "" {
		mode = info.Mode().Perm()
	}
	return mode, nil
}

// partPattern is what a part's name begins with: the same for the same command.
func (r *receiving) partPattern() string {
	return ".drover-" + uploadID(r.agent, r.remote, filepath.Base(r.local)) + "-"
}

const partEnd = ".part"

// find looks for what an earlier run has left.
func (r *receiving) find() error {
	if !r.o.resume {
		return nil
	}
	list, err := os.ReadDir(filepath.Dir(r.local))
	if err != nil {
		return localError(err)
	}
	for _, e := range list {
		name, begins := strings.CutPrefix(e.Name(), r.partPattern())
		version, ends := strings.CutSuffix(name, partEnd)
		if !begins || !ends || !e.Type().IsRegular() || !versionForm(version) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(filepath.Dir(r.local), e.Name()), os.O_RDWR, 0)
		if err != nil {
			return localError(err)
		}
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil || end == 0 || !own(f) {
			_ = f.Close()
			continue
		}
		// The last byte is fetched once more, so that there's always something to ask for.
		r.part, r.to, r.sum, r.version, r.at, r.resumed = f, f, nil, version, end-1, end-1
		return r.rewind()
	}
	return nil
}

func versionForm(v string) bool { return regexp.MustCompile(`^[0-9a-f-]{1,128}$`).MatchString(v) }

// rewind puts the part's end where the copy stands.
func (r *receiving) rewind() error {
	if err := r.part.Truncate(r.at); err != nil {
		return localError(err)
	}
	_, err := r.part.Seek(r.at, io.SeekStart)
	return err
}

// try fetches what isn't there yet.
func (r *receiving) try(ctx context.Context) error {
	req, err := r.api.request(ctx, http.MethodGet, r.url(url.Values{}), nil)
	if err != nil {
		return err
	}
	req.Header.Set("Want-Repr-Digest", "sha-256=1")
	req.Header.Set("Accept-Encoding", "identity")
	if r.at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", r.at))
		req.Header.Set("If-Range", `"`+r.version+`"`)
	}
	resp, err := r.ask(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := r.begin(resp); err != nil {
		return err
	}
	to := io.MultiWriter(&local{r.to}, r.meter)
	if r.sum != nil {
		to = io.MultiWriter(to, r.sum)
	}
	n, err := io.Copy(to, resp.Body)
	r.at += n
	switch le := (*localFailure)(nil); {
	case errors.As(err, &le):
		r.drop() // a full disk is to be free again
		return localError(le.err)
	case err == nil && r.at == r.size:
		return nil
	case err == nil:
		err = io.ErrUnexpectedEOF
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fleet.Wrap(protocol.CodeUnavailable, errors.Join(errCut, err), "the transfer broke off after %d bytes (%v): the host, the server or the way to it ended it, and the record of the call %s may say why (drover audit list --call-id %s)", r.at, err, r.callID, r.callID)
}

// local marks failures of the local side.
type local struct{ w io.Writer }

type localFailure struct{ err error }

// Error implements error.
func (e *localFailure) Error() string { return e.err.Error() }

// Write implements io.Writer.
func (l *local) Write(b []byte) (int, error) {
	n, err := l.w.Write(b)
	if err != nil {
		err = &localFailure{err}
	}
	return n, err
}

// begin reads the answer's headers: a part that goes on, or the whole from its beginning.
func (r *receiving) begin(resp *http.Response) error {
	version := strings.Trim(resp.Header.Get("ETag"), `"`)
	r.callID = resp.Header.Get(restapi.CallIDHeader)
	if !versionForm(version) || r.callID == "" {
		return fleet.Errorf(protocol.CodeInternal, "%s doesn't answer like a Drover server; is the URL right, and what is between?", r.api.base)
	}
	if resp.StatusCode == http.StatusPartialContent {
		var first, last int64
		_, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &r.size)
		if err != nil || first != r.at || last != r.size-1 || version != r.version {
			return fleet.Errorf(protocol.CodeInternal, "the server sends another part of the file than the one that was asked for")
		}
		r.meter.Size = r.size
		return nil
	}
	if r.at > 0 && r.part == nil {
		return &fleet.Error{Code: protocol.CodeToolFailed, Reason: capability.ReasonChanged, Message: "the file changed on the host after a part of it was written out; begin anew"}
	}
	r.size, r.at, r.resumed, r.sum = resp.ContentLength, 0, 0, sha256.New()
	r.meter.Size = r.size
	r.meter.From(0)
	if r.size < 0 {
		return fleet.Errorf(protocol.CodeInternal, "the answer doesn't say how long the file is; what is between %s and this machine?", r.api.base)
	}
	if r.to != nil && r.part == nil {
		r.version = version
		return nil
	}
	return r.fresh(version)
}

// fresh begins a part anew.
func (r *receiving) fresh(version string) error {
	name := filepath.Join(filepath.Dir(r.local), r.partPattern()+version+partEnd)
	if r.part != nil && r.version == version {
		return r.rewind()
	}
	r.drop()
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return localError(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return localError(err)
	}
	r.part, r.to, r.version = f, f, version
	return nil
}

// drop removes the part.
func (r *receiving) drop() {
	if r.part != nil {
		_ = r.part.Close()
		_ = os.Remove(r.part.Name())
		r.part = nil
	}
}

// check compares what is here with what the host says that it sent.
func (r *receiving) check(ctx context.Context) (*capability.FSDownloadOut, error) {
	var c restapi.Call
	err := r.persist(ctx, func(bool) error {
		return r.api.do(ctx, http.MethodGet, "/calls/"+url.PathEscape(r.callID), nil, &c)
	})
	if err != nil {
		return nil, err
	}
	var out capability.FSDownloadOut
	if err := json.Unmarshal(c.Result, &out); err != nil || out.FileSHA256 == "" {
		return nil, fleet.Errorf(protocol.CodeInternal, "the server's record of the call has no SHA-256 of the file")
	}
	if r.sum == nil {
		r.sum = sha256.New()
		if _, err := io.Copy(r.sum, &attentive{ctx, io.NewSectionReader(r.part, 0, r.size)}); err != nil {
			return nil, localError(err)
		}
	}
	if got := hex.EncodeToString(r.sum.Sum(nil)); got != out.FileSHA256 || out.Size != r.size {
		r.drop()
		return nil, &fleet.Error{Code: protocol.CodeToolFailed, Reason: capability.ReasonDigest,
			Message: fmt.Sprintf("what came has the SHA-256 %s and the file on the host %s; nothing was written here, and what came is gone. Copy it again", got, text.Line(out.FileSHA256, 64))}
	}
	return &out, nil
}

// place moves the part to its target.
func (r *receiving) place(mode fs.FileMode) error {
	if mode == 0 && r.o.mode == "" {
		mode = 0o644
	}
	name := r.part.Name()
	err := r.part.Chmod(mode)
	if err == nil || errors.Is(err, errors.ErrUnsupported) {
		err = r.part.Sync()
	}
	if cerr := r.part.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(name, r.local)
	}
	if err != nil {
		_ = os.Remove(name)
		r.part = nil
		return localError(err)
	}
	r.part = nil
	return nil
}

// leave closes the local side. What can be gone on with stays: kept says where, "" for nothing.
func (r *receiving) leave() (kept string) {
	if f, ok := r.to.(io.Closer); ok && r.part == nil && r.local != "-" {
		_ = f.Close()
	}
	if r.part == nil {
		return ""
	}
	if !r.o.resume || r.at == 0 {
		r.drop()
		return ""
	}
	_ = r.part.Close()
	return r.part.Name()
}

// keeps adds to an error what is left of the copy on this machine, if anything.
func (t *transfer) keeps(err error) error {
	if t.kept == "" {
		return err
	}
	fe, ok := errors.AsType[*fleet.Error](err)
	if !ok {
		return fmt.Errorf("%w; %s", err, t.left())
	}
	told := *fe
	told.Message += "; " + t.left()
	return &told
}

// left says what is left of a copy that didn't come to its end, and what it's good for.
func (t *transfer) left() string {
	switch {
	case t.kept != "":
		return fmt.Sprintf("what came is kept in %s: the same command goes on from there, or remove it", text.Quote(t.kept, 500))
	case t.toHost && t.o.resume && t.local != "-":
		return "the same command goes on where it stopped"
	}
	return "nothing is kept of it"
}

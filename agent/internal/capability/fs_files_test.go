//go:build linux

package capability_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/tests/testenv"
)

// sink takes what a download sends. onWrite, if not nil, is called before each piece is
// taken.
type sink struct {
	bytes.Buffer
	onWrite func(so int)
	closed  bool
	reset   bool
}

func (s *sink) Write(b []byte) (int, error) {
	if s.onWrite != nil {
		s.onWrite(s.Len())
	}
	return s.Buffer.Write(b)
}

func (s *sink) Close() error { s.closed = true; return nil }
func (s *sink) Reset()       { s.reset = true }

// download runs one and takes the head off what came.
func download(t testing.TB, r *rig, to *sink, a args) (head spec.FSFileHead, body string, out spec.FSDownloadOut, fault *protocol.Error) {
	t.Helper()
	resp := r.Handle(t.Context(), r.request(t, "fs_download", a), mux.DetachedStreams(nil, nil, -1, to))
	if resp.Result != nil {
		if err := json.Unmarshal(resp.Result, &out); err != nil {
			t.Fatal(err)
		}
	}
	if to.Len() == 0 {
		return head, "", out, resp.Error
	}
	line, body, ok := strings.Cut(to.String(), "\n")
	if err := json.Unmarshal([]byte(line), &head); err != nil || !ok {
		t.Fatalf("the stream begins with %.200q: %v", line, err)
	}
	if ended := resp.Error == nil; to.closed != ended || to.reset == ended {
		t.Errorf("error %v, and the stream was closed %v, reset %v", resp.Error, to.closed, to.reset)
	}
	return head, body, out, resp.Error
}

func upload(ctx context.Context, t testing.TB, r *rig, body io.Reader, a args) (out spec.FSUploadOut, fault *protocol.Error) {
	t.Helper()
	resp := r.Handle(ctx, r.request(t, "fs_upload", a), mux.DetachedStreams(nil, body, -1, nil))
	if resp.Result != nil {
		if err := json.Unmarshal(resp.Result, &out); err != nil {
			t.Fatal(err)
		}
	}
	return out, resp.Error
}

func TestDownloadingParts(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	for _, size := range []int{0, 1, 70_000, 3 << 20} {
		content := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		path := writeFile(t, dir+"/f", content)
		head, body, out, fault := download(t, r, &sink{}, args{"path": path})
		if fault != nil || body != content || out.FSFileHead != head || out.SHA256 != sum(content) || out.FileSHA256 != out.SHA256 || head.Size != int64(size) || head.Length != int64(size) || head.Path != path || head.Mode != "0644" {
			t.Errorf("%d: %d bytes, %+v, %+v, %v", size, len(body), head, out, fault)
		}
		if size < 10 {
			continue
		}
		_, body, out, fault = download(t, r, &sink{}, args{"path": path, "offset": 7, "length": size - 9, "file_sha256": true})
		if fault != nil || body != content[7:size-2] || out.SHA256 != sum(body) || out.FileSHA256 != sum(content) {
			t.Errorf("%d: a part: %d bytes, %+v, %v", size, len(body), out, fault)
		}
		_, body, out, _ = download(t, r, &sink{}, args{"path": path, "offset": -5, "length": 500})
		if body != content[size-5:] || out.Offset != int64(size-5) || out.Length != 5 || out.FileSHA256 != "" {
			t.Errorf("%d: its end: %q, %+v", size, body, out)
		}
		_, body, _, _ = download(t, r, &sink{}, args{"path": path, "offset": 5, "if_version": head.Version})
		if body != content[5:] {
			t.Errorf("%d: the same version: %d bytes", size, len(body))
		}
		_, body, _, _ = download(t, r, &sink{}, args{"path": path, "offset": 5, "length": 1, "if_version": "1-1-1"})
		if body != content {
			t.Errorf("%d: another version: %d bytes", size, len(body))
		}
		_, body, out, fault = download(t, r, &sink{}, args{"path": path, "offset": size})
		wantFault(t, fault, protocol.CodeToolFailed, spec.ReasonRange)
		if out.Size != int64(size) || body != "" {
			t.Errorf("%d: beyond: %+v", size, out)
		}
		to := &sink{}
		if _, _, out, fault := download(t, r, to, args{"path": path, "head": true}); fault != nil || to.Len() != 0 || out.FSFileHead != head || out.SHA256 != "" {
			t.Errorf("%d: head: %+v, %v", size, out, fault)
		}
	}
}

// Each state of a file has a version of its own, also when its size and its name stay.
func TestAVersionNamesAStateOfAFile(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	seen := []string{}
	look := func() {
		t.Helper()
		_, _, out, fault := download(t, r, &sink{}, args{"path": dir + "/f", "head": true})
		if fault != nil || slices.Contains(seen, out.Version) {
			t.Errorf("%q after %q, %v", out.Version, seen, fault)
		}
		seen = append(seen, out.Version)
	}
	writeFile(t, dir+"/f", "old")
	look()
	when := time.Now().Add(time.Nanosecond)
	if err := os.Chtimes(writeFile(t, dir+"/f", "new"), when, when); err != nil {
		t.Fatal(err)
	}
	look()
	if err := os.Rename(writeFile(t, dir+"/g", "one"), dir+"/f"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(dir+"/f", when, when); err != nil {
		t.Fatal(err)
	}
	look()
}

func TestAFileThatChangesWhileItIsSentIsAnError(t *testing.T) {
	r := newRig(t)
	for name, change := range map[string]func(path string) error{
		"shrinks":      func(path string) error { return os.Truncate(path, 2<<20) },
		"grows":        func(path string) error { return appendTo(path, "more") },
		"is rewritten": func(path string) error { return os.WriteFile(path, make([]byte, 3<<20), 0o644) },
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, bytes.Repeat([]byte("x"), 3<<20), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
		changed := false
		_, _, out, fault := download(t, r, &sink{onWrite: func(so int) {
			if so > 1<<20 && !changed {
				changed = true
				if err := change(path); err != nil {
					t.Error(err)
				}
			}
		}}, args{"path": path})
		wantFault(t, fault, protocol.CodeToolFailed, spec.ReasonChanged)
		if out.SHA256 != "" || !changed {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

func appendTo(path, s string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

func TestF03_WhatCanBeDownloaded(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, dir, "/proc")
	if err := syscall.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	symlink(t, "/etc/passwd", dir+"/out")
	symlink(t, "real", dir+"/in")
	writeFile(t, dir+"/real", "real")
	for path, reason := range map[string]string{
		dir + "/fifo": protocol.ReasonNotRegular, dir: protocol.ReasonEISDIR, dir + "/none": protocol.ReasonENOENT,
		dir + "/out": protocol.ReasonOutsideRoot, "/etc/passwd": protocol.ReasonOutsideRoot, dir + "/../x": protocol.ReasonOutsideRoot, "/dev/zero": protocol.ReasonOutsideRoot,
	} {
		_, body, _, fault := download(t, r, &sink{}, args{"path": path})
		wantFault(t, fault, protocol.CodeToolFailed, reason)
		if body != "" {
			t.Errorf("%s: %q", path, body)
		}
		_, fault = upload(t.Context(), t, r, strings.NewReader("x"), args{"path": path, "size": 1})
		if path != dir+"/none" {
			wantFault(t, fault, protocol.CodeToolFailed, reason)
		} else if fault != nil {
			t.Error(fault)
		}
	}
	if head, body, _, fault := download(t, r, &sink{}, args{"path": dir + "/in"}); fault != nil || body != "real" || head.Path != dir+"/real" {
		t.Errorf("%+v %q %v", head, body, fault)
	}
	// The system says that this file is empty.
	if head, body, out, fault := download(t, r, &sink{}, args{"path": "/proc/version"}); fault != nil || !strings.HasPrefix(body, "Linux") || head.Size != int64(len(body)) || out.SHA256 != sum(body) {
		t.Errorf("%+v %q %v", head, body, fault)
	}
}

func TestAnUploadKeepsTheRulesOfFSWrite(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	content := strings.Repeat("new content ", 20_000)
	out, fault := upload(t.Context(), t, r, strings.NewReader(content), args{"path": dir + "/a/b/f", "size": len(content), "sha256": strings.ToUpper(sum(content)), "create_parents": true, "if_sha256": "absent"})
	if fault != nil || !out.Created || !out.Complete || out.Size != int64(len(content)) || out.SHA256 != sum(content) || out.Mode != "0644" || readFile(t, dir+"/a/b/f") != content {
		t.Fatalf("%+v, %v", out, fault)
	}
	path := dir + "/a/b/f"
	if err := os.Chmod(path, 0o751); err != nil {
		t.Fatal(err)
	}
	symlink(t, "f", dir+"/a/b/link")
	// Of unknown size, through a link, guarded by what's there.
	if out, fault = upload(t.Context(), t, r, strings.NewReader("second"), args{"path": dir + "/a/b/link", "size": -1, "if_sha256": sum(content)}); fault != nil || out.Created || out.Mode != "0751" || out.Path != path || readFile(t, path) != "second" {
		t.Errorf("%+v, %v", out, fault)
	}
	for name, c := range map[string]struct {
		a      args
		body   string
		code   protocol.Code
		reason string
	}{
		"absent":         {args{"if_sha256": "absent", "size": 1}, "x", protocol.CodeToolFailed, protocol.ReasonEEXIST},
		"changed":        {args{"if_sha256": sum("other"), "size": 1}, "x", protocol.CodeToolFailed, protocol.ReasonSHAMismatch},
		"wrong sum":      {args{"sha256": sum("other"), "size": 1}, "x", protocol.CodeToolFailed, spec.ReasonDigest},
		"wrong sum kept": {args{"sha256": sum("other"), "size": 1, "upload_id": "i"}, "x", protocol.CodeToolFailed, spec.ReasonDigest},
		"short":          {args{"size": 3}, "xx", protocol.CodeToolFailed, spec.ReasonDigest},
		"long":           {args{"size": 3, "sha256": sum("xxx"), "upload_id": "i"}, "xxxx", protocol.CodeToolFailed, spec.ReasonDigest},
		"no folder":      {args{"path": dir + "/none/f", "size": 1}, "x", protocol.CodeToolFailed, protocol.ReasonENOENT},
		"mode":           {args{"size": 1, "mode": "9"}, "x", protocol.CodeBadArgs, ""},
		"no sum":         {args{"size": 1, "upload_id": "i"}, "x", protocol.CodeBadArgs, ""},
		"no id":          {args{"size": 2, "offset": 1}, "x", protocol.CodeBadArgs, ""},
		"beyond":         {args{"size": 2, "offset": 3, "upload_id": "i", "sha256": sum("x")}, "x", protocol.CodeBadArgs, ""},
		"not there":      {args{"size": 2, "offset": 1, "upload_id": "i", "sha256": sum("x")}, "x", protocol.CodeConflict, spec.ReasonOffset},
	} {
		if c.a["path"] == nil {
			c.a["path"] = path
		}
		_, fault := upload(t.Context(), t, r, strings.NewReader(c.body), c.a)
		if wantFault(t, fault, c.code, c.reason); t.Failed() {
			t.Fatalf("in %s", name)
		}
	}
	if got := names(t, dir+"/a/b"); readFile(t, path) != "second" || !slices.Equal(got, []string{"f", "link"}) {
		t.Errorf("left %v", got)
	}
}

func TestAnInterruptedUploadIsGoneOnWith(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	content := strings.Repeat("0123456789", 50_000)
	a := args{"path": dir + "/f", "size": len(content), "sha256": sum(content), "upload_id": "mine"}
	with := func(name string, v any) args {
		b := args{name: v}
		for k, v := range a {
			if k != name {
				b[k] = v
			}
		}
		return b
	}
	broken := func(part string) io.Reader {
		return io.MultiReader(strings.NewReader(part), iotest.ErrReader(errors.New("the line broke")))
	}
	_, fault := upload(t.Context(), t, r, broken(content[:200_000]), a)
	wantFault(t, fault, protocol.CodeToolFailed, spec.ReasonPartial)
	if out, fault := upload(t.Context(), t, r, nil, with("probe", true)); fault != nil || out.Received != 200_000 || out.Complete {
		t.Fatalf("%+v, %v", out, fault)
	}
	if got := names(t, dir); len(got) != 1 || !strings.HasPrefix(got[0], ".drover-upload-") {
		t.Errorf("%v", got)
	}
	// A part that was announced as one ends in order; what the caller has doubts of comes again.
	if out, fault := upload(t.Context(), t, r, strings.NewReader(content[150_000:300_000]), with("offset", 150_000)); fault != nil || out.Complete || out.Received != 300_000 {
		t.Fatalf("%+v, %v", out, fault)
	}
	out, fault := upload(t.Context(), t, r, strings.NewReader(content[300_000:]), with("offset", 300_000))
	if fault != nil || !out.Complete || out.SHA256 != sum(content) || readFile(t, dir+"/f") != content || len(names(t, dir)) != 1 {
		t.Fatalf("%+v, %v, %v", out, fault, names(t, dir))
	}
	// Whoever lost the answer learns that it's done.
	if out, fault := upload(t.Context(), t, r, nil, with("probe", true)); fault != nil || !out.Complete || out.Received != int64(len(content)) {
		t.Errorf("%+v, %v", out, fault)
	}
	// Without an id nothing stays; with a cancelled call what came does.
	_, fault = upload(t.Context(), t, r, broken("abc"), args{"path": dir + "/g", "size": 9})
	wantFault(t, fault, protocol.CodeToolFailed, spec.ReasonCut)
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("%v", got)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	_, fault = upload(ctx, t, r, &cancelling{strings.NewReader(content[:100_000]), func() { cancel(&mux.CancelError{Reason: "asked"}) }}, a)
	wantFault(t, fault, protocol.CodeCancelled, "")
	if out, _ := upload(t.Context(), t, r, nil, with("probe", true)); out.Received == 0 || out.Complete {
		t.Errorf("%+v", out)
	}
}

// cancelling calls fn at its first Read, and never ends.
type cancelling struct {
	io.Reader
	fn func()
}

func (c *cancelling) Read(p []byte) (int, error) {
	n, _ := c.Reader.Read(p)
	c.fn()
	runtime.Gosched() // the cancel takes its way through the runner
	return n, nil
}

// The condition holds at the moment of the replacement, not of the beginning.
func TestAConditionIsCheckedWhenTheUploadIsWhole(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	for condition, reason := range map[string]string{sum("old"): protocol.ReasonSHAMismatch, "absent": protocol.ReasonEEXIST} {
		path := dir + "/f"
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if condition != "absent" {
			writeFile(t, path, "old")
		}
		body, feed := io.Pipe()
		ended := make(chan *protocol.Error, 1)
		go func() {
			_, fault := upload(t.Context(), t, r, body, args{"path": path, "size": 2, "if_sha256": condition})
			ended <- fault
		}()
		if _, err := feed.Write([]byte("a")); err != nil { // it's under way
			t.Fatal(err)
		}
		if _, fault := write(t, r, args{"path": path, "content": "somebody else's"}); fault != nil {
			t.Fatal(fault)
		}
		if _, err := feed.Write([]byte("b")); err != nil {
			t.Fatal(err)
		}
		_ = feed.Close()
		wantFault(t, <-ended, protocol.CodeToolFailed, reason)
		if got := names(t, dir); readFile(t, path) != "somebody else's" || len(got) != 1 {
			t.Errorf("%s: %q, %v", reason, readFile(t, path), got)
		}
	}
}

// Two uploads of one id don't mix; nobody else's file is taken for a part.
func TestAPartBelongsToOneUpload(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	a := args{"path": dir + "/f", "size": 2, "sha256": sum("ab"), "upload_id": "mine"}
	body, feed := io.Pipe()
	first := make(chan *protocol.Error, 1)
	go func() {
		_, fault := upload(t.Context(), t, r, body, a)
		first <- fault
	}()
	if _, err := feed.Write([]byte("a")); err != nil { // it's under way
		t.Fatal(err)
	}
	_, fault := upload(t.Context(), t, r, strings.NewReader("ab"), a)
	wantFault(t, fault, protocol.CodeConflict, spec.ReasonInUse)
	if _, err := feed.Write([]byte("b")); err != nil {
		t.Fatal(err)
	}
	_ = feed.Close()
	if fault := <-first; fault != nil || readFile(t, dir+"/f") != "ab" {
		t.Error(fault)
	}
	_, fault = upload(t.Context(), t, r, iotest.ErrReader(errors.New("x")), a)
	wantFault(t, fault, protocol.CodeToolFailed, spec.ReasonPartial)
	part := ""
	for _, name := range names(t, dir) {
		if strings.HasPrefix(name, ".drover-upload-") {
			part = dir + "/" + name
		}
	}
	for name, make := range map[string]func() error{
		"a link":       func() error { return os.Symlink(dir+"/f", part) },
		"a second one": func() error { return os.Link(dir+"/f", part) },
		"a fifo":       func() error { return syscall.Mkfifo(part, 0o600) },
	} {
		if err := os.Remove(part); err != nil {
			t.Fatal(err)
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
		if _, fault := upload(t.Context(), t, r, strings.NewReader("ab"), a); fault == nil || fault.Code != protocol.CodeToolFailed {
			t.Errorf("%s: %v", name, fault)
		}
	}
	if readFile(t, dir+"/f") != "ab" {
		t.Error("another file was written to")
	}
}

// An upload's id is its principal's: another one neither sees what came, nor goes on with
// it, nor spoils or blocks it.
func TestAnUploadIsItsPrincipalsAlone(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	as := func(principal string, body io.Reader, more args) (out spec.FSUploadOut, fault *protocol.Error) {
		a := args{"path": dir + "/f", "size": 4, "sha256": sum("abcd"), "upload_id": "same"}
		maps.Copy(a, more)
		req := r.request(t, "fs_upload", a)
		req.Caller.Principal = principal
		resp := r.Handle(t.Context(), req, mux.DetachedStreams(nil, body, -1, nil))
		if resp.Result != nil {
			if err := json.Unmarshal(resp.Result, &out); err != nil {
				t.Fatal(err)
			}
		}
		return out, resp.Error
	}
	if out, fault := as("pat:ann", strings.NewReader("ab"), nil); fault != nil || out.Received != 2 {
		t.Fatalf("%+v, %v", out, fault)
	}
	if out, fault := as("pat:bob", nil, args{"probe": true}); fault != nil || out.Received != 0 {
		t.Errorf("another's part is seen: %+v, %v", out, fault)
	}
	if _, fault := as("pat:bob", strings.NewReader("cd"), args{"offset": 2}); fault == nil || fault.Reason != spec.ReasonOffset {
		t.Errorf("another's part was gone on with: %v", fault)
	}
	if out, fault := as("pat:bob", strings.NewReader("x"), nil); fault != nil || out.Received != 1 {
		t.Errorf("%+v, %v", out, fault)
	}
	body, feed := io.Pipe()
	theirs := make(chan *protocol.Error, 1)
	go func() { _, fault := as("pat:bob", body, args{"offset": 1}); theirs <- fault }()
	if _, err := feed.Write([]byte("y")); err != nil { // it's under way
		t.Fatal(err)
	}
	if out, fault := as("pat:ann", strings.NewReader("cd"), args{"offset": 2}); fault != nil || !out.Complete || readFile(t, dir+"/f") != "abcd" {
		t.Errorf("spoilt: %+v, %v", out, fault)
	}
	_ = feed.Close()
	if fault := <-theirs; fault != nil {
		t.Error(fault)
	}
}

// A stream's end and its call's come one after the other, in either order. The call's says
// what happened: a revoked credential is a cancel, not a failure of the line.
func TestAStreamThatEndsWithItsCallIsCancelled(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	big := writeFile(t, dir+"/big", strings.Repeat("0123456789", 50_000))
	for name, cause := range map[string]error{
		"revoked": &mux.CancelError{Reason: "revoked"},
		"removed": fmt.Errorf("%w: %w", protocol.ErrCut, &protocol.CloseError{Code: protocol.CloseRemoved}),
	} {
		late := func(cancel context.CancelCauseFunc) func() {
			return func() { time.AfterFunc(20*time.Millisecond, func() { cancel(cause) }) }
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		out := &resetting{then: late(cancel)}
		resp := r.Handle(ctx, r.request(t, "fs_download", args{"path": big}), mux.DetachedStreams(nil, nil, -1, out))
		wantFault(t, resp.Error, protocol.CodeCancelled, "")
		for _, id := range []string{"", "mine"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			in := &resetting{then: late(cancel)}
			_, fault := upload(ctx, t, r, in, args{"path": dir + "/g", "size": 5, "sha256": sum("abcde"), "upload_id": id})
			wantFault(t, fault, protocol.CodeCancelled, "")
			if t.Failed() {
				t.Fatalf("%s, upload %q", name, id)
			}
		}
	}
}

// resetting is a stream that breaks; then is called, which ends its call a little later.
type resetting struct{ then func() }

func (s *resetting) Read([]byte) (int, error)  { s.then(); return 0, mux.ErrReset }
func (s *resetting) Write([]byte) (int, error) { s.then(); return 0, mux.ErrReset }
func (s *resetting) Close() error              { return nil }
func (s *resetting) Reset()                    {}

func TestOldPartsArePruned(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	old := writeFile(t, dir+"/.drover-upload-0123.part", "x")
	day := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(old, day, day); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir+"/.drover-upload-4567.part", "x")
	if _, fault := upload(t.Context(), t, r, strings.NewReader("x"), args{"path": dir + "/f", "size": 1}); fault != nil {
		t.Fatal(fault)
	}
	if got := names(t, dir); !slices.Equal(got, []string{".drover-upload-4567.part", "f"}) {
		t.Errorf("%v", got)
	}
}

func TestF08_AFullDiskLeavesTheOldFileAndNoPart(t *testing.T) {
	testenv.Require(t, os.Geteuid() == 0, "only root can mount a small file system")
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		testenv.Require(t, false, "a tmpfs can't be mounted here: "+err.Error())
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	old := strings.Repeat("x", 600_000)
	path := writeFile(t, dir+"/conf", old)
	r := newRig(t)
	content := strings.Repeat("y", 900_000)
	for _, id := range []string{"", "mine"} {
		for _, p := range []string{path, dir + "/a/b/c"} {
			_, fault := upload(t.Context(), t, r, strings.NewReader(content), args{"path": p, "size": len(content), "sha256": sum(content), "upload_id": id, "create_parents": true})
			wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOSPC)
		}
	}
	if got := names(t, dir); readFile(t, path) != old || !slices.Equal(got, []string{"conf"}) {
		t.Errorf("left %v", got)
	}
}

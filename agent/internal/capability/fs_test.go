//go:build linux

package capability_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

func list(t testing.TB, r *rig, a args) (spec.FSListOut, *protocol.Error) {
	t.Helper()
	return call[spec.FSListOut](t.Context(), t, r, "fs_list", a)
}

func stat(t testing.TB, r *rig, a args) (spec.FSStatOut, *protocol.Error) {
	t.Helper()
	return call[spec.FSStatOut](t.Context(), t, r, "fs_stat", a)
}

func read(t testing.TB, r *rig, a args) (spec.FSReadOut, *protocol.Error) {
	t.Helper()
	return call[spec.FSReadOut](t.Context(), t, r, "fs_read", a)
}

func write(t testing.TB, r *rig, a args) (spec.FSWriteOut, *protocol.Error) {
	t.Helper()
	return call[spec.FSWriteOut](t.Context(), t, r, "fs_write", a)
}

func sum(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func symlink(t testing.TB, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

func TestF02_F11_EveryFileToolKeepsToTheRoots(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "ok")
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/ok_secret/deep", 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir+"/ok_secret/f", "secret")
	symlink(t, dir+"/ok_secret/f", root+"/link")
	symlink(t, dir+"/ok_secret/deep", root+"/dirlink")
	r := newRig(t, root)
	for _, path := range []string{"..", root + "/../ok_secret/f", dir + "/ok_secret/f", root + "//./../x", `C:\ok\..\x`, `\\?\C:\x`, "C:x", "file:///etc/passwd",
		"/etc/passwd", root + "/link", root + "/dirlink/x", root + `/\x2e\x2e/ok_secret/f`} {
		for _, tool := range []string{"fs_list", "fs_read", "fs_stat", "fs_write"} {
			if tool == "fs_stat" && path == root+"/link" {
				continue // the link itself is inside
			}
			a := args{"path": path}
			if tool == "fs_write" {
				a["content"], a["create_parents"] = "x", true
			}
			_, fault := call[map[string]any](t.Context(), t, r, tool, a)
			wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonOutsideRoot)
			if fault != nil && (strings.Contains(fault.Message, "deep") || path == root+"/link" && strings.Contains(fault.Message, "ok_secret")) {
				t.Errorf("%s %s: names a link's target: %s", tool, path, fault.Message)
			}
		}
	}
	if got := readFile(t, dir+"/ok_secret/f"); got != "secret" {
		t.Errorf("outside was written: %q", got)
	}
	out, fault := stat(t, r, args{"path": root + "/link"})
	if fault != nil || out.Type != "link" || out.Target != "" || out.Resolved != "" {
		t.Errorf("a link that leads out: %+v, %v", out, fault)
	}
	all, fault := list(t, r, args{"path": root})
	if fault != nil || len(all.Entries) != 2 || all.Entries[0].Target != "" {
		t.Errorf("listing: %+v, %v", all, fault)
	}
	if out, fault := write(t, r, args{"path": root + "/a/b", "content": "x", "create_parents": true}); fault != nil || !out.Created {
		t.Errorf("inside: %+v, %v", out, fault)
	}
}

func TestF03_OnlyRegularFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(dir+"/fifo", 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	symlink(t, "/dev/zero", dir+"/zero")
	r := newRig(t)
	for _, path := range []string{dir + "/fifo", dir + "/sock", "/dev/zero", "/dev/tty", dir + "/zero"} {
		within(t, 2*time.Second, path, func() {
			_, fault := read(t, r, args{"path": path})
			wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonNotRegular)
			_, fault = write(t, r, args{"path": path, "content": "x"})
			wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonNotRegular)
			_, fault = stat(t, r, args{"path": path, "sha256": true})
			wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonNotRegular)
		})
	}
	_, fault := read(t, r, args{"path": dir})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonEISDIR)
	_, fault = read(t, r, args{"path": dir + "/missing"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOENT)
	out, fault := read(t, r, args{"path": "/proc/meminfo"})
	if fault != nil || !strings.Contains(out.Text, "MemTotal:") || out.Size != int64(len(out.Text)) {
		t.Errorf("meminfo: %+v, %v", out, fault)
	}
	all, fault := list(t, r, args{"path": dir})
	if fault != nil || len(all.Entries) != 3 || all.Entries[0].Type != "fifo" || all.Entries[1].Type != "socket" || all.Entries[2].Type != "link" || all.Entries[2].Target != "/dev/zero" {
		t.Errorf("listing: %+v, %v", all, fault)
	}
}

func TestF09_OddNamesAreListedAndUsable(t *testing.T) {
	dir := t.TempDir()
	odd := []string{"bad\xff.txt", "a\nb", "-rf", "e\u0301", `back\x41`, "\u202egnp.exe", "esc\x1b[2J", " "}
	for _, name := range odd {
		writeFile(t, dir+"/"+name, "content of "+fmt.Sprintf("%q", name))
	}
	r := newRig(t, dir)
	out, fault := list(t, r, args{"path": dir})
	if fault != nil || len(out.Entries) != len(odd) || out.Total != len(odd) {
		t.Fatalf("got %+v, %v", out, fault)
	}
	slices.Sort(odd)
	for i, e := range out.Entries {
		got, fault := read(t, r, args{"path": e.Path})
		if fault != nil || got.Text != fmt.Sprintf("content of %q", odd[i]) {
			t.Errorf("%s: got %q, %v", e.Path, got.Text, fault)
		}
		if strings.ContainsAny(e.Name, "\n\x1b\u202e") {
			t.Errorf("%q is shown raw", e.Name)
		}
		if _, fault := write(t, r, args{"path": e.Path, "content": "new"}); fault != nil || readFile(t, dir+"/"+odd[i]) != "new" {
			t.Errorf("write %s: %v", e.Path, fault)
		}
		if s, fault := stat(t, r, args{"path": e.Path}); fault != nil || s.Name != e.Name || s.Path != e.Path {
			t.Errorf("stat %s: %+v, %v", e.Path, s, fault)
		}
	}
	if got := names(t, dir); len(got) != len(odd) {
		t.Errorf("left: %q", got)
	}
}

func TestListingGoesPageByPage(t *testing.T) {
	dir := t.TempDir()
	want := []string{}
	for i := range 1234 {
		name := fmt.Sprintf("f%04d\n", i)
		if i%100 == 0 {
			name = "." + name
		}
		writeFile(t, dir+"/"+name, "")
		want = append(want, strings.ReplaceAll(name, "\n", `\x0a`))
	}
	slices.Sort(want)
	r := newRig(t)
	var got []string
	a := args{"path": dir, "limit": 100}
	for pages := 0; ; pages++ {
		out, fault := list(t, r, a)
		if fault != nil || len(out.Entries) > 100 || out.Total != 1234 || pages > 13 {
			t.Fatalf("page %d: %d entries of %d, %v", pages, len(out.Entries), out.Total, fault)
		}
		for _, e := range out.Entries {
			got = append(got, e.Name)
		}
		if out.NextCursor == "" {
			break
		}
		a["cursor"] = out.NextCursor
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	out, fault := list(t, r, args{"path": dir, "limit": 2000, "hidden": false})
	if fault != nil || len(out.Entries) != 1234-13 || out.NextCursor != "" {
		t.Errorf("without hidden ones: %d, %v", len(out.Entries), fault)
	}
	_, fault = list(t, r, args{"path": writeFile(t, filepath.Join(t.TempDir(), "f"), "")})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOTDIR)
}

func TestStatDescribes(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/f", "hello")
	symlink(t, "f", dir+"/l")
	r := newRig(t)
	out, fault := stat(t, r, args{"path": dir + "/f", "sha256": true})
	if fault != nil || out.Type != "file" || out.Size != 5 || out.Mode != "0644" || out.SHA256 != sum("hello") || out.Owner == "" || out.Resolved != "" || out.Name != "f" {
		t.Errorf("file: %+v, %v", out, fault)
	}
	if _, err := time.Parse(time.RFC3339, out.Modified); err != nil {
		t.Error(err)
	}
	out, fault = stat(t, r, args{"path": dir + "/l"})
	if fault != nil || out.Type != "link" || out.Target != "f" || out.Resolved != dir+"/f" {
		t.Errorf("link: %+v, %v", out, fault)
	}
	out, fault = stat(t, r, args{"path": "/"})
	if fault != nil || out.Type != "dir" || out.Path != "/" {
		t.Errorf("/: %+v, %v", out, fault)
	}
	_, fault = stat(t, r, args{"path": dir + "/missing"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOENT)
}

func TestErrorsStayShortHoweverLongThePath(t *testing.T) {
	r := newRig(t)
	long := "/" + strings.Repeat("x/", 4000)
	for _, tool := range []string{"fs_read", "fs_list", "fs_stat"} {
		_, fault := call[map[string]any](t.Context(), t, r, tool, args{"path": long})
		if fault == nil || len(fault.Message) > 1000 || bytes.ContainsAny([]byte(fault.Message), "\n\x1b") {
			t.Errorf("%s: %v", tool, fault)
		}
	}
}

// What takes long ends with its call, and says why it ended.
func TestFileToolsEndWithTheirCall(t *testing.T) {
	path := writeFile(t, t.TempDir()+"/large", "")
	if err := os.Truncate(path, 1<<30); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	req := r.request(t, "fs_stat", args{"path": path, "sha256": true})
	req.DeadlineMS = 20
	within(t, 2*time.Second, "hashing", func() {
		wantFault(t, r.Handle(t.Context(), req, mux.Detached(func(string) {})).Error, protocol.CodeTimedOut, "")
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&mux.CancelError{Reason: "asked to"})
	for tool, a := range map[string]args{"fs_stat": {"path": path, "sha256": true}, "fs_list": {"path": "/"}, "fs_write": {"path": path + ".new", "content": "x"}} {
		_, fault := call[map[string]any](ctx, t, r, tool, a)
		wantFault(t, fault, protocol.CodeCancelled, "")
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("written after the cancel")
	}
}

//go:build linux

package capability_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
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
	"github.com/drover-fleet/drover/tests/testenv"
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

func TestF08_AFullDiskLeavesTheOldFile(t *testing.T) {
	testenv.Require(t, os.Geteuid() == 0, "only root can mount a small file system")
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=1m"); err != nil {
		testenv.Require(t, false, "a tmpfs can't be mounted here: "+err.Error())
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	old := strings.Repeat("x", 600_000)
	path := writeFile(t, dir+"/conf", old)
	r := newRig(t)
	_, fault := write(t, r, args{"path": path, "content": strings.Repeat("y", 900_000)})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOSPC)
	_, fault = write(t, r, args{"path": dir + "/a/b/c", "content": strings.Repeat("y", 900_000), "create_parents": true})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOSPC)
	if got := names(t, dir); readFile(t, path) != old || !slices.Equal(got, []string{"conf"}) {
		t.Errorf("left: %v", got)
	}
	if err := syscall.Mount("none", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, "size=1m"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/conf", "/new"} {
		_, fault = write(t, r, args{"path": dir + name, "content": "y"})
		wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonEROFS)
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

func TestF10_LargeAndBinaryFilesComeInWindows(t *testing.T) {
	dir := t.TempDir()
	sparse := writeFile(t, dir+"/sparse", "")
	if err := os.Truncate(sparse, 10<<30); err != nil {
		t.Fatal(err)
	}
	png := writeFile(t, dir+"/p.png", "\x89PNG\r\n\x1a\n"+strings.Repeat("\x00\xff", 10_000))
	bigPNG := writeFile(t, dir+"/big.png", "\x89PNG\r\n\x1a\n"+strings.Repeat("\x00\xff", 500_000))
	one := writeFile(t, dir+"/one.json", `["`+strings.Repeat("é", 2_500_000)+`"]`)
	r := newRig(t)
	for _, a := range []args{{"path": sparse}, {"path": sparse, "offset": -10}, {"path": sparse, "unit": "bytes", "offset": -5}, {"path": png}, {"path": one},
		{"path": one, "unit": "bytes", "offset": 3}, {"path": bigPNG}, {"path": png, "unit": "bytes"}} {
		within(t, 2*time.Second, fmt.Sprint(a), func() {
			req := r.request(t, "fs_read", a)
			resp := r.Handle(t.Context(), req, func(string) {})
			if len(resp.Result) > 42_000 {
				t.Errorf("%v: an answer of %d bytes", a, len(resp.Result))
			}
		})
	}
	out, fault := read(t, r, args{"path": sparse})
	if fault != nil || out.Kind != "binary" || out.Size != 10<<30 || out.NextOffset != 30_000 || out.Unit != "bytes" || !out.Truncated {
		t.Errorf("sparse: %+.200v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": sparse, "unit": "bytes", "offset": -5})
	if fault != nil || out.Data != base64.StdEncoding.EncodeToString(make([]byte, 5)) || out.Offset != 10<<30-5 || out.NextOffset != 0 {
		t.Errorf("sparse's end: %+v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": png})
	if b, _ := base64.StdEncoding.DecodeString(out.Data); fault != nil || out.Kind != "image" || out.MIME != "image/png" || string(b) != readFile(t, png) {
		t.Errorf("image: %+.200v, %v", out, fault)
	}
	if out, fault = read(t, r, args{"path": bigPNG}); fault != nil || out.Kind != "binary" || out.MIME != "image/png" || out.Size != 1_000_008 {
		t.Errorf("large image: %+.200v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": one})
	if fault != nil || out.Kind != "text" || !out.Truncated || out.NextByteOffset == 0 || out.Size != 5_000_004 {
		t.Errorf("one line: %d bytes, next %d, %v", len(out.Text), out.NextByteOffset, fault)
	}
	next, fault := read(t, r, args{"path": one, "unit": "bytes", "offset": out.NextByteOffset})
	if fault != nil || next.Kind != "text" || !strings.HasPrefix(readFile(t, one), out.Text+next.Text) {
		t.Errorf("it doesn't go on where it ended: %v", fault)
	}
}

func TestReadingByLinesAndBytesGoesOnWithoutGapOrOverlap(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	for name, content := range map[string]string{
		"text":        strings.Repeat("line of text é😀\n", 20_000),
		"no break":    strings.Repeat("short\n", 3000) + "last",
		"controls":    strings.Repeat("\x01\x02\x1b[2J\"\\\n", 10_000),
		"empty lines": strings.Repeat("\n", 50_000),
		"long lines":  strings.Repeat(strings.Repeat("x", 30_000)+"\n", 100),
		"empty":       "",
	} {
		path := writeFile(t, dir+"/"+name, content)
		for _, unit := range []string{"lines", "bytes"} {
			got, a := "", args{"path": path, "unit": unit}
			for rounds := 0; ; rounds++ {
				resp := r.Handle(t.Context(), r.request(t, "fs_read", a), func(string) {})
				if len(resp.Result) > 41_000 || rounds > 1000 {
					t.Fatalf("%s by %s: an answer of %d bytes in round %d", name, unit, len(resp.Result), rounds)
				}
				out, fault := read(t, r, a)
				if fault != nil || out.Kind != "text" || out.ByteOffset != int64(len(got)) || out.SHA256 != sum(content) {
					t.Fatalf("%s by %s at %v: %+.300v, %v", name, unit, a["offset"], out, fault)
				}
				got += out.Text
				if out.NextOffset == 0 {
					break
				}
				a["offset"] = out.NextOffset
			}
			if got != content {
				t.Errorf("%s by %s: %d bytes, want %d", name, unit, len(got), len(content))
			}
		}
	}
}

func TestReadingFromTheEnd(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "log")
	for content, c := range map[string]struct {
		offset int
		want   string
	}{"a\nb\nc\n": {-2, "b\nc\n"}, "a\nb\nc": {-2, "b\nc"}, "a\n\n": {-1, "\n"}, "a": {-5, "a"}, "\n": {-1, "\n"}, "": {-3, ""},
		strings.Repeat("0123456789\n", 100_000) + "end\n": {-2, "0123456789\nend\n"}} {
		writeFile(t, path, content)
		if out, fault := read(t, r, args{"path": path, "offset": c.offset}); fault != nil || out.Text != c.want || out.NextOffset != 0 {
			t.Errorf("%.20q from %d: got %q, %+v, %v", content, c.offset, out.Text, out, fault)
		}
	}
	writeFile(t, path, strings.Repeat("x\n", 10))
	out, fault := read(t, r, args{"path": path, "offset": -4, "limit": 3})
	if fault != nil || out.Text != "x\nx\nx\n" || out.Offset != -4 || out.NextOffset != -1 || !out.Truncated {
		t.Errorf("got %+v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": path, "offset": 100})
	if fault != nil || out.Text != "" || out.ByteOffset != 20 || out.NextOffset != 0 {
		t.Errorf("beyond the end: %+v, %v", out, fault)
	}
}

func TestTextThatIsNotUTF8IsBinary(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "f")
	for content, mime := range map[string]string{"caf\xe9\n": "text/plain; charset=utf-8", "\xff\xfea\x00\n\x00": "text/plain; charset=utf-16le", "a\x00b": "application/octet-stream"} {
		writeFile(t, path, content)
		out, fault := read(t, r, args{"path": path})
		if b, err := base64.StdEncoding.DecodeString(out.Data); fault != nil || err != nil || out.Kind != "binary" || string(b) != content || out.Text != "" || out.MIME != mime {
			t.Errorf("%q: %+v, %v", content, out, fault)
		}
	}
}

func TestF12_WritingSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	_, fault := write(t, r, args{"path": dir + "/a/b/c/x", "content": "x"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOENT)
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("made %v", got)
	}
	out, fault := write(t, r, args{"path": dir + "/a/b/c/x", "content": "hello\n", "create_parents": true})
	if fault != nil || !out.Created || out.SHA256 != sum("hello\n") || out.Size != 6 || out.Mode != "0644" || readFile(t, dir+"/a/b/c/x") != "hello\n" {
		t.Errorf("got %+v, %v", out, fault)
	}
	_, fault = write(t, r, args{"path": dir, "content": "x"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonEISDIR)
	_, fault = write(t, r, args{"path": "/", "content": "x"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonEISDIR)
	_, fault = write(t, r, args{"path": dir + "/a/b/c/x/y", "content": "x"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENOTDIR)
	_, fault = write(t, r, args{"path": dir + "/" + strings.Repeat("n", 256), "content": "x"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENAMETOOLONG)
	// A tree that can't be finished isn't left half made.
	_, fault = write(t, r, args{"path": dir + "/p/q/" + strings.Repeat("n", 256), "content": "x", "create_parents": true})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonENAMETOOLONG)
	if got := names(t, dir); !slices.Equal(got, []string{"a"}) {
		t.Errorf("left %v", got)
	}
	for _, a := range []args{{"content": "x", "mode": "999"}, {"content": "x", "mode": "10000"}, {"content": "x", "if_sha256": "abc"}, {"content": "!", "encoding": "base64"}} {
		a["path"] = dir + "/bad"
		_, fault = write(t, r, a)
		wantFault(t, fault, protocol.CodeBadArgs, "")
	}
}

func TestF12_ARunningProgramIsReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	program := dir + "/program"
	if err := os.WriteFile(program, []byte(readFile(t, "/usr/bin/sleep")), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := os.StartProcess(program, []string{program, "60"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Kill(); _, _ = p.Wait() }()
	out, fault := write(t, r, args{"path": program, "content": "#!/bin/sh\necho new\n"})
	if fault != nil || out.Mode != "0755" || out.Created {
		t.Errorf("got %+v, %v", out, fault)
	}
	if got, fault := shell(t, r, args{"argv": []string{program}}); fault != nil || got.Stdout != "new\n" || !alive(p.Pid) {
		t.Errorf("got %+v, %v; the old one is alive: %v", got, fault, alive(p.Pid))
	}
}

func TestWritingKeepsLinkModeOwnerAndAttributes(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	real := writeFile(t, dir+"/real", "old")
	symlink(t, "real", dir+"/link")
	symlink(t, dir+"/new", dir+"/dangling")
	root := os.Geteuid() == 0
	if root {
		if err := os.Chown(real, 12345, 23456); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(real, 0o640|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	xattrs := syscall.Setxattr(real, "user.note", []byte("kept"), 0) == nil
	out, fault := write(t, r, args{"path": dir + "/link", "content": "new"})
	if fault != nil || out.Path != real || out.Mode != "2640" || out.Created {
		t.Errorf("got %+v, %v", out, fault)
	}
	info, err := os.Lstat(real)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); readFile(t, real) != "new" || info.Mode() != 0o640|os.ModeSetgid || root && (st.Uid != 12345 || st.Gid != 23456) {
		t.Errorf("%v, %+v", info.Mode(), info.Sys())
	}
	if target, err := os.Readlink(dir + "/link"); err != nil || target != "real" {
		t.Errorf("the link is now %q, %v", target, err)
	}
	buf := make([]byte, 16)
	if n, err := syscall.Getxattr(real, "user.note", buf); xattrs && (err != nil || string(buf[:n]) != "kept") {
		t.Errorf("attribute: %q, %v", buf[:max(0, n)], err)
	}
	if out, fault := write(t, r, args{"path": dir + "/dangling", "content": "AAEC", "encoding": "base64", "mode": "0600"}); fault != nil || !out.Created || out.Mode != "0600" || readFile(t, dir+"/new") != "\x00\x01\x02" {
		t.Errorf("through a dangling link: %+v, %v", out, fault)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"dangling", "link", "new", "real"}) {
		t.Errorf("left %v", got)
	}
}

func TestIfSHA256GuardsAgainstOthersChanges(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	path := dir + "/f"
	if _, fault := write(t, r, args{"path": path, "content": "0", "if_sha256": "absent"}); fault != nil {
		t.Fatal(fault)
	}
	_, fault := write(t, r, args{"path": path, "content": "x", "if_sha256": "absent"})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonEEXIST)
	_, fault = write(t, r, args{"path": path, "content": "x", "if_sha256": sum("other")})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonSHAMismatch)
	_, fault = write(t, r, args{"path": dir + "/gone", "content": "x", "if_sha256": sum("other")})
	wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonSHAMismatch)
	// Of many that saw the same content, one writes.
	results := make(chan *protocol.Error, 16)
	for i := range 16 {
		go func() {
			_, fault := write(t, r, args{"path": path, "content": fmt.Sprint("by ", i), "if_sha256": strings.ToUpper(sum("0"))})
			results <- fault
		}()
	}
	won := 0
	for range 16 {
		if fault := <-results; fault == nil {
			won++
		} else {
			wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonSHAMismatch)
		}
	}
	if won != 1 || !strings.HasPrefix(readFile(t, path), "by ") {
		t.Errorf("%d won", won)
	}
}

// An agent that isn't root may not take over what it could only rename over.
func TestAFileThatMayNotBeWrittenIsNotReplaced(t *testing.T) {
	testenv.Require(t, os.Geteuid() == 0, "only root can make files of several users")
	dir := t.TempDir()
	r := newRig(t)
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if info, err := os.Stat(d); err == nil && info.Mode().Perm()&0o005 != 0o005 {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	readOnly := writeFile(t, dir+"/read_only", "old")
	open := writeFile(t, dir+"/open", "old")
	if err := os.Chmod(open, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{readOnly, open} {
		fault := asNobody(t, func() *protocol.Error {
			_, fault := write(t, r, args{"path": path, "content": "new"})
			return fault
		})
		wantFault(t, fault, protocol.CodeToolFailed, protocol.ReasonEACCES)
		if readFile(t, path) != "old" {
			t.Errorf("%s was replaced", path)
		}
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("left %v", got)
	}
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

//go:build linux

package capability_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/testenv"
)

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

//go:build linux

package capability_test

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-fleet/drover/agent/internal/capability"
	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/tests/testenv"
)

// hiding is a rig whose agent keeps its own folder.
func hiding(t *testing.T, state string, roots ...string) *rig {
	t.Helper()
	files, err := guard.NewFiles(roots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = files.Close() })
	if err := files.Hide(state); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := &rig{reg: &run.Registry{}, id: run.Identity{Fingerprint: make([]byte, 32), Generation: 1}}
	capability.Bind(r.reg, &capability.Host{AgentID: "web-01", Version: "1.2.3", RunAs: "tester", Files: files, Log: log})
	r.Runner = run.New(r.reg, r.id, nil, log)
	return r
}

// swapping exchanges pairs of names, over and over, until the test's end; its caller stops
// it before that.
func swapping(t *testing.T, pairs ...[2]string) (stop func()) {
	t.Helper()
	done, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-done:
				ended <- nil
				return
			default:
			}
			for _, p := range pairs {
				if err := unix.Renameat2(unix.AT_FDCWD, p[0], unix.AT_FDCWD, p[1], unix.RENAME_EXCHANGE); err != nil {
					<-done
					ended <- err
					return
				}
			}
		}
	}()
	return func() {
		close(done)
		if err := <-ended; err != nil {
			t.Errorf("swapping: %v", err)
		}
	}
}

// snapshot is all that's below a folder: names and contents.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		b.WriteString(strings.TrimPrefix(path, dir) + "\n")
		if e.Type().IsRegular() {
			b.WriteString(readFile(t, path) + "\n")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// race is a call that's made while a local user swaps what its path leads through.
type race struct {
	tool string
	args args
	ends bool // it may put a file in the link's place, and nothing is swapped from then on
}

// races are the calls: pub/d is a folder or a link to forbidden, pub/f a file or a link to
// one there.
func races(pub string) []race {
	return []race{
		{tool: "fs_read", args: args{"path": pub + "/d/agent.key"}},
		{tool: "fs_read", args: args{"path": pub + "/d/sub/deep"}},
		{tool: "fs_read", args: args{"path": pub + "/d/sub/../agent.key"}},
		{tool: "fs_read", args: args{"path": pub + "/f"}},
		{tool: "fs_stat", args: args{"path": pub + "/d/agent.key", "sha256": true}},
		{tool: "fs_stat", args: args{"path": pub + "/f", "sha256": true}},
		{tool: "fs_list", args: args{"path": pub + "/d"}},
		{tool: "fs_list", args: args{"path": pub + "/d/sub"}},
		{tool: "fs_write", args: args{"path": pub + "/d/agent.key", "content": "decoy"}},
		{tool: "fs_write", args: args{"path": pub + "/d/new", "content": "written"}},
		{tool: "fs_write", args: args{"path": pub + "/d/sub/made/new", "content": "written", "create_parents": true}},
		{tool: "fs_write", args: args{"path": pub + "/f", "content": "decoy"}, ends: true},
	}
}

// A local user who exchanges folders and links all the time gets no call past the agent's
// own folder or out of the roots, and no call leaves anything behind.
func TestSwappedLinksLeadNowhere(t *testing.T) {
	const most = 5_000
	for _, c := range []struct {
		name, forbidden string
		roots           []string
	}{
		{"the agent's folder", "state", nil}, {"the agent's folder within a root", "state", []string{""}},
		{"the agent's folder beside a root", "state", []string{"/pub"}}, {"outside a root", "out", []string{"/pub"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			forbidden, pub := dir+"/"+c.forbidden, dir+"/pub"
			for d, content := range map[string]string{dir + "/state": "SECRET state", dir + "/out": "SECRET out", pub + "/d": "decoy"} {
				if err := os.MkdirAll(d+"/sub", 0o755); err != nil {
					t.Fatal(err)
				}
				writeFile(t, d+"/agent.key", content)
				writeFile(t, d+"/sub/deep", content)
			}
			writeFile(t, forbidden+"/SECRET-name", "")
			writeFile(t, forbidden+"/sub/SECRET-name", "")
			writeFile(t, pub+"/f", "decoy")
			symlink(t, forbidden, pub+"/dlink")
			symlink(t, "../"+c.forbidden+"/agent.key", pub+"/flink")
			before := snapshot(t, forbidden)
			var roots []string
			for _, r := range c.roots {
				roots = append(roots, dir+r)
			}
			r := hiding(t, dir+"/state", roots...)
			secret := sum(readFile(t, forbidden+"/agent.key"))
			stop := swapping(t, [2]string{pub + "/d", pub + "/dlink"}, [2]string{pub + "/f", pub + "/flink"})
			defer func() {
				stop()
				if after := snapshot(t, forbidden); after != before {
					t.Errorf("written: %s\nwas: %s", after, before)
				}
				if all := snapshot(t, dir); strings.Contains(all, ".tmp\n") {
					t.Errorf("left: %s", all)
				}
			}()
			for _, race := range races(pub) {
				// Both outcomes come up within a few turns; the bound is for a machine that's in the way.
				done, refused, turns := 0, 0, 400
				if race.tool == "fs_write" {
					turns = 50 // each waits for the disk
				}
				for i := 0; i < turns || i < most && !race.ends && (done == 0 || refused == 0); i++ {
					resp := r.Handle(t.Context(), r.request(t, race.tool, race.args), mux.Detached(func(string) {}))
					if resp.Error != nil {
						refused++
						plausible(t, race, resp.Error)
						continue
					}
					done++
					if got := string(resp.Result); strings.Contains(got, "SECRET") || strings.Contains(got, secret) {
						t.Fatalf("%s %v gave %s", race.tool, race.args, got)
					}
				}
				if !race.ends && (done == 0 || refused == 0) {
					t.Errorf("%s %v: done %d, refused %d: there was no race", race.tool, race.args, done, refused)
				}
			}
		})
	}
}

// plausible checks that a refusal is one that a swapped link explains.
func plausible(t *testing.T, race race, fault *protocol.Error) {
	t.Helper()
	switch fault.Reason {
	case protocol.ReasonEACCES, protocol.ReasonOutsideRoot, protocol.ReasonENOTDIR, protocol.ReasonNotRegular, "eloop":
		return
	}
	t.Errorf("%s %v: %v", race.tool, race.args, fault)
}

// A folder that may be gone through and not listed is gone through.
func TestAFolderThatMayOnlyBeSearchedIsNoObstacle(t *testing.T) {
	testenv.Require(t, os.Geteuid() == 0, "only root can be another user")
	dir := t.TempDir()
	for d := dir; d != filepath.Clean(os.TempDir()); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	path := writeFile(t, dir+"/f", "content")
	for _, r := range []*rig{newRig(t), newRig(t, dir)} {
		if fault := asNobody(t, func() *protocol.Error {
			_, fault := read(t, r, args{"path": path})
			return fault
		}); fault != nil {
			t.Error(fault)
		}
	}
}

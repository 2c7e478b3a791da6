package arch

import (
	"debug/elf"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// maxAgent is how large the stripped agent may get, in bytes: it goes to every host, over
// whatever line there is.
const maxAgent = 15_000_000

func TestAgentIsSmallAndStatic(t *testing.T) {
	out := filepath.Join(t.TempDir(), "drover-agent")
	golang(t, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, "./agent/cmd/drover-agent")
	info, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("drover-agent: %d bytes", info.Size())
	if info.Size() > maxAgent {
		t.Errorf("the agent has %d bytes, more than %d", info.Size(), maxAgent)
	}
	if runtime.GOOS != "linux" {
		return
	}
	f, err := elf.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the agent is linked dynamically: it wouldn't start on a host with another C library")
		}
	}
}

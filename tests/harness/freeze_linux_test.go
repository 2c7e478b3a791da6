package harness

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestAFrozenProgramStands: when Freeze returns no thread runs any more, the second time too.
func TestAFrozenProgramStands(t *testing.T) {
	p := Launch(t, Build(t, ""), LaunchOptions{Engine: SQLite}).Server
	for range 200 {
		p.Freeze()
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Cmd.Process.Pid))
		if err != nil || len(tasks) < 2 {
			t.Fatalf("%d threads, %v", len(tasks), err)
		}
		for _, task := range tasks {
			if b, err := os.ReadFile(task); err != nil || !bytes.Contains(b, []byte(") T ")) {
				t.Fatalf("%s: %s %v", task, b, err)
			}
		}
		p.Thaw()
	}
}

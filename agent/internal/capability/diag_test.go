package capability_test

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	spec "github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

func TestDiagSystemDescribesThisHost(t *testing.T) {
	r := newRig(t)
	var out spec.DiagSystemOut
	within(t, 5*time.Second, "diag_system", func() {
		var fault *protocol.Error
		if out, fault = call[spec.DiagSystemOut](t.Context(), t, r, "diag_system", args{}); fault != nil {
			t.Fatal(fault)
		}
	})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if out.Hostname != host || out.OS != runtime.GOOS || out.Arch != runtime.GOARCH || out.CPUs != runtime.NumCPU() || out.MemoryTotal == 0 ||
		out.Kernel == "" || out.OSVersion == "" || out.AgentVersion != "1.2.3" || out.AgentUser != "tester" {
		t.Errorf("got %+v", out)
	}
	if out.Processes == 0 || len(out.Top) == 0 || len(out.Top) > 10 || !slices.IsSortedFunc(out.Top, func(a, b spec.DiagProcess) int { return int(int64(b.RSSBytes) - int64(a.RSSBytes)) }) {
		t.Errorf("processes: %d, %+v", out.Processes, out.Top)
	}
	for _, stamp := range []string{out.Time, out.BootTime} {
		if _, err := time.Parse(time.RFC3339, stamp); err != nil {
			t.Error(err)
		}
	}
	resp := r.Handle(t.Context(), r.request(t, "diag_system", args{}), mux.Detached(func(string) {}))
	if strings.Contains(string(resp.Result), "null") {
		t.Errorf("null in %s", resp.Result)
	}
	t.Logf("%s", resp.Result)
}

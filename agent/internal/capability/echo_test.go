package capability_test

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol/mux"
)

// BenchmarkEchoHi is a small command by shell_exec, from the request to the response, beside
// the same one by os/exec alone. They take turns, so that a busy machine is busy for both;
// x-plain is how many times the other's time it takes.
func BenchmarkEchoHi(b *testing.B) {
	r := newRig(b)
	plain := func() {
		if out, err := exec.Command("bash", "-c", "echo hi").Output(); err != nil || string(out) != "hi\n" {
			b.Fatalf("%q, %v", out, err)
		}
	}
	ours := func() {
		resp := r.Handle(b.Context(), r.request(b, "shell_exec", args{"command": "echo hi"}), mux.Detached(nil))
		if resp.Error != nil {
			b.Fatal(resp.Error)
		}
	}
	var took [2]timer
	for b.Loop() {
		took[0].of(ours)
		took[1].of(plain)
	}
	b.ReportMetric(took[0].median().Seconds()*1e6, "us-ours")
	b.ReportMetric(took[1].median().Seconds()*1e6, "us-plain")
	b.ReportMetric(took[0].median().Seconds()/took[1].median().Seconds(), "x-plain")
}

// timer gathers how long something takes.
type timer []time.Duration

func (t *timer) of(fn func()) {
	began := time.Now()
	fn()
	*t = append(*t, time.Since(began))
}

func (t timer) median() time.Duration {
	slices.Sort(t)
	return t[len(t)/2]
}

//go:build unix

package cluster

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol/mux"
)

// BenchmarkHop is a small call to an agent in this process: straight to its session, and
// through another replica over NATS. What differs is the hop. cpu-ns/op is this process's
// time, both replicas' together, without NATS'.
func BenchmarkHop(b *testing.B) {
	here, there := pair(b)
	here.agent("web", 1, echo)
	eventually(b, "web is known", func() bool { return there.sees("web") })
	var n atomic.Int64
	for _, c := range []struct {
		name string
		r    *replica
	}{{"local", here}, {"remote", there}} {
		one := func() {
			caller, ok := c.r.Route("web", 1)
			if !ok {
				b.Error("web isn't there")
				return
			}
			if _, err := caller.Call(b.Context(), request(fmt.Sprint("c", n.Add(1)), `{"path":"/etc/hosts"}`), mux.Exchange{}); err != nil {
				b.Error(err)
			}
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				one()
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
		})
		b.Run(c.name+"-64-at-a-time", func(b *testing.B) {
			b.ReportAllocs()
			before := cpu(b)
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					one()
				}
			})
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu is the processor time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

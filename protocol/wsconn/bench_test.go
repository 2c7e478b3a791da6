package wsconn_test

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/mux"
)

const fileSize = 256 << 20

// files takes or gives one file a call.
type files struct{}

func (files) Handle(ctx context.Context, r *protocol.Request, w *mux.Work) *protocol.Response {
	if err := carry(ctx, r.Tool, w); err != nil {
		return &protocol.Response{Error: protocol.Errorf(protocol.CodeInternal, "%v", err)}
	}
	return &protocol.Response{Result: []byte(`{}`)}
}

func carry(ctx context.Context, tool string, w *mux.Work) error {
	if tool == "to_host" {
		in, _, err := w.In(ctx)
		if err == nil {
			_, err = io.Copy(io.Discard, in)
		}
		return err
	}
	out, err := w.Out(fileSize)
	if err == nil {
		_, err = io.Copy(out, io.LimitReader(zeros{}, fileSize))
	}
	if err != nil {
		return err
	}
	return out.Close()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// session runs both ends, until stop.
func session(b *testing.B, h mux.Handler) (_ *mux.Session, stop func()) {
	server, agent := connect(b)
	server.Established()
	agent.Established()
	s := mux.New(server, mux.Config{})
	ended := make(chan struct{}, 2)
	for _, x := range []*mux.Session{s, mux.New(agent, mux.Config{Handler: h})} {
		go func() { _ = x.Run(context.Background()); ended <- struct{}{} }()
	}
	return s, func() { s.Close(0, ""); <-ended; <-ended }
}

// BenchmarkStream is a file of 256 MiB over a WebSocket on loopback.
func BenchmarkStream(b *testing.B) {
	for _, way := range []string{"to_host", "from_host"} {
		b.Run(way, func(b *testing.B) {
			s, stop := session(b, files{})
			defer stop()
			b.SetBytes(fileSize)
			b.ReportAllocs()
			id := 'a'
			for b.Loop() {
				id++
				x := mux.Exchange{Sink: io.Discard}
				if way == "to_host" {
					x = mux.Exchange{Body: io.LimitReader(zeros{}, fileSize), Size: fileSize}
				}
				resp, err := s.Call(b.Context(), &protocol.Request{ID: string(id), Tool: way, Args: []byte(`{}`), DeadlineMS: 60_000}, x)
				if err != nil || resp.Error != nil {
					b.Fatalf("%+v %v", resp, err)
				}
			}
		})
	}
}

// answers gives each request a small result.
type answers struct{}

func (answers) Handle(context.Context, *protocol.Request, *mux.Work) *protocol.Response {
	return &protocol.Response{Result: []byte(`{"path":"/srv/www/index.html","type":"file","size":4711,"mode":"0644","modified":"2026-11-30T09:00:00Z"}`)}
}

// BenchmarkCall is one small call, there and back over a WebSocket on loopback, one at a time
// and many at once: both ends' work.
func BenchmarkCall(b *testing.B) {
	for _, c := range []struct {
		name  string
		times int // callers for each processor
	}{{"one", 0}, {"many", 32}} {
		b.Run(c.name, func(b *testing.B) {
			s, stop := session(b, answers{})
			defer stop()
			var last atomic.Int64
			call := func() bool {
				r := &protocol.Request{ID: fmt.Sprintf("019ad3c4-5f6a-7b8c-9d0e-%012x", last.Add(1)), Tool: "fs_stat", Args: []byte(`{"path":"/srv/www/index.html"}`),
					Seal: protocol.B64(make([]byte, 32)), Caller: protocol.Caller{Principal: "pat:019ad3c4", User: "ann", Kind: "pat", Client: "claude-code 2.1"}, DeadlineMS: 60_000}
				resp, err := s.Call(context.Background(), r, mux.Exchange{})
				if err != nil || resp.Error != nil {
					b.Errorf("%+v %v", resp, err)
				}
				return err == nil
			}
			b.ReportAllocs()
			before := cpu()
			b.ResetTimer()
			if c.times == 0 {
				for range b.N {
					call()
				}
			} else {
				b.SetParallelism(c.times)
				b.RunParallel(func(p *testing.PB) {
					for p.Next() && call() {
					}
				})
			}
			b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

package wsconn_test

import (
	"context"
	"io"
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

// BenchmarkStream is a file of 256 MiB over a WebSocket on loopback.
func BenchmarkStream(b *testing.B) {
	for _, way := range []string{"to_host", "from_host"} {
		b.Run(way, func(b *testing.B) {
			server, agent := connect(b)
			server.Established()
			agent.Established()
			s, h := mux.New(server, mux.Config{}), mux.New(agent, mux.Config{Handler: files{}})
			ended := make(chan struct{}, 2)
			for _, x := range []*mux.Session{s, h} {
				go func() { _ = x.Run(context.Background()); ended <- struct{}{} }()
			}
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
			s.Close(0, "")
			<-ended
			<-ended
		})
	}
}

package tunnel

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/presence"
)

// pipe is a connection whose agent says nothing and takes all.
type pipe struct{ ended chan struct{} }

func (p pipe) Read(ctx context.Context) (bool, []byte, error) {
	select {
	case <-p.ended:
		return false, nil, io.EOF
	case <-ctx.Done():
		return false, nil, ctx.Err()
	}
}

func (pipe) Write(context.Context, bool, []byte) error { return nil }

func (p pipe) Close(int, string) error { close(p.ended); return nil }

// Who is asked to connect anew twice within a minute is, at the end of it: the second copy
// that was seen must be told from it, too. Unless it has connected anew by itself.
func TestRenewalIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := presence.New(nil)
		s := New(Config{Presence: reg, Log: slog.New(slog.DiscardHandler)})
		connect := func(epoch int64) *mux.Session {
			session := mux.New(pipe{make(chan struct{})}, mux.Config{KeepAlive: time.Hour})
			reg.Register(presence.Entry{Agent: "web-01", Generation: 1, Epoch: epoch, Instance: "a", Session: session, Calls: session.Open})
			go func() { _ = session.Run(t.Context()) }()
			synctest.Wait()
			return session
		}
		asked := func(what string, session *mux.Session, want bool) {
			t.Helper()
			synctest.Wait()
			if session.Alive() == want {
				t.Errorf("%s: asked %t, want %t", what, !want, want)
			}
		}
		began := time.Now()
		one := connect(1)
		s.Renew("web-01", 1)
		asked("the first time", one, true)
		two := connect(2)
		time.Sleep(10 * time.Second)
		s.Renew("web-01", 2)
		s.Renew("web-01", 2)
		asked("within the minute", two, false)
		time.Sleep(renewEvery - time.Since(began) - time.Millisecond)
		asked("just before its end", two, false)
		time.Sleep(2 * time.Millisecond)
		asked("at its end", two, true)

		three := connect(3)
		s.Renew("web-01", 3)
		asked("in the next minute", three, false)
		three.Close(0, "")
		four := connect(4)
		time.Sleep(2 * renewEvery)
		asked("after it came by itself", four, false)
		s.Renew("web-01", 4)
		asked("much later", four, true)
	})
}

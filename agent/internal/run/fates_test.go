package run_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

func openJournal(t testing.TB, dir string, slots int) *journal.Journal {
	t.Helper()
	j, err := journal.Open(journal.Options{Dir: dir, Slots: slots, HostBoot: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// uuid7 is the id of the nth call.
func uuid7(n uint64) string {
	u := uuid.UUID{8: 0x80}
	binary.BigEndian.PutUint64(u[:8], n<<16|0x7000)
	return u.String()
}

func (f *fixture) fate(id string) protocol.ResumeState { return f.Fates([]string{id}).States[0] }

// cutAfter is a connection that's cut after a while.
func cutAfter(t *testing.T, d time.Duration) context.Context {
	ctx, cut := context.WithCancelCause(t.Context())
	time.AfterFunc(d, func() { cut(protocol.ErrCut) })
	return ctx
}

// working is a capability that works for a while, or until it's told to end.
func working(d time.Duration) execFunc {
	return func(ctx context.Context, c *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
		c.Started(4711)
		c.Latest(func() string { return "a line" })
		select {
		case <-time.After(d):
			return capability.ProcessOut{Stdout: "all of it", ExitCode: 3}, nil
		case <-ctx.Done():
			return capability.ProcessOut{Stdout: "a part", ExitCode: -1}, run.Ended(ctx, "it was killed")
		}
	}
}

func TestWhatWasCutIsResumedWithItsResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(working(20 * time.Second))
		req := f.request("one")
		req.Progress = true
		f.handle(cutAfter(t, time.Second), req)
		want := protocol.ResumeState{ID: "one", State: protocol.FateRunning, PID: 4711, AgoMS: 1000}
		if diff := cmp.Diff(want, f.fate("one")); diff != "" {
			t.Error(diff)
		}
		// One that waits is cut as well; the next one hears progress and the end.
		f.Rejoin(cutAfter(t, 2*time.Second), "one", mux.Detached(func(string) {}))
		var lines []string
		resp := f.Rejoin(t.Context(), "one", mux.Detached(func(s string) { lines = append(lines, s) }))
		if resp.Error != nil || !strings.Contains(string(resp.Result), "all of it") || len(lines) != 3 || lines[0] != "a line" {
			t.Errorf("%+v, progress %q", resp, lines)
		}
		// What was answered may not have arrived: it's there again.
		synctest.Wait()
		exit := 3
		want = protocol.ResumeState{ID: "one", State: protocol.FateDone, PID: 4711, AgoMS: 20_000, Ended: true, ExitCode: &exit}
		if diff := cmp.Diff(want, f.fate("one")); diff != "" {
			t.Error(diff)
		}
		for range 2 {
			if again := f.Rejoin(t.Context(), "one", mux.Detached(nil)); again != resp {
				t.Errorf("another response: %+v", again)
			}
		}
		wantError(t, f.handle(t.Context(), f.request("one")), protocol.CodeConflict, protocol.ReasonDuplicate)
	})
}

func TestAResumedCallIsCancelledOverTheNewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(working(time.Hour))
		f.handle(cutAfter(t, time.Second), f.request("one"))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(&mux.CancelError{Reason: "the PAT was revoked"}) })
		resp := f.Rejoin(ctx, "one", mux.Detached(nil))
		wantError(t, resp, protocol.CodeCancelled, "")
		if !strings.Contains(resp.Error.Message, "the PAT was revoked") || !strings.Contains(string(resp.Result), "a part") {
			t.Errorf("%+v", resp)
		}
	})
}

func TestARemovedAgentsResumedCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(working(time.Hour))
		f.handle(cutAfter(t, time.Second), f.request("one"))
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() {
			cancel(fmt.Errorf("%w: %w", protocol.ErrCut, &protocol.CloseError{Code: protocol.CloseRemoved}))
		})
		wantError(t, f.Rejoin(ctx, "one", mux.Detached(nil)), protocol.CodeCancelled, "")
	})
}

func TestAResumedCallThatDoesNotEndIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
			<-free
			return capability.ProcessOut{Stdout: "late"}, nil
		})
		f.handle(cutAfter(t, time.Second), f.request("one"))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(&mux.CancelError{})
		wantError(t, f.Rejoin(ctx, "one", mux.Detached(nil)), protocol.CodeOutcomeUnknown, "")
		if st := f.fate("one"); st.State != protocol.FateRunning {
			t.Errorf("%+v", st)
		}
		close(free)
		synctest.Wait()
		if resp := f.Rejoin(t.Context(), "one", mux.Detached(nil)); resp.Error != nil || !strings.Contains(string(resp.Result), "late") {
			t.Errorf("what became of it after all: %+v", resp)
		}
	})
}

// A refusal that the server didn't get is resumed as well: it's the call's outcome.
func TestARefusalIsKept(t *testing.T) {
	f := newFixture(working(0))
	bad := f.request("one")
	bad.Args = jsontext.Value(`{"Command":"true"}`)
	f.handle(t.Context(), f.seal(bad))
	if st := f.fate("one"); st.State != protocol.FateDone {
		t.Errorf("%+v", st)
	}
	wantError(t, f.Rejoin(t.Context(), "one", mux.Detached(nil)), protocol.CodeBadArgs, "")
}

// The agent's process ends without a word in the middle of a call, and another begins on
// the same folder.
func TestAfterARestartOfTheAgent(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("nothing tells here whether a journal is the newest, so each process has a boot of its own")
	}
	dir := t.TempDir()
	free := make(chan struct{})
	defer close(free)
	started := make(chan struct{})
	f := newFixtureOn(openJournal(t, dir, 0), func(_ context.Context, c *run.Call, in capability.ShellExecIn) (capability.ProcessOut, error) {
		if in.Command == "hang" {
			c.Started(4711)
			close(started)
			<-free
		}
		return capability.ProcessOut{ExitCode: 7, PID: 12}, nil
	})
	ended, hanging, late, never := uuid7(1), uuid7(2), uuid7(3), uuid7(4)
	f.handle(t.Context(), f.request(ended))
	hang := f.request(hanging)
	hang.Args = jsontext.Value(`{"command":"hang"}`)
	ctx, cut := context.WithCancelCause(t.Context())
	go f.handle(ctx, f.seal(hang))
	<-started
	cut(protocol.ErrCut)

	j := openJournal(t, dir, 0)
	for _, id := range j.Open() {
		if err := j.Lose(id, 2); err != nil {
			t.Fatal(err)
		}
	}
	ran := 0
	g := newFixtureOn(j, count(&ran))
	if g.Boot() != f.Boot() || len(g.Boot()) > protocol.MaxName {
		t.Errorf("boot %s, then %s", f.Boot(), g.Boot())
	}
	states := g.Fates([]string{ended, hanging, late}).States
	for i := range states {
		states[i].AgoMS = 0
		states[i].Note, _, _ = strings.Cut(states[i].Note, " 20") // the time
	}
	exit := 7
	want := []protocol.ResumeState{
		{ID: ended, State: protocol.FateLost, Ended: true, ExitCode: &exit, Note: "it ended"},
		{ID: hanging, State: protocol.FateLost, PID: 4711, Note: "the agent was restarted while it ran; 2 processes of it were found and ended"},
		{ID: late, State: protocol.FateUnseen},
	}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Error(diff)
	}
	// Whatever comes now doesn't run a second time, or at all when it was said not to.
	for _, id := range []string{ended, hanging, late} {
		wantError(t, g.handle(t.Context(), g.request(id)), protocol.CodeConflict, protocol.ReasonDuplicate)
	}
	wantError(t, g.Rejoin(t.Context(), hanging, mux.Detached(nil)), protocol.CodeOutcomeUnknown, "")
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
	if resp := g.handle(t.Context(), g.request(never)); resp.Error != nil || ran != 1 {
		t.Errorf("%v, ran %d times", resp.Error, ran)
	}
}

// A call that stays open in a journal that was opened is another process's, of which nothing
// is claimed; it isn't run here.
func TestAnOpenCallOfAnotherProcess(t *testing.T) {
	was := openJournal(t, t.TempDir(), 8)
	const id = "open"
	if err := was.Start(journal.IDOf(id), "shell_exec", false); err != nil {
		t.Fatal(err)
	}
	ran := 0
	f := newFixtureOn(was, count(&ran))
	if st := f.fate(id); st.State != protocol.FateLost || st.Ended || !strings.Contains(st.Note, "copy") {
		t.Errorf("%+v", st)
	}
	wantError(t, f.handle(t.Context(), f.request(id)), protocol.CodeConflict, protocol.ReasonDuplicate)
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
}

// After a restart of the host nothing can be running, and the name is another.
func TestAfterARestartOfTheHost(t *testing.T) {
	dir, id := t.TempDir(), uuid7(1)
	was := openJournal(t, dir, 8)
	if err := was.Start(journal.IDOf(id), "shell_exec", true); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(journal.Options{Dir: dir, Slots: 8, HostBoot: "another boot"})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	f := newFixtureOn(j, working(0))
	if st := f.fate(id); st.State != protocol.FateLost || !st.Ended || st.Note != "the host was restarted while it ran" || f.Boot() == was.Boot() {
		t.Errorf("%+v under %s", st, f.Boot())
	}
}

func TestWhatTheJournalHasForgottenIsNeverUnseen(t *testing.T) {
	dir := t.TempDir()
	ran := 0
	f := newFixtureOn(openJournal(t, dir, 4), count(&ran))
	for n := range uint64(10) {
		f.handle(t.Context(), f.request(uuid7(n+1)))
	}
	g := newFixtureOn(openJournal(t, dir, 4), count(&ran))
	for n := range uint64(11) {
		st := g.fate(uuid7(n + 1))
		want := protocol.FateLost
		if n == 10 {
			want = protocol.FateUnseen
		}
		if st.State != want || st.Ended != (n >= 6 && n < 10) || (st.Note == "") != (n == 10) {
			t.Errorf("call %d: %+v", n+1, st)
		}
	}
}

func TestTheJournalIsWrittenBeforeTheCallStarts(t *testing.T) {
	dir, id := t.TempDir(), uuid7(1)
	// seen opens a copy of the journal as it is on the disk now.
	seen := func() journal.Entry {
		b, err := os.ReadFile(filepath.Join(dir, "calls.journal"))
		if err != nil {
			t.Fatal(err)
		}
		other := t.TempDir()
		if err := os.WriteFile(filepath.Join(other, "calls.journal"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		e, _ := openJournal(t, other, 8).Find(journal.IDOf(id))
		return e
	}
	var during, started journal.Entry
	f := newFixtureOn(openJournal(t, dir, 8), func(_ context.Context, c *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
		during = seen()
		c.Started(4711)
		started = seen()
		return capability.ProcessOut{}, nil
	})
	f.handle(t.Context(), f.request(id))
	if during.State != journal.Started || during.Tool != "shell_exec" || started.PID != 4711 {
		t.Errorf("while it ran the journal had %+v, then %+v", during, started)
	}
	if e := seen(); e.State != journal.Ended || e.Exit == nil {
		t.Errorf("when it was answered the journal had %+v", e)
	}
}

func TestWithoutAJournalEntryNothingStarts(t *testing.T) {
	j := openJournal(t, t.TempDir(), 8)
	ran := 0
	f := newFixtureOn(j, count(&ran))
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range run.MaxCalls + 1 { // it holds no slot either
		wantError(t, f.handle(t.Context(), f.request(fmt.Sprint(i))), protocol.CodeNotStarted, "journal")
	}
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
}

// whenWritten is a connection that is cut as soon as a call is in the journal.
type whenWritten struct {
	context.Context
	j  *journal.Journal
	id string
}

func (w whenWritten) Value(any) any { return nil }

func (w whenWritten) Err() error {
	if _, ok := w.j.Find(journal.IDOf(w.id)); ok {
		return protocol.ErrCut
	}
	return nil
}

func TestWhatIsStoppedBetweenJournalAndStartNeverBegan(t *testing.T) {
	dir, id := t.TempDir(), uuid7(1)
	j := openJournal(t, dir, 8)
	ran := 0
	f := newFixtureOn(j, count(&ran))
	f.handle(whenWritten{context.Background(), j, id}, f.request(id))
	wantError(t, f.Rejoin(t.Context(), id, mux.Detached(nil)), protocol.CodeNotStarted, "")
	// Nothing of it is left running when the agent is restarted, and it's still no lost call.
	j = openJournal(t, dir, 8)
	g := newFixtureOn(j, count(&ran))
	if st := g.fate(id); st.State != protocol.FateUnseen || len(j.Open()) != 0 {
		t.Errorf("%+v, open %v", st, j.Open())
	}
	wantError(t, g.handle(t.Context(), g.request(id)), protocol.CodeConflict, protocol.ReasonDuplicate)
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
}

// A question and its request come at the same time, over two connections: what was said to
// be unseen doesn't run.
func TestUnseenIsKeptAlsoInARace(t *testing.T) {
	var ran atomic.Int64
	f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
		ran.Add(1)
		return capability.ProcessOut{}, nil
	})
	unseen := 0
	const rounds = 2000
	for n := range uint64(rounds) {
		id := uuid7(n + 1)
		req := f.request(id)
		var st protocol.ResumeState
		var resp *protocol.Response
		before := ran.Load()
		var wg sync.WaitGroup
		both := []func(){func() { resp = f.handle(t.Context(), req) }, func() { st = f.fate(id) }}
		wg.Go(both[n%2]) // who is last tends to be first
		wg.Go(both[1-n%2])
		wg.Wait()
		began := ran.Load() != before
		switch st.State {
		case protocol.FateUnseen:
			unseen++
			if began || resp.Error == nil {
				t.Fatalf("call %d was unseen and ran", n)
			}
		case protocol.FateRunning, protocol.FateDone:
			if got := f.Rejoin(t.Context(), id, mux.Detached(nil)); !began || got.Error != nil {
				t.Fatalf("call %d: %s, but ran: %v, %v", n, st.State, began, got.Error)
			}
		default:
			t.Fatalf("call %d: %+v", n, st)
		}
	}
	if t.Logf("%d of %d were unseen", unseen, rounds); unseen == 0 || unseen == rounds {
		t.Error("one of the two was always first: this proves too little")
	}
}

// What was said to be unseen is remembered in bounded space: what had to be forgotten bars
// all that is as old.
func TestUnseenIsNeverForgotten(t *testing.T) {
	ran := 0
	f := newFixture(count(&ran))
	first := uuid7(1)
	if st := f.fate(first); st.State != protocol.FateUnseen {
		t.Fatalf("%+v", st)
	}
	boot := f.Boot()
	ids := make([]string, 101_000)
	for i := range ids {
		ids[i] = uuid7(uint64(i) + 2)
	}
	f.Fates(ids)
	for _, id := range []string{first, ids[0], ids[len(ids)-1]} {
		if resp := f.handle(t.Context(), f.request(id)); resp.Error == nil {
			t.Errorf("%s ran", id)
		}
	}
	wantError(t, f.handle(t.Context(), f.request(first)), protocol.CodeNotStarted, "journal")
	if resp := f.handle(t.Context(), f.request(uuid7(200_000))); resp.Error != nil || ran != 1 || f.Boot() != boot {
		t.Errorf("a new call: %v, ran %d", resp.Error, ran)
	}
}

func TestKeptResultsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		big := strings.Repeat("x", 6<<20)
		f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
			return capability.ProcessOut{Stdout: big, ExitCode: 5}, nil
		})
		for n := range uint64(8) {
			f.handle(t.Context(), f.request(uuid7(n+1)))
		}
		for n := range uint64(8) {
			st, resp := f.fate(uuid7(n+1)), f.Rejoin(t.Context(), uuid7(n+1), mux.Detached(nil))
			if !st.Ended || st.ExitCode == nil || *st.ExitCode != 5 {
				t.Errorf("call %d: %+v", n, st)
			}
			if n < 3 { // 5 x 6 MiB are kept of 32 MiB
				if st.State != protocol.FateLost || !strings.Contains(st.Note, "it ended") || resp.Error == nil || resp.Error.Code != protocol.CodeOutcomeUnknown {
					t.Errorf("call %d: %+v, %v", n, st, resp.Error)
				}
			} else if st.State != protocol.FateDone || len(resp.Result) < len(big) {
				t.Errorf("call %d: %+v, %d bytes", n, st, len(resp.Result))
			}
		}
		time.Sleep(59 * time.Minute)
		if st := f.fate(uuid7(8)); st.State != protocol.FateDone {
			t.Errorf("after 59 minutes: %+v", st)
		}
		time.Sleep(2 * time.Minute)
		if st := f.fate(uuid7(8)); st.State != protocol.FateLost || !st.Ended {
			t.Errorf("after 61 minutes: %+v", st)
		}
	})
}

// What is kept for one credential isn't lost to another one's flood.
func TestAFloodOfResultsLeavesOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		big := strings.Repeat("x", 6<<20)
		f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
			return capability.ProcessOut{Stdout: big}, nil
		})
		for n := range uint64(12) {
			r := f.request(uuid7(n + 1))
			if n < 2 {
				r.Caller.Principal = "pat:2"
			}
			f.handle(t.Context(), r)
		}
		for n := range uint64(12) {
			want := protocol.FateDone
			if n >= 2 && n < 9 { // 5 x 6 MiB are kept of 32 MiB
				want = protocol.FateLost
			}
			if st := f.fate(uuid7(n + 1)); st.State != want {
				t.Errorf("call %d: %s, want %s", n, st.State, want)
			}
		}
	})
}

// slow is a connection's context that takes its time when it's asked after a call's arrival
// for the first time: a busy host.
type slow struct {
	context.Context
	d    time.Duration
	once *sync.Once
}

func (s slow) Err() error {
	s.once.Do(func() { time.Sleep(s.d) })
	return s.Context.Err()
}

func TestNotAfterIsKeptByTheTimeOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ran := 0
		f := newFixture(count(&ran))
		for i, c := range []struct {
			took     time.Duration
			notAfter int64
			code     protocol.Code
		}{
			// The host's own clock counts, too, and this one may be busy: some seconds are left to it.
			{0, 5000, ""},
			{99 * time.Millisecond, 5100, ""},
			{100 * time.Millisecond, 100, protocol.CodeExpired},
			{time.Hour, 1, protocol.CodeExpired},
			{time.Hour, 1 << 62, protocol.CodeTimedOut},
			{time.Second, 0, ""},
		} {
			ran = 0
			reg := &run.Registry{}
			run.Bind(reg, capability.ShellExec, count(&ran))
			r := run.New(reg, f.id, nil, slog.New(slog.DiscardHandler))
			req := f.request(fmt.Sprint(i))
			req.NotAfterMS = c.notAfter
			resp := r.Handle(slow{t.Context(), c.took, new(sync.Once)}, req, mux.Detached(nil))
			if c.code == "" {
				if resp.Error != nil || ran != 1 {
					t.Errorf("case %d: %v, ran %d times", i, resp.Error, ran)
				}
				continue
			}
			wantError(t, resp, c.code, "")
			if ran != 0 {
				t.Errorf("case %d: ran %d times", i, ran)
			}
		}
	})
}

func TestShutdownWritesTheJournalAndKeepsTheAnswers(t *testing.T) {
	dir := t.TempDir()
	started := make(chan struct{})
	f := newFixtureOn(openJournal(t, dir, 8), func(ctx context.Context, c *run.Call, in capability.ShellExecIn) (capability.ProcessOut, error) {
		close(started)
		return working(time.Hour)(ctx, c, in)
	})
	answer := make(chan *protocol.Response, 1)
	go func() { answer <- f.handle(t.Context(), f.request("one")) }()
	<-started
	f.Shutdown(t.Context())
	wantError(t, <-answer, protocol.CodeCancelled, protocol.ReasonAgentStops)
	if e, _ := openJournal(t, dir, 8).Find(journal.IDOf("one")); e.State != journal.Ended {
		t.Errorf("%+v", e)
	}
}

// A call that passes a file can't go on over another connection: it ends with its own,
// whether it opens its stream before the cut or after.
func TestAStreamingCallEndsWithItsConnection(t *testing.T) {
	for name, open := range map[string]func(context.Context, *run.Call) error{
		"in":  func(ctx context.Context, c *run.Call) error { _, _, err := c.In(ctx); return err },
		"out": func(_ context.Context, c *run.Call) error { _, err := c.Out(-1); return err },
	} {
		for _, wait := range []time.Duration{0, 5 * time.Second} {
			t.Run(fmt.Sprint(name, wait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFixture(func(ctx context.Context, c *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
						time.Sleep(wait)
						if err := open(ctx, c); err != nil {
							return capability.ProcessOut{}, err
						}
						select {
						case <-ctx.Done():
							return capability.ProcessOut{ExitCode: -1}, run.Ended(ctx, "nothing was written")
						case <-time.After(30 * time.Second):
							return capability.ProcessOut{}, nil
						}
					})
					began := time.Now()
					f.Handle(cutAfter(t, time.Second), f.request("one"), mux.DetachedStreams(nil, strings.NewReader("x"), 1, io.Discard))
					resp := f.Rejoin(t.Context(), "one", mux.Detached(nil))
					wantError(t, resp, protocol.CodeCancelled, "")
					if d := time.Since(began); d != max(wait, time.Second) || !strings.Contains(resp.Error.Message, "cut; nothing was written") {
						t.Errorf("after %v: %v", d, resp.Error)
					}
				})
			})
		}
	}
}

// The response of a call that sent a file says, when it's asked for again, that the file
// was lost; of one that took a file, that it's there.
func TestAResumedResponseSaysWhatBecameOfTheFile(t *testing.T) {
	for out, code := range map[bool]protocol.Code{true: protocol.CodeCancelled, false: ""} {
		f := newFixture(func(ctx context.Context, c *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
			if !out {
				_, _, err := c.In(ctx)
				return capability.ProcessOut{Stdout: "done"}, err
			}
			up, err := c.Out(0)
			if err != nil {
				return capability.ProcessOut{}, err
			}
			return capability.ProcessOut{Stdout: "done"}, up.Close()
		})
		first := f.Handle(t.Context(), f.request("one"), mux.DetachedStreams(nil, strings.NewReader(""), 0, io.Discard))
		again := f.Rejoin(t.Context(), "one", mux.Detached(nil))
		if first.Error != nil || string(again.Result) != string(first.Result) {
			t.Errorf("out %v: %v, then %s", out, first.Error, again.Result)
		}
		if code == "" && again.Error != nil {
			t.Errorf("a file that was taken: %v", again.Error)
		} else if code != "" {
			wantError(t, again, code, "")
		}
	}
}

func TestACallWithoutAConnectionHasNoStreams(t *testing.T) {
	c := &run.Call{ID: "one"}
	c.Started(1)
	if _, _, err := c.In(t.Context()); err == nil {
		t.Error("it has one in")
	}
	if _, err := c.Out(1); err == nil {
		t.Error("it has one out")
	}
}

func BenchmarkCall(b *testing.B) {
	f := newFixtureOn(openJournal(b, b.TempDir(), 0), func(_ context.Context, c *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
		c.Started(1)
		return capability.ProcessOut{}, nil
	})
	b.ReportAllocs()
	for n := range uint64(b.N) {
		if resp := f.handle(b.Context(), f.request(uuid7(n+1))); resp.Error != nil {
			b.Fatal(errors.New(resp.Error.Message))
		}
	}
}

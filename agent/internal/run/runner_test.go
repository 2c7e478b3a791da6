package run_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/agent/internal/journal"
	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
)

// fixture is a runner with one capability, shell_exec, that does what the test says.
type fixture struct {
	*run.Runner
	id run.Identity
}

type execFunc func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error)

func newFixture(fn execFunc) *fixture { return newFixtureOn(nil, fn) }

func newFixtureOn(j *journal.Journal, fn execFunc) *fixture {
	reg := &run.Registry{}
	run.Bind(reg, capability.ShellExec, fn)
	id := run.Identity{Fingerprint: protocol.Fingerprint(ed25519.NewKeyFromSeed(make([]byte, 32)).Public().(ed25519.PublicKey)), Generation: 3}
	return &fixture{run.New(reg, id, j, slog.New(slog.DiscardHandler)), id}
}

func (f *fixture) request(id string) *protocol.Request {
	r := &protocol.Request{Type: protocol.TypeRequest, ID: id, Tool: "shell_exec", Args: jsontext.Value(`{"command":"true"}`), DeadlineMS: 60_000,
		Caller: protocol.Caller{Principal: "pat:1", User: "ann", Kind: "pat"}}
	return f.seal(r)
}

func (f *fixture) seal(r *protocol.Request) *protocol.Request {
	r.Seal = protocol.B64(protocol.Seal(f.id.Fingerprint, f.id.Generation, r.ID, r.Tool, r.Args))
	return r
}

func (f *fixture) handle(ctx context.Context, r *protocol.Request) *protocol.Response {
	return f.Handle(ctx, r, mux.Detached(func(string) {}))
}

func wantError(t *testing.T, resp *protocol.Response, code protocol.Code, reason string) {
	t.Helper()
	if resp.Error == nil || resp.Error.Code != code || resp.Error.Reason != reason {
		t.Errorf("got error %v, want %s (%s)", resp.Error, code, reason)
	}
}

// count is a capability that counts how often it ran.
func count(n *int) execFunc {
	return func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
		*n++
		return capability.ProcessOut{Stdout: "ran"}, nil
	}
}

func TestARequestSealedForAnotherIsRefusedAndNothingRuns(t *testing.T) {
	ran := 0
	f := newFixture(count(&ran))
	other := protocol.Fingerprint(ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", 32))).Public().(ed25519.PublicKey))
	for name, spoil := range map[string]func(r *protocol.Request){
		"other agent's key": func(r *protocol.Request) {
			r.Seal = protocol.B64(protocol.Seal(other, 3, r.ID, r.Tool, r.Args))
		},
		"older generation": func(r *protocol.Request) {
			r.Seal = protocol.B64(protocol.Seal(f.id.Fingerprint, 2, r.ID, r.Tool, r.Args))
		},
		"other id":      func(r *protocol.Request) { r.ID += "x" },
		"other tool":    func(r *protocol.Request) { r.Tool = "fs_read" },
		"other args":    func(r *protocol.Request) { r.Args = jsontext.Value(`{"command":"false"}`) },
		"respelled":     func(r *protocol.Request) { r.Args = jsontext.Value(`{ "command":"true"}`) },
		"no seal":       func(r *protocol.Request) { r.Seal = "" },
		"cut seal":      func(r *protocol.Request) { r.Seal = r.Seal[:42] },
		"padded seal":   func(r *protocol.Request) { r.Seal += "=" },
		"zeros as seal": func(r *protocol.Request) { r.Seal = protocol.B64(make([]byte, 32)) },
	} {
		r := f.request("call-" + name)
		spoil(r)
		resp := f.handle(t.Context(), r)
		wantError(t, resp, protocol.CodeDenied, protocol.ReasonSeal)
		if resp.TookUS <= 0 || resp.Result != nil {
			t.Errorf("%s: took_us %d, result %s", name, resp.TookUS, resp.Result)
		}
	}
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
	// A refused seal doesn't use up the id that it named.
	if resp := f.handle(t.Context(), f.request("call-older generation")); resp.Error != nil || ran != 1 {
		t.Errorf("properly sealed: %v, ran %d times", resp.Error, ran)
	}
}

func TestACallIDRunsOnceHoweverOftenItComes(t *testing.T) {
	var mu sync.Mutex
	ran := 0
	f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
		mu.Lock()
		defer mu.Unlock()
		ran++
		return capability.ProcessOut{}, nil
	})
	var wg sync.WaitGroup
	refused := make(chan *protocol.Error, 20)
	for range 20 {
		wg.Go(func() { refused <- f.handle(t.Context(), f.request("one")).Error })
	}
	wg.Wait()
	close(refused)
	n := 0
	for err := range refused {
		if err != nil && err.Reason == protocol.ReasonDuplicate {
			n++
		}
	}
	if ran != 1 || n != 19 {
		t.Errorf("ran %d times, %d refused", ran, n)
	}
	// What was refused for its arguments has used up its id too.
	bad := f.request("two")
	bad.Args = jsontext.Value(`{"Command":"true"}`)
	wantError(t, f.handle(t.Context(), f.seal(bad)), protocol.CodeBadArgs, "")
	wantError(t, f.handle(t.Context(), f.request("two")), protocol.CodeConflict, protocol.ReasonDuplicate)
}

func TestIDsStayKnownThroughManyCalls(t *testing.T) {
	ran := 0
	f := newFixture(count(&ran))
	f.handle(t.Context(), f.request("first"))
	r := f.request("")
	r.Args = jsontext.Value(`{}`)
	for i := range 50_000 {
		r.ID = fmt.Sprint("call ", i)
		r.ToolVersion = 1 // refused cheaply
		f.handle(t.Context(), f.seal(r))
	}
	wantError(t, f.handle(t.Context(), f.request("first")), protocol.CodeConflict, protocol.ReasonDuplicate)
	if ran != 1 {
		t.Errorf("ran %d times", ran)
	}
}

func TestReservedMembersAndUnknownToolsAreUnsupported(t *testing.T) {
	ran := 0
	f := newFixture(count(&ran))
	for name, set := range map[string]func(r *protocol.Request){
		"approval":          func(r *protocol.Request) { r.Approval = &protocol.Approval{} },
		"approval_required": func(r *protocol.Request) { r.ApprovalRequired = &protocol.ApprovalRequired{} },
		"tool_version":      func(r *protocol.Request) { r.ToolVersion = 1 },
		"fs_read":           func(r *protocol.Request) { r.Tool = "fs_read" },
	} {
		r := f.request(name)
		set(r)
		resp := f.handle(t.Context(), f.seal(r))
		wantError(t, resp, protocol.CodeUnsupported, "")
		if !strings.Contains(resp.Error.Message, name) {
			t.Errorf("%s: not named: %s", name, resp.Error.Message)
		}
	}
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
}

func TestDeadlineEndsACallAndKeepsItsOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(func(ctx context.Context, _ *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
			<-ctx.Done()
			return capability.ProcessOut{Stdout: "part"}, run.Ended(ctx, "it was killed")
		})
		r := f.request("slow")
		r.DeadlineMS = 1500
		began := time.Now()
		resp := f.handle(t.Context(), r)
		wantError(t, resp, protocol.CodeTimedOut, "")
		if !strings.Contains(string(resp.Result), `"part"`) {
			t.Errorf("result %s", resp.Result)
		}
		if d := time.Since(began); d != 1500*time.Millisecond {
			t.Errorf("took %v", d)
		}
	})
}

func TestCancelIsAnsweredOnlyWhenTheWorkIsDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(func(ctx context.Context, _ *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
			<-ctx.Done()
			time.Sleep(3 * time.Second) // the tree takes that long to die
			return capability.ProcessOut{Stdout: "part"}, run.Ended(ctx, "it was killed")
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(&mux.CancelError{Reason: "the PAT was revoked"}) })
		began := time.Now()
		resp := f.handle(ctx, f.request("one"))
		wantError(t, resp, protocol.CodeCancelled, "")
		if d := time.Since(began); d != 4*time.Second || !strings.Contains(resp.Error.Message, "the PAT was revoked") {
			t.Errorf("after %v: %v", d, resp.Error)
		}
	})
}

func TestACapabilityThatDoesNotEndIsReportedAsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
			<-free
			return capability.ProcessOut{}, nil
		})
		r := f.request("stuck")
		r.DeadlineMS = 1000
		began := time.Now()
		wantError(t, f.handle(t.Context(), r), protocol.CodeOutcomeUnknown, "")
		if d := time.Since(began); d > time.Second+protocol.CancelGrace {
			t.Errorf("answered after %v, when the server has given up", d)
		}
		close(free)
	})
}

func TestACutConnectionDoesNotEndTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		free := make(chan struct{})
		f := newFixture(func(ctx context.Context, _ *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
			select {
			case <-free:
			case <-ctx.Done():
			}
			ended <- ctx.Err()
			return capability.ProcessOut{}, nil
		})
		ctx, cut := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cut(protocol.ErrCut) })
		began := time.Now()
		f.handle(ctx, f.request("one"))
		if d := time.Since(began); d != time.Second {
			t.Errorf("held the dead connection for %v", d)
		}
		if diff := cmp.Diff([]protocol.ResumeState{{ID: "one", State: "running", AgoMS: 1000}, {ID: "two", State: "unseen"}}, f.Fates([]string{"one", "two"}).States); diff != "" {
			t.Error(diff)
		}
		time.Sleep(30 * time.Second)
		close(free)
		if err := <-ended; err != nil {
			t.Errorf("the work was ended: %v", err)
		}
		synctest.Wait()
		after := f.Fates([]string{"one"})
		exit := 0
		if diff := cmp.Diff([]protocol.ResumeState{{ID: "one", State: "done", AgoMS: 31_000, Ended: true, ExitCode: &exit}}, after.States); diff != "" || after.Boot != f.Boot() {
			t.Error(diff, after.Boot)
		}
		// What the server was told is unseen never starts, however late it comes.
		wantError(t, f.handle(t.Context(), f.request("two")), protocol.CodeConflict, protocol.ReasonDuplicate)
	})
}

func TestBusyWhenAllSlotsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := make(chan struct{})
		f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
			<-free
			return capability.ProcessOut{}, nil
		})
		var wg sync.WaitGroup
		for i := range run.MaxCalls {
			wg.Go(func() {
				if resp := f.handle(t.Context(), f.request(fmt.Sprint(i))); resp.Error != nil {
					t.Errorf("call %d: %v", i, resp.Error)
				}
			})
		}
		synctest.Wait()
		wantError(t, f.handle(t.Context(), f.request("one more")), protocol.CodeRateLimited, protocol.ReasonBusy)
		close(free)
		wg.Wait()
		if resp := f.handle(t.Context(), f.request("later")); resp.Error != nil {
			t.Error(resp.Error)
		}
	})
}

func TestAPanicFailsItsCallAlone(t *testing.T) {
	f := newFixture(func(_ context.Context, _ *run.Call, in capability.ShellExecIn) (capability.ProcessOut, error) {
		if in.Command == "panic" {
			panic("secret detail")
		}
		return capability.ProcessOut{}, errors.New("secret detail")
	})
	for command, code := range map[string]protocol.Code{"panic": protocol.CodeOutcomeUnknown, "fail": protocol.CodeInternal} {
		r := f.request(command)
		r.Args = jsontext.Value(`{"command":"` + command + `"}`)
		resp := f.handle(t.Context(), f.seal(r))
		wantError(t, resp, code, "")
		if strings.Contains(resp.Error.Message, "secret") {
			t.Errorf("tells its inside: %s", resp.Error.Message)
		}
	}
}

// A result says that something ran; an error that nothing did. Both together can't be true.
func TestNoAnswerContradictsItself(t *testing.T) {
	for code, want := range map[protocol.Code]protocol.Code{
		protocol.CodeNotStarted: protocol.CodeOutcomeUnknown, protocol.CodeExpired: protocol.CodeOutcomeUnknown, protocol.CodeDenied: protocol.CodeOutcomeUnknown,
		protocol.CodeUnsupported: protocol.CodeOutcomeUnknown, protocol.CodeRateLimited: protocol.CodeOutcomeUnknown, protocol.CodeBadArgs: protocol.CodeOutcomeUnknown,
		protocol.CodeToolFailed: protocol.CodeToolFailed, protocol.CodeCancelled: protocol.CodeCancelled,
	} {
		for _, out := range []capability.ProcessOut{{}, {Stdout: "a result"}} {
			f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
				return out, protocol.Errorf(code, "x")
			})
			resp := f.handle(t.Context(), f.request("one"))
			expected := code
			if out.Stdout != "" {
				expected = want
			}
			if wantError(t, resp, expected, ""); (resp.Result != nil) != (out.Stdout != "") {
				t.Errorf("%s: result %s", code, resp.Result)
			}
		}
	}
}

func TestAResultThatDoesNotFitIsTooLarge(t *testing.T) {
	f := newFixture(func(context.Context, *run.Call, capability.ShellExecIn) (capability.ProcessOut, error) {
		return capability.ProcessOut{Stdout: strings.Repeat("x", protocol.MaxFrame)}, nil
	})
	resp := f.handle(t.Context(), f.request("one"))
	wantError(t, resp, protocol.CodeTooLarge, "")
	if resp.Result != nil {
		t.Errorf("result of %d bytes", len(resp.Result))
	}
}

func TestProgressTellsTheLatestLineEveryFewSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(func(ctx context.Context, c *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
			n := 0
			c.Latest(func() string {
				n++
				return fmt.Sprintf("\x1b[2Jline %d\x1b]0;title\a\r%s", n, strings.Repeat("é", 400))
			})
			time.Sleep(12 * time.Second)
			return capability.ProcessOut{}, nil
		})
		var got []string
		r := f.request("one")
		f.Handle(t.Context(), r, mux.Detached(func(m string) { got = append(got, m) }))
		if len(got) != 0 {
			t.Errorf("unasked: %q", got)
		}
		r = f.request("two")
		r.Progress = true
		f.Handle(t.Context(), r, mux.Detached(func(m string) { got = append(got, m) }))
		if len(got) != 2 || !strings.HasPrefix(got[1], "line 2 é") || len(got[1]) > 512 || strings.ContainsAny(got[1], "\x1b\r\a") {
			t.Errorf("got %q", got)
		}
	})
}

// TestAPanicOverTheLatestLine costs the line, and neither the call nor the agent.
func TestAPanicOverTheLatestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(func(_ context.Context, c *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
			c.Latest(func() string { panic("no line") })
			time.Sleep(12 * time.Second)
			return capability.ProcessOut{Stdout: "done"}, nil
		})
		var got []string
		r := f.request("one")
		r.Progress = true
		if resp := f.Handle(t.Context(), r, mux.Detached(func(m string) { got = append(got, m) })); resp.Error != nil || len(got) != 2 || got[0] != "" {
			t.Errorf("%+v, progress %q", resp, got)
		}
	})
}

func TestShutdownEndsCallsAndRefusesNewOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(func(ctx context.Context, _ *run.Call, _ capability.ShellExecIn) (capability.ProcessOut, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return capability.ProcessOut{}, run.Ended(ctx, "it was killed")
		})
		answer := make(chan *protocol.Response, 1)
		go func() { answer <- f.handle(t.Context(), f.request("one")) }()
		synctest.Wait()
		if n := f.Shutdown(t.Context()); n != 1 {
			t.Errorf("ended %d calls", n)
		}
		wantError(t, <-answer, protocol.CodeCancelled, protocol.ReasonAgentStops)
		wantError(t, f.handle(t.Context(), f.request("two")), protocol.CodeNotStarted, "")
	})
}

func TestWhatWasCancelledOrCutBeforeItsStartDoesNotStart(t *testing.T) {
	ran := 0
	f := newFixture(count(&ran))
	for cause, code := range map[error]protocol.Code{&mux.CancelError{}: protocol.CodeCancelled, protocol.ErrCut: protocol.CodeNotStarted} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		wantError(t, f.handle(ctx, f.request(cause.Error())), code, "")
	}
	if ran != 0 {
		t.Errorf("ran %d times", ran)
	}
}

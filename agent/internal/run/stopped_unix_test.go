//go:build linux || darwin

package run_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol/mux"
)

// TestAStoppedAgentStartsNothingLate: what came for an agent while it was stopped has waited
// there, and isn't started when its time to start has passed by then.
func TestAStoppedAgentStartsNothingLate(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	x := exec.Command(self, "-test.run=^TestAgentOfRequests$")
	x.Env = append(os.Environ(), "TEST_AGENT_OF_REQUESTS=1")
	in, err := x.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := x.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = x.Wait() }()
	answers := bufio.NewScanner(out)
	ask := func(notAfter time.Duration) { fmt.Fprintln(in, notAfter.Milliseconds()) }
	want := func(what, answer string) {
		t.Helper()
		if !answers.Scan() || answers.Text() != answer {
			t.Errorf("%s: %q, want %q", what, answers.Text(), answer)
		}
	}
	for range 3 {
		ask(time.Minute)
		want("awake", "ran")
		if err := x.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		var status syscall.WaitStatus // the signal takes effect a moment later
		if _, err := syscall.Wait4(x.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatal(status, err)
		}
		ask(2 * time.Second)
		ask(time.Minute)
		<-time.After(3 * time.Second) // the request's time passes
		if err := x.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		want("late", "expired")
		want("in time", "ran")
	}
}

// TestAgentOfRequests is TestAStoppedAgentStartsNothingLate's agent: it reads not_after of a
// request a line, and says what became of it.
func TestAgentOfRequests(t *testing.T) {
	if os.Getenv("TEST_AGENT_OF_REQUESTS") == "" {
		return
	}
	ran := 0
	f := newFixture(count(&ran))
	watched := make(chan struct{})
	go func() { defer close(watched); f.Watch(t.Context()) }()
	f.Connected()
	in := bufio.NewReader(os.Stdin)
	for i := 0; ; i++ {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			os.Exit(0) // without the word of a test that passed
		}
		req := f.request(fmt.Sprint(i))
		if _, err := fmt.Sscan(strings.TrimSpace(line), &req.NotAfterMS); err != nil {
			t.Fatal(err)
		}
		ran = 0
		switch resp := f.Handle(t.Context(), req, mux.Detached(nil)); {
		case resp.Error == nil && ran == 1:
			fmt.Println("ran")
		case resp.Error != nil && ran == 0:
			fmt.Println(resp.Error.Code)
		default:
			fmt.Println("ran", ran, "times:", resp.Error)
		}
	}
}

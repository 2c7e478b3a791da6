package harness

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/testenv"
)

const module = "github.com/drover-fleet/drover"

// patience is how long a program that was just started may take to be useful.
const patience = 60 * time.Second

// builds are the programs that this test process has built, by build tags or @commit, and the
// last port it was given. It's the one thing that tests of a package share: a build takes seconds.
type builds struct {
	mu   sync.Mutex
	dir  string
	by   map[string]Programs
	port int
}

var built builds

// Main runs a package's tests and removes what Build left. Packages that call Build have
// it as their TestMain.
func Main(m *testing.M) int {
	defer testenv.Runtime()()
	defer func() {
		if built.dir != "" {
			_ = os.RemoveAll(built.dir)
		}
	}()
	return m.Run()
}

// Programs is a folder with drover and drover-agent.
type Programs string

// Build builds both programs with these build tags ("" for none), once in a test process.
func Build(t testing.TB, tags string) Programs {
	t.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	return built.programs(t, tags, "", tags)
}

// Earlier builds both programs as they were at a commit, once in a test process. The test is
// skipped where the repository's history doesn't reach that far.
func Earlier(t testing.TB, commit string) Programs {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--show-toplevel").Output()
	top := strings.TrimSpace(string(root))
	if err == nil {
		err = exec.CommandContext(t.Context(), "git", "-C", top, "cat-file", "-e", commit+"^{commit}").Run()
	}
	testenv.Require(t, err == nil, "commit "+commit+" isn't in the repository's history: git fetch --unshallow")
	built.mu.Lock()
	defer built.mu.Unlock()
	name := "@" + commit
	if p, ok := built.by[name]; ok {
		return p
	}
	source := t.TempDir()
	archive := filepath.Join(source, "source.tar")
	for _, cmd := range [][]string{{"git", "-C", top, "archive", "-o", archive, commit}, {"tar", "-xf", archive, "-C", source}} {
		if out, err := exec.CommandContext(t.Context(), cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(cmd, " "), err, out)
		}
	}
	return built.programs(t, name, source, "")
}

// programs builds from the source in a folder ("": this one's), or finds what was built under
// that name. mu is held.
func (b *builds) programs(t testing.TB, name, source, tags string) Programs {
	t.Helper()
	if p, ok := b.by[name]; ok {
		return p
	}
	if b.dir == "" {
		dir, err := os.MkdirTemp("", "drover-built-")
		if err != nil {
			t.Fatal(err)
		}
		b.dir, b.by = dir, map[string]Programs{}
	}
	p := Programs(filepath.Join(b.dir, fmt.Sprint(len(b.by))))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-tags", tags, "-o", string(p)+string(filepath.Separator),
		module+"/server/cmd/drover", module+"/agent/cmd/drover-agent")
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	b.by[name] = p
	return p
}

// Path is where one of the programs is.
func (p Programs) Path(name string) string { return filepath.Join(string(p), name) }

// Process is a program that runs until the test ends.
type Process struct {
	Cmd *exec.Cmd
	// Gone is closed when it has ended; Err is set then.
	Gone <-chan struct{}
	Err  error
	log  string
}

// Start runs a program with env beside this process's own environment, which loses its
// DROVER_ and OTEL_ variables. It gets SIGTERM when the test ends, and what it wrote is shown if the
// test failed.
func Start(t testing.TB, env []string, program string, args ...string) *Process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	p := &Process{Cmd: cmd, Gone: gone, log: log.Name()}
	go func() {
		defer close(gone)
		p.Err = cmd.Wait()
	}()
	t.Cleanup(func() {
		<-gone
		if t.Failed() {
			t.Logf("%s wrote:\n%s", filepath.Base(program), Tail(p.Log(), 8<<10))
		}
		_ = log.Close()
	})
	return p
}

// Log is what the program has written until now.
func (p *Process) Log() []byte {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return []byte(err.Error())
	}
	return b
}

// Stop asks the program to end (SIGTERM) and waits for it.
func (p *Process) Stop() {
	_ = p.Cmd.Process.Signal(syscall.SIGTERM)
	<-p.Gone
}

// Kill ends the program at once (SIGKILL) and waits for it.
func (p *Process) Kill() {
	_ = p.Cmd.Process.Kill()
	<-p.Gone
}

// Await tries until it works, the program is gone or a minute is over.
func (p *Process) Await(t testing.TB, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-p.Gone:
			t.Fatalf("waiting for %s: the program has ended: %v", what, p.Err)
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// Environ is this process's environment without Drover's own variables and OpenTelemetry's,
// so that a developer's server, PAT and collector stay out of the tests.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "DROVER_") || strings.HasPrefix(v, "OTEL_") })
}

// Tail is the end of what a program wrote, for messages.
func Tail(b []byte, most int) []byte { return b[max(0, len(b)-most):] }

// LaunchOptions are how a Deployment is started.
type LaunchOptions struct {
	// Engine is where the store is: SQLite in a new data folder or Postgres in a new schema;
	// when empty the one of DROVER_TEST_ENGINE, else SQLite.
	Engine Engine
	// Data is the server's data folder; a new one when empty.
	Data string
	// DatabaseURL is a Postgres that the test made itself.
	DatabaseURL string
	// Flags of drover serve beside --listen and the store's.
	Flags []string
	// Env is for drover serve, beside this process's own.
	Env []string
	// Prefix is a program with arguments that execs what follows it.
	Prefix []string
}

// Deployment is a drover serve of its own: a process, as users run it.
type Deployment struct {
	Client
	Programs Programs
	// Store are the flags that name the store, for administrative commands.
	Store  []string
	Server *Process
	opts   LaunchOptions
}

// Launch starts drover serve on a free port with an empty store and makes an administrator's
// PAT. It ends with the test.
func Launch(t testing.TB, programs Programs, o LaunchOptions) *Deployment {
	t.Helper()
	d := &Deployment{Client: Client{T: t}, Programs: programs, Store: []string{"--data", cmp.Or(o.Data, t.TempDir())}, opts: o}
	if o.Engine == "" && o.DatabaseURL == "" {
		o.Engine = defaultEngine(t)
	}
	if o.Engine == Postgres && o.DatabaseURL == "" {
		o.DatabaseURL = PostgresSchema(t)
	}
	if o.DatabaseURL != "" {
		d.Store = append(d.Store, "--database-url", o.DatabaseURL)
	}
	d.Serve(FreeAddress(t))
	d.Admin = d.Run("pat", "create", "--name", "harness", "--agents", "all", "--tools", "all", "--admin")
	// A token that another process made is noticed a moment later.
	d.Server.Await(t, "the token to be accepted", func(ctx context.Context) error { return d.get(ctx, "/api/v1/agents") })
	return d
}

// Beside starts another replica on the same database: a drover serve with a data folder of
// its own and the same server key. Both need --nats-url among their flags.
func (d *Deployment) Beside() *Deployment {
	d.T.Helper()
	r := &Deployment{Client: Client{T: d.T, Admin: d.Admin}, Programs: d.Programs, opts: d.opts}
	r.Store = append([]string{"--data", d.T.TempDir()}, d.Store[2:]...)
	if !slices.Contains(r.Store, "--server-key") {
		r.Store = append(r.Store, "--server-key", filepath.Join(d.Store[1], "server.key"))
	}
	r.Serve(FreeAddress(d.T))
	return r
}

// BesideWith is Beside with its own way to the same database and with flags of its own.
func (d *Deployment) BesideWith(databaseURL string, flags ...string) *Deployment {
	d.T.Helper()
	r := &Deployment{Client: Client{T: d.T, Admin: d.Admin}, Programs: d.Programs, opts: d.opts}
	r.opts.Flags = flags
	r.Store = []string{"--data", d.T.TempDir(), "--database-url", databaseURL, "--server-key", filepath.Join(d.Store[1], "server.key")}
	r.Serve(FreeAddress(d.T))
	return r
}

// NATS is where the tests' NATS listens: DROVER_TEST_NATS, or its usual loopback port. The
// test is skipped where none answers.
func NATS(t testing.TB) (url string) {
	t.Helper()
	url = cmp.Or(os.Getenv("DROVER_TEST_NATS"), "nats://127.0.0.1:4222")
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(url, "nats://"), 2*time.Second)
	testenv.Require(t, err == nil, "no NATS answers at "+url)
	_ = conn.Close()
	return url
}

// With is this deployment as other programs start it: its Serve, Beside and commands are theirs.
func (d *Deployment) With(programs Programs) *Deployment {
	r := *d
	r.Programs = programs
	return &r
}

// Lock keeps the server from writing its record until release is called, as Fleet.Lock does.
func (d *Deployment) Lock() (release func()) {
	d.T.Helper()
	dbURL := ""
	if len(d.Store) > 2 {
		dbURL = d.Store[3]
	}
	return lockRecord(d.T, openStore(d.T, d.Store[1], dbURL), dbURL != "")
}

// Serve starts the server on this address, with the same data as before.
func (d *Deployment) Serve(listen string) {
	d.T.Helper()
	args := append(slices.Clone(d.opts.Prefix), d.Programs.Path("drover"), "serve", "--listen", listen, "--log-format", "json")
	args = append(append(args, d.Store...), d.opts.Flags...)
	d.Server = Start(d.T, d.opts.Env, args[0], args[1:]...)
	d.Server.Await(d.T, "drover serve to be ready", func(ctx context.Context) error {
		_, after, ok := bytes.Cut(d.Server.Log(), []byte(`"url":"`))
		url, _, whole := bytes.Cut(after, []byte(`"`))
		if !ok || !whole {
			return errors.New("it doesn't say where it listens")
		}
		d.URL = string(url)
		return d.get(ctx, "/readyz")
	})
}

// get tells whether a GET is answered with 200.
func (d *Deployment) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL+path, nil)
	if err != nil {
		return err
	}
	if d.Admin != "" {
		req.Header.Set("Authorization", "Bearer "+d.Admin)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(path + " says " + resp.Status)
	}
	return nil
}

// Host enrols an agent of that id, runs it as a process and waits until it's online.
func (d *Deployment) Host(id string, flags ...string) *Process {
	d.T.Helper()
	return d.HostAt(id, d.URL, nil, flags...)
}

// HostAt is Host with the server's URL as the host sees it, behind prefix: a program with
// arguments that execs what follows it.
func (d *Deployment) HostAt(id, url string, prefix []string, flags ...string) *Process {
	d.T.Helper()
	token := d.Run("enroll", "create", "--agent-id", id)
	args := append(slices.Clone(prefix), d.Programs.Path("drover-agent"), "run", "--server", url, "--state", filepath.Join(d.T.TempDir(), "state"))
	args = append(args, flags...)
	p := Start(d.T, []string{"DROVER_ENROLL_TOKEN=" + token}, args[0], args[1:]...)
	d.WaitState(id, "online")
	return p
}

// Run runs an administrative command of drover on the server's store and returns its
// standard output, trimmed.
func (d *Deployment) Run(args ...string) string {
	d.T.Helper()
	r := d.CLI(nil, "", append(args, d.Store...)...)
	if r.Exit != 0 {
		d.T.Fatalf("drover %s: exit %d\n%s", strings.Join(args, " "), r.Exit, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// Said is how a command ended.
type Said struct {
	Stdout, Stderr string
	Exit           int // -1 when a signal ended it
}

// CLI runs drover with env beside this process's own environment and stdin as its standard
// input.
func (d *Deployment) CLI(env []string, stdin string, args ...string) Said {
	d.T.Helper()
	ctx, cancel := context.WithTimeout(d.T.Context(), patience)
	defer cancel()
	var out, errs strings.Builder
	cmd := exec.CommandContext(ctx, d.Programs.Path("drover"), args...)
	cmd.Env = append(Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		d.T.Fatalf("drover %s: %v", strings.Join(args, " "), err)
	}
	return Said{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

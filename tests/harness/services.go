package harness

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/testenv"
)

// OwnPostgres is a Postgres server of the test's own, which it may stop.
type OwnPostgres struct {
	// Address is HOST:PORT, the same after each start.
	Address string
	t       testing.TB
	argv    []string
	process *Process
}

// NewPostgres makes an empty Postgres and starts it. Where its programs aren't installed the
// test is skipped. It doesn't sync: its data survives its own end, not the machine's.
func NewPostgres(t testing.TB) *OwnPostgres {
	t.Helper()
	bin := postgresPrograms()
	testenv.Require(t, bin != "", "Postgres' own programs (initdb) aren't installed: apt-get install postgresql")
	dir, err := os.MkdirTemp("", "drover-postgres-") // not beneath t.TempDir, which is for this user alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var as []string
	if os.Geteuid() == 0 { // Postgres refuses to be root
		as = []string{"setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"}
		if out, err := exec.CommandContext(t.Context(), "chown", "postgres:postgres", dir).CombinedOutput(); err != nil {
			t.Fatalf("chown: %v %s", err, out)
		}
	}
	run := func(program string, args ...string) []string {
		return append(append(slices.Clone(as), filepath.Join(bin, program)), args...)
	}
	data := filepath.Join(dir, "data")
	initdb := run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")
	cmd := exec.CommandContext(t.Context(), initdb[0], initdb[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	p := &OwnPostgres{t: t, Address: FreeAddress(t)}
	host, port, _ := net.SplitHostPort(p.Address)
	p.argv = run("postgres", "-D", data, "-h", host, "-p", port, "-k", "", "-F", "-N", "500")
	p.Start()
	return p
}

// postgresPrograms is the folder of initdb and postgres, "" if there's none.
func postgresPrograms() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append([]string{path}, found...)
	}
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[len(found)-1])
}

// FreeAddress is a port of loopback that nobody listens on now, that no connection gets as its
// own, and that no other test gets while this one lasts, in any process: a server that's
// started again there later finds it free.
func FreeAddress(t testing.TB) string {
	t.Helper()
	const lowest, first = 15_000, 32_768 // systems give connections ports from here on
	built.mu.Lock()
	defer built.mu.Unlock()
	for range first - lowest {
		if built.port == 0 {
			built.port = rand.IntN(first - lowest)
		}
		built.port = (built.port + 1) % (first - lowest) // not one that another test was just given
		port := lowest + built.port
		if !claim(port) {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			disclaim(port)
			continue
		}
		defer func() { _ = l.Close() }()
		t.Cleanup(func() { disclaim(port) })
		return l.Addr().String()
	}
	t.Fatal("no port is free")
	return ""
}

// Start starts it again, with what it had, and waits until it answers.
func (p *OwnPostgres) Start() {
	p.t.Helper()
	p.process = Start(p.t, nil, p.argv[0], p.argv[1:]...)
	db := OpenPostgres(p.t, p.url("postgres"))
	Eventually(p.t, patience, "Postgres answers", func() bool { return db.Ping() == nil })
}

// Crash ends it at once: every connection breaks off and nothing is written any more.
func (p *OwnPostgres) Crash() {
	_ = p.process.Cmd.Process.Signal(syscall.SIGQUIT)
	<-p.process.Gone
}

func (p *OwnPostgres) url(database string) string {
	return "postgres://postgres@" + p.Address + "/" + database
}

// Database makes an empty database and returns its URL.
func (p *OwnPostgres) Database() string {
	p.t.Helper()
	name := fmt.Sprintf("t_%d", time.Now().UnixNano())
	p.exec("CREATE DATABASE " + name)
	return p.url(name)
}

// Copy makes a database of another one's present content, and returns its URL. Nobody may be
// connected to that one.
func (p *OwnPostgres) Copy(url string) string {
	p.t.Helper()
	from := url[strings.LastIndex(url, "/")+1:]
	name := fmt.Sprintf("t_%d", time.Now().UnixNano())
	p.exec("CREATE DATABASE " + name + " TEMPLATE " + from)
	return p.url(name)
}

func (p *OwnPostgres) exec(statement string) {
	p.t.Helper()
	db, err := sql.Open("pgx", p.url("postgres"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if _, err := db.Exec(statement); err != nil {
		p.t.Fatalf("%s: %v", statement, err)
	}
}

// OwnNATS is a NATS server of the test's own, which it may stop.
type OwnNATS struct {
	// URL is the same after each start.
	URL     string
	t       testing.TB
	argv    []string
	process *Process
}

// NewNATS starts a NATS with these flags. Where its program isn't installed the test is skipped.
func NewNATS(t testing.TB, flags ...string) *OwnNATS {
	t.Helper()
	program, err := exec.LookPath("nats-server")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/nats-server")
	}
	testenv.Require(t, err == nil, "there's no nats-server: apt-get install nats-server")
	address := FreeAddress(t)
	host, port, _ := net.SplitHostPort(address)
	n := &OwnNATS{URL: "nats://" + address, t: t, argv: append([]string{program, "-a", host, "-p", port}, flags...)}
	n.Start()
	return n
}

// Start starts it, again, and waits until it answers.
func (n *OwnNATS) Start() {
	n.t.Helper()
	address := strings.TrimPrefix(n.URL, "nats://")
	n.process = Start(n.t, nil, n.argv[0], n.argv[1:]...)
	Eventually(n.t, patience, "NATS answers", func() bool {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		_ = c.Close()
		return true
	})
}

// Kill ends it at once.
func (n *OwnNATS) Kill() { n.process.Kill() }

package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Server is a running `drover serve` with an administrator's PAT.
type Server struct {
	*Proc
	URL   string
	Token string

	rig   *Rig
	name  string
	args  []string // of every command
	flags []string // of drover serve alone
}

// Serve starts a server with its own data folder; databaseURL "" means SQLite.
func (r *Rig) Serve(name, databaseURL string) (*Server, error) {
	s := &Server{rig: r, name: name, args: []string{"--data", filepath.Join(r.Dir, name)}}
	if databaseURL != "" {
		s.args = append(s.args, "--database-url", databaseURL)
	}
	return s, s.first()
}

// Replica starts a server that shares a Postgres and a NATS with others; first is one of them,
// nil for the first itself.
func (r *Rig) Replica(name, databaseURL, natsURL string, first *Server) (*Server, error) {
	s := &Server{rig: r, name: name, args: []string{"--data", filepath.Join(r.Dir, name), "--database-url", databaseURL}, flags: []string{"--nats-url", natsURL}}
	if first == nil {
		return s, s.first()
	}
	s.args = append(s.args, "--server-key", filepath.Join(r.Dir, first.name, "server.key"))
	s.Token = first.Token
	if err := s.start("127.0.0.1:0"); err != nil {
		return nil, err
	}
	return s, s.known()
}

// known waits until the server takes the token that another process made.
func (s *Server) known() error {
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var v any
		if err = s.get("/api/v1/whoami", &v); err == nil {
			return nil
		}
	}
	return err
}

// first starts a server and makes an administrator's PAT.
func (s *Server) first() error {
	if err := s.start("127.0.0.1:0"); err != nil {
		return err
	}
	var err error
	s.Token, err = s.Drover("pat", "create", "--name", "bench", "--agents", "all", "--tools", "all", "--admin")
	if err != nil {
		return err
	}
	return s.known()
}

func (s *Server) start(listen string) (err error) {
	s.Proc, err = s.rig.Start(s.name, "drover", append([]string{"serve", "--listen", listen, "--log-format", "json"}, slices.Concat(s.args, s.flags)...)...)
	if err != nil {
		return err
	}
	s.URL, err = s.Await(30*time.Second, servedAt)
	return err
}

// Restart starts a stopped server again, at the same address with the same data.
func (s *Server) Restart() error {
	if err := os.Truncate(s.Log, 0); err != nil {
		return err
	}
	return s.start(strings.TrimPrefix(s.URL, "http://"))
}

// servedAt finds the line in which a server says where it listens.
func servedAt(log string) string {
	for line := range strings.Lines(log) {
		var l struct{ Msg, URL string }
		if json.Unmarshal([]byte(line), &l) == nil && l.URL != "" {
			return l.URL
		}
	}
	return ""
}

// Drover runs an administrative command beside the server and returns what it printed.
func (s *Server) Drover(args ...string) (string, error) {
	cmd := exec.Command(s.rig.Bin("drover"), append(args, s.args...)...)
	cmd.Env = withGOGC(os.Environ(), "")
	out, err := cmd.Output()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		err = fmt.Errorf("drover %s: %w: %s", args[0], err, ee.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// Agent enrols a real agent, runs it, and waits until the server sees it online.
func (s *Server) Agent(id string) (*Proc, error) {
	token, err := s.Drover("enroll", "create", "--agent-id", id)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(s.rig.Dir, id+".token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		return nil, err
	}
	p, err := s.rig.Start(s.name+"-"+id, "drover-agent", "run", "--server", s.URL, "--state", filepath.Join(s.rig.Dir, s.name+"-"+id), "--token-file", file)
	if err != nil {
		return nil, err
	}
	return p, s.online(id)
}

func (s *Server) online(id string) error {
	for range 500 {
		var got struct {
			State string `json:"state"`
		}
		if err := s.get("/api/v1/agents/"+id, &got); err == nil && got.State == "online" {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("agent %s didn't come online", id)
}

func (s *Server) get(path string, v any) error {
	req, err := http.NewRequest(http.MethodGet, s.URL+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// Bare starts a server made of the MCP SDK alone, with one empty tool fs_stat.
func (r *Rig) Bare() (p *Proc, url string, err error) {
	if p, err = r.Start("bare", "bare"); err != nil {
		return nil, "", err
	}
	url, err = p.Await(10*time.Second, servedAt)
	return p, url, err
}

// Swarm starts n simulated agents, sim-00000 and so on, and waits until all are connected.
func (s *Server) Swarm(n int) (*Proc, error) { return s.SwarmOf("sim", n) }

// SwarmOf is Swarm with another beginning of the ids.
func (s *Server) SwarmOf(prefix string, n int) (*Proc, error) {
	p, err := s.rig.start(s.name+"-swarm", "swarm", []string{"SWARM_PAT=" + s.Token}, "--url", s.URL, "--agents", strconv.Itoa(n), "--prefix", prefix)
	if err != nil {
		return nil, err
	}
	return p, AllOnline(p, n, 0)
}

// Kill ends the server at once (SIGKILL), as a power cut would.
func (s *Server) Kill() error {
	err := s.cmd.Process.Kill()
	<-s.gone
	return err
}

// EachSecond is how many a swarm has counted of something ("dialled", "connected") in each
// second from the first to the last in which there was any, from this offset of its log on.
func EachSecond(swarm *Proc, what string, offset int) (each []int, err error) {
	b, err := os.ReadFile(swarm.Log)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b[min(offset, len(b)):])) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), what+" "); ok {
			k, err := strconv.Atoi(n)
			if err != nil {
				return nil, err
			}
			each = append(each, k)
		}
	}
	for len(each) > 0 && each[0] == 0 {
		each = each[1:]
	}
	for len(each) > 0 && each[len(each)-1] == 0 {
		each = each[:len(each)-1]
	}
	return each, nil
}

// AllOnline waits until a swarm says last, after this offset of its log, that all its n agents
// are connected. A swarm that was connected before says so again once it had lost some.
func AllOnline(swarm *Proc, n, offset int) error {
	_, err := swarm.Await(10*time.Minute, func(log string) string {
		said := log[min(offset, len(log)):]
		if i := strings.LastIndex(said, "online "); i >= 0 && strings.HasPrefix(said[i:], fmt.Sprintf("online %d\n", n)) {
			return "yes"
		}
		return ""
	})
	return err
}

// Said is how much a process has printed until now, in bytes.
func (p *Proc) Said() (int, error) {
	info, err := os.Stat(p.Log)
	if err != nil {
		return 0, err
	}
	return int(info.Size()), nil
}

//go:build unix

// Package cluster runs several replicas behind a balancer, as docs/deploy.md describes, and
// takes them away one after the other while clients go on.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/bench/swarm"
	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// rig is some replicas on one Postgres and one NATS behind nginx, which gives each request to
// the next replica.
type rig struct {
	harness.Client // of nginx
	replicas       []*harness.Deployment
	errors         string // the file of nginx' errors
}

func newRig(t *testing.T, n int) *rig {
	t.Helper()
	return newRigOf(t, n, 1)
}

// simulate enrols so many agents and runs them until the test ends; host makes what answers
// their calls, nil as the simulator does by itself. They may not be online yet.
func (r *rig) simulate(n int, host func(id string) swarm.Host) *swarm.Swarm {
	r.T.Helper()
	sims, err := swarm.Enrol(r.T.Context(), swarm.Config{URL: r.URL, Token: r.Admin, Agents: n, Host: host})
	if err != nil {
		r.T.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { sims.Run(ctx) })
	r.T.Cleanup(func() { stop(); running.Wait() })
	return sims
}

// newRigOf is newRig with a number of nginx's workers: each gives its requests to the replicas
// in turn, and may have so many files open of its own.
func newRigOf(t *testing.T, n, workers int) *rig {
	t.Helper()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		nginx, err = exec.LookPath("/usr/sbin/nginx")
	}
	testenv.Require(t, err == nil, "there's no nginx: install Debian's nginx-light")
	first := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.Postgres, Flags: []string{"--nats-url", harness.NATS(t)}})
	r := &rig{replicas: []*harness.Deployment{first}}
	for range n - 1 {
		r.replicas = append(r.replicas, first.Beside())
	}
	r.Client = harness.Client{T: t, Admin: first.Admin, URL: "http://" + r.balance(t, nginx, workers)}
	harness.Eventually(t, 20*time.Second, "nginx", func() bool {
		resp, err := http.Get(r.URL + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return r
}

// at is where a replica listens, also after it was started again.
func (r *rig) at(i int) string { return strings.TrimPrefix(r.replicas[i].URL, "http://") }

// balance runs nginx with the document's location block and an upstream of all replicas.
func (r *rig) balance(t *testing.T, nginx string, workers int) (address string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/deploy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```nginx\nupstream drover")
	block, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/deploy.md has no nginx block for several replicas")
	}
	block = "upstream drover" + block
	address = harness.FreeAddress(t) // nginx can't be asked for port 0
	before, rest, _ := strings.Cut(block, "    server 10.")
	_, server, _ := strings.Cut(upTo(rest, "\n"), " ")
	_, rest, ok = strings.Cut(rest, "    keepalive")
	if !ok {
		t.Fatal("the block for several replicas has changed: this test replaces its servers")
	}
	servers := ""
	for i := range r.replicas {
		servers += "server " + r.at(i) + " " + server + "\n"
	}
	spread := "" // one socket for all workers
	if workers > 1 {
		spread = " reuseport"
	}
	dir := t.TempDir()
	r.errors = filepath.Join(dir, "error.log")
	conf := fmt.Sprintf("pid %[1]s/pid;\nerror_log %[1]s/error.log;\nworker_processes %[5]d;\nworker_rlimit_nofile 20000;\nevents { worker_connections 16000; }\nhttp {\naccess_log off;\n"+
		"client_body_temp_path %[1]s/b;\nproxy_temp_path %[1]s/p;\nfastcgi_temp_path %[1]s/f;\nuwsgi_temp_path %[1]s/u;\nscgi_temp_path %[1]s/s;\n"+
		"map $http_upgrade $drover_connection { default upgrade; '' ''; }\n%[2]s\nserver { listen %[3]s%[6]s;\nclient_max_body_size 0;\n%[4]s}\n}\n",
		dir, before+servers+"    keepalive"+upTo(rest, "\nlocation"), address, "location"+after(rest, "\nlocation"), workers, spread)
	if os.Geteuid() == 0 {
		conf = "user root;\n" + conf
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Start(t, nil, nginx, "-c", file, "-p", dir, "-e", filepath.Join(dir, "error.log"), "-g", "daemon off;")
	return address
}

func upTo(s, mark string) string  { b, _, _ := strings.Cut(s, mark); return b }
func after(s, mark string) string { _, a, _ := strings.Cut(s, mark); return a }

// again starts a replica that has ended, at its old address.
func (r *rig) again(i int) { r.replicas[i].Serve(r.at(i)) }

// onlineOn is how many tunnels end at a replica.
func onlineOn(t *testing.T, d *harness.Deployment) int {
	t.Helper()
	_, page := d.REST("").Do("GET", "/metrics", "")
	_, rest, _ := bytes.Cut(page, []byte("\ndrover_agents_online "))
	var n float64
	if err := json.Unmarshal(bytes.SplitN(rest, []byte("\n"), 2)[0], &n); err != nil {
		t.Fatalf("drover_agents_online: %v", err)
	}
	return int(n)
}

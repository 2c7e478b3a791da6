package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// run is one invocation in this process, in a world of the test's.
type run struct {
	env   map[string]string
	stdin string
	tty   bool // a person sits there
}

// result is what an invocation left.
type result struct {
	code     int
	out, err string
}

func (r run) drover(ctx context.Context, args ...string) result {
	var out, errOut bytes.Buffer
	a := &app{in: strings.NewReader(r.stdin), out: &out, err: &errOut, getenv: func(k string) string { return r.env[k] }, args: args, inTTY: r.tty, errTTY: r.tty}
	code := a.run(ctx)
	return result{code, out.String(), errOut.String()}
}

// fleet is a server with one agent, and the environment that a user of it has.
func fleet1(t *testing.T) (*harness.Fleet, run) {
	t.Helper()
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	return f, run{env: map[string]string{"DROVER_URL": f.URL, "DROVER_PAT": f.Admin}}
}

// data is the folder of a server that has run.
func data(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	api, err := openLocal(t.Context(), &where{data: dir}, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

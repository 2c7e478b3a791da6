package main

import (
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestLife(t *testing.T) {
	for s, want := range map[string]time.Duration{"30d": 720 * time.Hour, "12h": 12 * time.Hour, "90m": 90 * time.Minute, "1h30m": 90 * time.Minute} {
		if got, never, err := parseLife(s); err != nil || never || got != want {
			t.Errorf("%s: %v, %v, %v", s, got, never, err)
		}
	}
	if got, never, err := parseLife("never"); err != nil || !never || got != 0 {
		t.Errorf("never: %v, %v, %v", got, never, err)
	}
	for _, s := range []string{"", "0", "-1h", "0d", "1.5d", "d", "30", "1w", "99999999d", "500ms"} {
		if got, _, err := parseLife(s); err == nil {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// A flag goes before its environment variable, and data or URL on the command line before
// the other kind in the environment.
func TestWhere(t *testing.T) {
	for _, c := range []struct {
		name        string
		args        []string
		env         map[string]string
		url, data   string
		remote, bad bool
	}{
		{name: "nothing", data: "/x/drover"},
		{name: "url by environment", env: map[string]string{"DROVER_URL": "http://a"}, url: "http://a", data: "/x/drover", remote: true},
		{name: "url flag wins", args: []string{"--url", "http://b"}, env: map[string]string{"DROVER_URL": "http://a", "DROVER_DATA": "/d"}, url: "http://b", data: "/d", remote: true},
		{name: "data flag wins", args: []string{"--data", "/e"}, env: map[string]string{"DROVER_URL": "http://a", "DROVER_DATA": "/d"}, url: "http://a", data: "/e"},
		{name: "database flag wins", args: []string{"--database-url", "postgres://"}, env: map[string]string{"DROVER_URL": "http://a"}, url: "http://a", data: "/x/drover"},
		{name: "both", args: []string{"--data", "/e", "--url", "http://b"}, bad: true},
	} {
		getenv := func(k string) string { return c.env[k] }
		a := &app{getenv: getenv}
		w := &where{}
		cmd := &cobra.Command{Use: "x", PersistentPreRunE: a.fromEnv, RunE: func(cmd *cobra.Command, _ []string) error { return w.settle(cmd.Flags()) }, SilenceErrors: true, SilenceUsage: true}
		w.localFlags(cmd.Flags(), getenv)
		w.remoteFlags(cmd.Flags(), "")
		cmd.Flags().Lookup("data").DefValue = "/x/drover"
		w.data = "/x/drover"
		cmd.SetArgs(c.args)
		err := cmd.Execute()
		if (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
		if err == nil && (w.url != c.url || w.data != c.data || w.remote != c.remote) {
			t.Errorf("%s: %+v", c.name, w)
		}
	}
}

func TestAgentIDFromHostname(t *testing.T) {
	for name, want := range map[string]string{
		"web-01": "web-01", "Web_01.example.org": "web-01", "-": "local", "": "local", "müller": "m-ller", "--x--": "x", "a b": "a-b",
	} {
		if got := cleanID(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

package e2e

import (
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestTheLineForATokenOnPostgres: what the page shows for a new host works where the server runs,
// in any folder, and holds no password: a database's URL with one has to be in the environment,
// and the line itself says so.
func TestTheLineForATokenOnPostgres(t *testing.T) {
	for _, c := range []struct {
		name  string
		with  func(*url.URL)
		needs bool
	}{
		{"no password", func(*url.URL) {}, false},
		{"a password", func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "s3cret") }, true},
		{"a password in the query", func(u *url.URL) { u.RawQuery += "&password=s3cret" }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			database, err := url.Parse(harness.PostgresSchema(t))
			if err != nil {
				t.Fatal(err)
			}
			c.with(database)
			d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{DatabaseURL: database.String()})
			var me struct {
				Line string `json:"enroll_command"`
			}
			if code := d.REST(d.Admin).JSON("GET", "/api/v1/whoami", nil, &me); code != 200 || me.Line == "" || strings.Contains(me.Line, "s3cret") {
				t.Fatalf("HTTP %d, the line %s", code, me.Line)
			}
			paste := func(id string, env ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), "sh", "-c", me.Line+" --agent-id "+id)
				cmd.Dir, cmd.Env = t.TempDir(), append(harness.Environ(), env...)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := paste("web-01"); c.needs && (err == nil || !strings.Contains(out, "DROVER_DATABASE_URL: set it as the server has it")) || !c.needs && err != nil {
				t.Errorf("%s: %v\n%s", me.Line, err, out)
			}
			out, err := paste("web-02", "DROVER_DATABASE_URL="+database.String())
			if err != nil || !strings.Contains(out, "--server "+d.URL+"\n") {
				t.Fatalf("%s: %v\n%s", me.Line, err, out)
			}
			token := out[strings.LastIndex(strings.TrimSpace(out), "\n")+1:]
			harness.Start(t, nil, d.Programs.Path("drover-agent"), "run", "--server", d.URL, "--state", t.TempDir(), "--token", strings.TrimSpace(token))
			d.WaitState("web-02", "online")
		})
	}
}

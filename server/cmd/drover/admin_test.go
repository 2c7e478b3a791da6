package main

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/server/internal/restapi"
	"github.com/drover-fleet/drover/tests/harness"
)

func into[T any](t *testing.T, r result) T {
	t.Helper()
	var v T
	if r.code != 0 {
		t.Fatalf("exit %d: %s", r.code, r.err)
	}
	if err := json.Unmarshal([]byte(r.out), &v); err != nil {
		t.Fatalf("%s: %v", r.out, err)
	}
	return v
}

// Administrative commands do the same on the data, beside a running server, and over its
// API; the server knows at once what was done beside it.
func TestAdministration(t *testing.T) {
	f, remote := fleet1(t)
	for name, u := range map[string]run{"url": remote, "data": {env: map[string]string{"DROVER_DATA": f.Dir}}} {
		t.Run(name, func(t *testing.T) {
			made := u.drover(t.Context(), "pat", "create", "--name", "ci-"+name, "--agents", "web-01", "--tools", "fs,shell_exec", "--expires", "12h")
			token := strings.TrimSuffix(made.out, "\n")
			if made.code != 0 || !strings.HasPrefix(token, "drv_pat_") || strings.ContainsAny(token, " \n") || made.err != "" {
				t.Fatalf("%+v", made)
			}
			user := run{env: map[string]string{"DROVER_URL": f.URL, "DROVER_PAT": token}}
			harness.Eventually(t, 5*time.Second, "the new token is known", func() bool {
				return user.drover(t.Context(), "call", "--agent", "web-01", "fs_stat", "path=/").code == 0
			})
			var id string
			for _, p := range into[restapi.PATList](t, u.drover(t.Context(), "pat", "list", "--json")).PATs {
				if p.Name == "ci-"+name {
					id = p.ID
				}
			}
			if got := u.drover(t.Context(), "pat", "list"); !strings.Contains(got.out, "fs,shell_exec") || strings.Contains(got.out, token) {
				t.Errorf("list: %+v", got)
			}
			if got := u.drover(t.Context(), "pat", "revoke", id); got.code != 0 || got.out != "" {
				t.Errorf("revoke: %+v", got)
			}
			revoked(t, user)

			enrol := u.drover(t.Context(), "enroll", "create", "--agent-id", "new-"+name, "--label", "env=lab", "--label", "role=x")
			text := strings.TrimSuffix(enrol.out, "\n")
			if enrol.code != 0 || !strings.HasPrefix(text, "drv_enr_") || strings.Contains(text, "\n") || !strings.Contains(enrol.err, "DROVER_ENROLL_TOKEN="+text+" drover-agent run --server http") {
				t.Fatalf("enroll: %+v", enrol)
			}
			tokens := into[restapi.EnrolmentList](t, u.drover(t.Context(), "enroll", "list", "--json"))
			if got := u.drover(t.Context(), "enroll", "revoke", tokens.Enrolments[0].ID); got.code != 0 {
				t.Errorf("revoke: %+v", got)
			}
			if got := u.drover(t.Context(), "enroll", "list"); !strings.Contains(got.out, "revoked") || !strings.Contains(got.out, "env=lab,role=x") {
				t.Errorf("list: %+v", got)
			}

			rekey := u.drover(t.Context(), "enroll", "create", "--agent-id", "web-01", "--replace")
			if line := "DROVER_ENROLL_TOKEN=" + strings.TrimSpace(rekey.out) + " drover-agent enroll --replace --server http"; rekey.code != 0 || !strings.Contains(rekey.err, line) || strings.Contains(rekey.err, "drover-agent run --server") {
				t.Errorf("an agent that's enrolled uses no token when it's run: %+v", rekey)
			}

			set := into[restapi.AgentInfo](t, u.drover(t.Context(), "agents", "set", "web-01", "--label", "env=prod", "--label", "by="+name, "--description", "shop", "--json"))
			if set.Labels["env"] != "prod" || set.Labels["by"] != name || set.Description != "shop" {
				t.Errorf("set: %+v", set)
			}
			set = into[restapi.AgentInfo](t, u.drover(t.Context(), "agents", "set", "web-01", "--unset", "env", "--unset", "by", "--json"))
			if len(set.Labels) != 0 || set.Description != "shop" {
				t.Errorf("unset: %+v", set)
			}
			list := into[restapi.AgentList](t, u.drover(t.Context(), "agents", "list", "--json"))
			if want := map[string]string{"url": "online", "data": "unknown"}[name]; len(list.Agents) != 1 || list.Agents[0].State != want {
				t.Errorf("list: %+v", list)
			}
			if got := u.drover(t.Context(), "agents", "show", "web-01"); !strings.Contains(got.out, "web-01") || !strings.Contains(got.out, "shop") {
				t.Errorf("show: %+v", got)
			}
			if got := u.drover(t.Context(), "audit", "list", "--kind", "admin"); !strings.Contains(got.out, "agent.set") || !strings.Contains(got.out, "pat.revoke") {
				t.Errorf("audit: %+v", got)
			}
			if rows := into[restapi.AuditList](t, u.drover(t.Context(), "audit", "list", "--limit", "3", "--json")).Rows; len(rows) != 3 {
				t.Errorf("%d rows", len(rows))
			}
		})
	}
}

// A token for an agent that isn't there yet is made, and that it isn't there is said.
func TestTokenForNoAgent(t *testing.T) {
	f, remote := fleet1(t)
	for name, u := range map[string]run{"url": remote, "data": {env: map[string]string{"DROVER_DATA": f.Dir}}} {
		for _, form := range [][]string{nil, {"--json"}} {
			got := u.drover(t.Context(), append([]string{"pat", "create", "--name", "x", "--tools", "fs", "--agents", "web-01,web-1,db-7"}, form...)...)
			if got.code != 0 || !strings.Contains(got.out, "drv_pat_") || strings.Contains(got.err, "web-01") ||
				strings.Count(got.err, "\n") != 2 || !strings.Contains(got.err, "there's no agent web-1 now") || !strings.Contains(got.err, "there's no agent db-7 now") {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if got := u.drover(t.Context(), "pat", "create", "--name", "x", "--agents", "web-01", "--tools", "fs,fs_raed"); got.code != 2 || got.out != "" || !strings.Contains(got.err, "unknown") || !strings.Contains(got.err, "fs_read") {
			t.Errorf("%s: an unknown tool: %+v", name, got)
		}
	}
}

// revoked waits until the running server refuses the token, as it must within five seconds.
func revoked(t *testing.T, user run) {
	t.Helper()
	harness.Eventually(t, 5*time.Second, "the revoked token is refused", func() bool {
		got := user.drover(t.Context(), "call", "--agent", "web-01", "fs_stat", "path=/")
		return got.code == 255 && strings.HasPrefix(got.err, "drover: unauthenticated: ")
	})
}

func TestWhatIsMissingIsExplained(t *testing.T) {
	u := run{env: map[string]string{"DROVER_DATA": data(t)}}
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"pat create --name x --tools all", "--agents all", 2},
		{"pat create --name x --agents all", "--tools all", 2},
		{"pat create --agents all --tools all", "--name", 2},
		{"pat create --name x --agents all --selector a=b --tools all", "not both", 2},
		{"pat create --name x --agents all --tools nope", "unknown", 2},
		{"pat create --name x --agents Web --tools all", "malformed", 2},
		{"pat create --name x --agents all --tools all --expires soon", "30d", 2},
		{"enroll create", "--agent-id", 2},
		{"enroll create --agent-id Web", "agent id", 2},
		{"enroll create --agent-id web --ttl never", "--ttl", 2},
		{"enroll create --agent-id web --label x", "key=value", 2},
		{"enroll create --agent-id web --replace", "not_found", 1},
		{"agents list --data /nope/nope", "no Drover data", 1},
		{"agents list --url http://127.0.0.1:1", "DROVER_PAT", 1},
		{"agents list --state online", "--url", 2},
		{"agents show", "needs an agent id", 2},
		{"agents show nope", "unknown_agent: there's no agent of that id; drover agents list", 1},
		{"agents remove nope", "unknown_agent", 1},
		{"agents set nope --label a=b", "unknown_agent", 1},
		{"agents purge nope", "unknown_agent", 1},
		{"pat revoke nope", "not_found", 1},
		{"nope", "there's no command drover \"nope\"; see drover --help", 2},
		{"help nope", "there's no command drover \"nope\"; see drover --help", 2},
		{"help agents lst", "there's no command drover agents \"lst\" (is it list or set?); see drover agents --help", 2},
		{"completion nope", "there's no command drover completion \"nope\"; see drover completion --help", 2},
		{"completion bash x", "takes no arguments", 2},
		{"aduit list", "no command drover \"aduit\" (is it audit?)", 2},
		{"agents nope", "no command", 2},
		{"agents sho", "(is it show or set?)", 2},
		{"agents list web-01", "takes no arguments", 2},
		{"enroll create web-01", "takes no arguments", 2},
		{"version x", "takes no arguments", 2},
		{"agents list --nope", "unknown flag", 2},
		{"serve --log-level loud", "bad_args: ", 2},
		{"serve --log-format xml", "json, text", 2},
		{"serve --listen 7400", "bad_args: --listen must be HOST:PORT", 2},
		{"serve --listen 127.0.0.1:99999", "bad_args: --listen must be HOST:PORT", 2},
		{"serve --public-url drover.example.org", "bad_args: --public-url", 2},
		{"serve --nats-url nats://127.0.0.1:1", "bad_args: several replicas", 2},
		{"dev --log-level loud", "bad_args: ", 2},
		{"agents list --url ftp://x", "bad_args: --url must be", 2},
		{"agents list --url http://127.0.0.1:1 --data /x", "not both", 2},
		{"agents set web --label x", "key=value", 2},
		{"audit list --limit 0", "--limit", 2},
		{"audit list --limit many", "invalid argument", 2},
		{"audit list --kind none", "kind", 2},
		{"tools --url ftp://x", "bad_args: --url must be", 2},
		{"call --agent web-01", "bad_args: name a tool", 255}, // codes up to 254 are the command's
	} {
		got := u.drover(t.Context(), strings.Fields(c.args)...)
		if got.code != c.code || got.out != "" || !strings.HasPrefix(got.err, "drover: ") || !strings.Contains(got.err, c.want) {
			t.Errorf("%s: %+v, want exit %d and %q", c.args, got, c.code, c.want)
		}
	}
}

// Help teaches: each command that people run has an example, and says which environment
// variables it reads.
func TestHelp(t *testing.T) {
	u := run{}
	for _, cmd := range []string{"serve", "dev", "agents list", "agents show", "agents set", "agents purge", "agents remove", "call", "tools", "pat create", "pat list", "pat revoke", "enroll create", "enroll list", "enroll revoke", "audit list"} {
		got := u.drover(t.Context(), append(strings.Fields(cmd), "--help")...)
		if got.code != 0 || !strings.Contains(got.out, "Examples:\n  ") {
			t.Errorf("%s: %+v", cmd, got)
		}
	}
	if got := u.drover(t.Context(), "serve", "--help"); !strings.Contains(got.out, "(env DROVER_LISTEN)") || !strings.Contains(got.out, "DROVER_DATABASE_URL") || !strings.Contains(got.out, "DROVER_PUBLIC_URL") {
		t.Errorf("serve: %s", got.out)
	}
	if got := u.drover(t.Context(), "call", "--help"); strings.Contains(got.out, "DROVER_AGENT") {
		t.Errorf("--agent has an environment variable: %s", got.out)
	}
	dir := t.TempDir()
	if got := u.drover(t.Context(), "docs", "man", dir); got.code != 0 {
		t.Errorf("man: %+v", got)
	}
	if pages, err := filepath.Glob(filepath.Join(dir, "drover*.1")); err != nil || len(pages) < 15 {
		t.Errorf("%d pages, %v", len(pages), err)
	}
	if got := u.drover(t.Context(), "version"); !strings.HasPrefix(got.out, "drover ") {
		t.Errorf("version: %+v", got)
	}
}

// Root doesn't put files of its own into another user's data.
func TestRootBesideAnotherUsersData(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder away")
	}
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "drover.db"), nil, 0o600)
	got := run{}.drover(t.Context(), "pat", "create", "--data", dir, "--name", "x", "--agents", "all", "--tools", "all")
	if got.code != 1 || !strings.HasPrefix(got.err, "drover: denied: ") || !strings.Contains(got.err, "sudo -u ") {
		t.Errorf("%+v", got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// With a database alone, what doesn't need the server's key works, and an enrolment token
// isn't made with a wrong one.
func TestDatabaseWithoutTheKey(t *testing.T) {
	dsn := harness.PostgresSchema(t)
	data := filepath.Join(t.TempDir(), "none")
	u := run{env: map[string]string{"DROVER_DATABASE_URL": dsn, "DROVER_DATA": data}}
	if got := u.drover(t.Context(), "pat", "create", "--name", "x", "--agents", "all", "--tools", "all"); got.code != 0 || !strings.HasPrefix(got.out, "drv_pat_") {
		t.Errorf("%+v", got)
	}
	if got := u.drover(t.Context(), "enroll", "create", "--agent-id", "web-01"); got.code != 2 || !strings.Contains(got.err, "server's key") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(data); err == nil {
		t.Error("a data folder was made")
	}
	if l := into[restapi.PATList](t, u.drover(t.Context(), "pat", "list", "--json")); len(l.PATs) != 1 {
		t.Errorf("%+v", l)
	}
}

// Beside the files of a server whose database is elsewhere no other database is made: what a
// command would print from it, the server would never accept.
func TestServersFilesWithoutItsDatabase(t *testing.T) {
	for _, file := range []string{"server.key", "server.url", "elsewhere.key"} {
		t.Run(file, func(t *testing.T) {
			data := t.TempDir()
			if err := os.WriteFile(filepath.Join(data, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			u := run{env: map[string]string{"DROVER_DATA": data}}
			if file == "elsewhere.key" {
				u.env["DROVER_SERVER_KEY"] = filepath.Join(data, file)
			}
			for _, args := range []string{
				"pat create --name x --agents all --tools all", "pat list", "enroll create --agent-id web-01", "agents list", "audit list",
			} {
				got := u.drover(t.Context(), strings.Fields(args)...)
				if got.code != 2 || got.out != "" || !strings.Contains(got.err, "--database-url") || !strings.Contains(got.err, "DROVER_DATABASE_URL") {
					t.Errorf("%s: %+v", args, got)
				}
			}
			if left, err := os.ReadDir(data); err != nil || len(left) != 1 {
				t.Errorf("%v, %v", left, err)
			}
		})
	}
}

// Where no server ever ran a command makes no data: what it would print from it, no server
// would ever accept.
func TestNoDataIsMade(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	for _, args := range []string{
		"pat create --name x --agents all --tools all", "pat list", "enroll create --agent-id web-01", "enroll list", "agents list", "audit list",
	} {
		got := run{env: map[string]string{"DROVER_DATA": "no/data"}}.drover(t.Context(), strings.Fields(args)...)
		if got.code != 1 || got.out != "" || !strings.HasPrefix(got.err, "drover: not_found: there's no Drover data in "+filepath.Join(here, "no", "data")+".") {
			t.Errorf("%s: %+v", args, got)
		}
		for _, way := range []string{"drover serve", "make run in .data", "--data DIR", "--url URL"} {
			if !strings.Contains(got.err, way) {
				t.Errorf("%s doesn't name %q: %s", args, way, got.err)
			}
		}
	}
	if left, err := os.ReadDir(here); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// What Postgres itself says against a connection is told, without the password.
func TestTheDatabasesOwnReason(t *testing.T) {
	dsn, err := url.Parse(harness.PostgresSchema(t))
	if err != nil {
		t.Fatal(err)
	}
	dsn.Path = "/no_such_database"
	dsn.User = url.UserPassword(dsn.User.Username(), "s3cret-word")
	for _, args := range []string{"serve --listen 127.0.0.1:0", "pat list"} {
		u := run{env: map[string]string{"DROVER_DATABASE_URL": dsn.String(), "DROVER_DATA": t.TempDir()}}
		got := u.drover(t.Context(), strings.Fields(args)...)
		if got.code != 1 || !strings.Contains(got.err, "FATAL: ") || strings.Contains(got.err, "s3cret-word") {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestToolWordsAreSaidOnce(t *testing.T) {
	words := toolWords()
	slices.Sort(words)
	if once := slices.Compact(slices.Clone(words)); len(once) != len(words) {
		t.Errorf("%v", words)
	}
}

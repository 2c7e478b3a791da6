package arch

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// only says which folders may import a package (and what's below it), tests aside. A
// folder ending in "/..." stands for what's below it too.
type only struct {
	imported string
	by       []string
	// tests tells that test files anywhere may import it.
	tests bool
	why   string
}

func importRules() []only {
	return []only{
		{"github.com/coder/websocket", []string{"protocol/wsconn"}, true, "one package knows the WebSocket library"},
		{"github.com/danielgtaylor/huma", []string{"server/internal/restapi"}, true, "REST's library stops at REST"},
		{"github.com/modelcontextprotocol/go-sdk", []string{"server/internal/mcpapi", "tests/..."}, true, "the SDK's types stop at MCP"},
		{"database/sql", []string{"server/internal/store/...", "tests/..."}, true, "all SQL is in the store"},
		{"github.com/jackc/pgx", []string{"server/internal/store/...", "tests/..."}, true, "all SQL is in the store"},
		{"modernc.org/sqlite", []string{"server/internal/store/..."}, true, "all SQL is in the store"},
		{"github.com/pressly/goose", []string{"server/internal/store/..."}, true, "migrations are the store's"},
		{module + "/migrations", []string{"server/internal/store/..."}, true, "migrations are the store's"},
		{"go.opentelemetry.io", []string{"server/internal/tracing", "tests/..."}, true, "OpenTelemetry's types stop where spans are made"},
		{"google.golang.org/grpc", nil, true, "nothing speaks gRPC"},
		{"github.com/nats-io", []string{"server/internal/cluster", "server"}, true, "replicas talk in one package"},
		{"github.com/spf13/cobra", []string{"server/cmd/...", "agent/cmd/..."}, true, "the command line stays at the edge"},
		{module + "/web", []string{"server", "server/internal/ui"}, true, "only the server shows the page"},
		{"os/exec", []string{"agent/...", "server/cmd/drover", "tests/..."}, true, "the server starts no programs: a call runs on its host or nowhere"},
		{"unsafe", []string{"agent/..."}, false, "only system calls on hosts need it"},
		{"plugin", nil, false, "nothing is loaded at run time"},
		{"github.com/google/go-cmp", []string{"tests/...", "server/internal/store/storetest"}, true, "a test's library"},
		{"pgregory.net/rapid", []string{"tests/..."}, true, "a test's library"},
		{"encoding/gob", nil, false, "foreign bytes are read strictly, as JSON"},
	}
}

func TestImportsStopWhereTheyShould(t *testing.T) {
	all, _ := sources(t)
	used := map[string]bool{}
	for _, src := range all {
		for _, spec := range src.file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range importRules() {
				if !below(path, r.imported) {
					continue
				}
				if used[r.imported] = true; r.tests && src.test || allowed(src.dir, r.by) {
					continue
				}
				t.Errorf("%s imports %s: %s", src.path, path, r.why)
			}
		}
	}
	for _, r := range importRules() {
		if r.by != nil && !used[r.imported] {
			t.Errorf("nothing imports %s: the rule about it watches nothing", r.imported)
		}
	}
}

// below tells whether an import path is a package or lies under it, in any major version.
func below(path, pkg string) bool {
	return path == pkg || strings.HasPrefix(path, pkg+"/")
}

func allowed(dir string, by []string) bool {
	return slices.ContainsFunc(by, func(b string) bool {
		if tree, ok := strings.CutSuffix(b, "/..."); ok {
			return below(dir, tree)
		}
		return dir == b
	})
}

// TestRoomsAreApart: the protocol knows neither side, and the sides don't know each other.
func TestRoomsAreApart(t *testing.T) {
	for room, others := range map[string][]string{
		"protocol": {"server", "agent", "web", "migrations"},
		"agent":    {"server", "web", "migrations"},
		"server":   {"agent"},
	} {
		args := []string{"list", "-f", `{{range .Imports}}{{println .}}{{end}}`, "./" + room + "/..."}
		imports := golang(t, args...)
		if len(imports) < 20 {
			t.Fatalf("%s has only %d imports: the list is broken", room, len(imports))
		}
		for _, path := range imports {
			for _, other := range others {
				if below(path, module+"/"+other) && !devAgent(room, path) {
					t.Errorf("%s imports %s", room, path)
				}
			}
		}
	}
}

// devAgent is the one exception: `drover dev` runs a local agent in its own process.
func devAgent(room, path string) bool { return room == "server" && path == module+"/agent" }

// TestAgentLinksNoServerLibrary: what runs as root on every host holds no more than it needs.
func TestAgentLinksNoServerLibrary(t *testing.T) {
	deps := golang(t, "list", "-deps", "./agent/cmd/drover-agent")
	if len(deps) < 50 {
		t.Fatalf("only %d packages: the list is broken", len(deps))
	}
	for _, d := range deps {
		for _, bad := range []string{
			"database/sql", "github.com/jackc", "modernc.org", "github.com/pressly", "github.com/nats-io", "github.com/danielgtaylor",
			"github.com/modelcontextprotocol", "github.com/prometheus", "go.opentelemetry.io", "google.golang.org", "github.com/go-chi", "net/http/pprof", "testing", module + "/web",
			module + "/server", module + "/migrations",
		} {
			if below(d, bad) {
				t.Errorf("the agent links %s", d)
			}
		}
	}
}

// TestFleetIsAVocabulary: it imports the standard library and the protocol alone.
func TestFleetIsAVocabulary(t *testing.T) {
	imports := golang(t, "list", "-f", `{{range .Imports}}{{println .}}{{end}}`, "./server/internal/fleet")
	if len(imports) == 0 {
		t.Fatal("it has no imports: the list is broken")
	}
	for _, path := range imports {
		if strings.Contains(path, ".") && !below(path, module+"/protocol") {
			t.Errorf("fleet imports %s", path)
		}
	}
}

package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// checker runs docs/check_record.py as an auditor does.
type checker struct {
	t   *testing.T
	dir string
}

// file writes a file for the program.
func (c checker) file(name, text string) string {
	c.t.Helper()
	name = filepath.Join(c.dir, name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return name
}

// check tells what the program prints, and whether it finds nothing wrong.
func (c checker) check(args ...string) (said string, ok bool) {
	c.t.Helper()
	b, err := exec.Command("python3", append([]string{filepath.Join("..", "..", "docs", "check_record.py")}, args...)...).CombinedOutput()
	if strings.Contains(string(b), "Traceback") {
		c.t.Fatalf("the program ends by itself: %s", b)
	}
	return string(b), err == nil
}

// TestTheRecordCanBeChecked: with what the command line prints, over the API and beside the
// server, and what the API says of a call, docs/check_record.py computes every leaf and each
// commitment anew, and finds what was changed.
func TestTheRecordCanBeChecked(t *testing.T) {
	t.Parallel()
	_, err := exec.LookPath("python3")
	testenv.Require(t, err == nil, "python3 isn't installed")
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{})
	d.Host("web-01")
	user, _ := d.PAT("user", "all", "all", false)
	c := checker{t, t.TempDir()}

	const whole = `{"timeout_seconds":20,"command":"\u0065cho '\u003c\u0026>' \u2028 ` + "\u2028" + ` \u202e \/"}`
	const secret = `{ "command":"cat", "stdin":"hunter2\u0021"  }`
	wholeID, secretID := callRaw(t, d, user, whole), callRaw(t, d, user, secret)
	// What docs/security.md says of MCP: Drover's own members are taken out, the others stay.
	const overMCP = `{"command" : "true","timeout_seconds":7}`
	mcpID := callMCP(t, d, user, `{ "command" : "true" , "agent_id":"web-01",  "timeout_seconds":7, "queue_for_seconds":60 }`)
	if status, b := d.REST(user).Do("POST", "/api/v1/calls", `{"agent_id":"\u0077eb-02<\u2028","tool":"shell_exec","args":{}}`); status != 404 {
		t.Errorf("a refusal: HTTP %d %s", status, b)
	}
	rows := ""
	harness.Eventually(t, patience, "the refusal is on record", func() bool {
		rows = d.Run("audit", "list", "--limit", "1000", "--json")
		return strings.Contains(rows, `"refusal"`)
	})
	over := d.CLI([]string{"DROVER_PAT=" + d.Admin}, "", "audit", "list", "--limit", "1000", "--json", "--url", d.URL)
	for way, text := range map[string]string{"beside the server": rows, "over the API": over.Stdout} {
		if said, ok := c.check(c.file("rows.json", text)); !ok || !strings.Contains(said, " 0 differences") || strings.Count(text, `"leaf"`) < 11 {
			t.Errorf("%s: %s\n%s", way, said, text)
		}
	}
	file := c.file("rows.json", rows)
	byHand(t, file)
	checkCommitments(t, d, c, user, file, map[string]string{"whole": wholeID, "secret": secretID, "MCP": mcpID}, map[string]string{"whole": whole, "secret": secret, "MCP": overMCP})
	c.changed(rows)
}

// byHand is the line of docs/security.md for a single leaf.
func byHand(t *testing.T, rows string) {
	t.Helper()
	doc := read(t, filepath.Join("..", "..", "docs", "security.md"))
	_, line, _ := strings.Cut(doc, "And a single leaf by hand: `")
	line, _, ok := strings.Cut(line, "`.")
	if !ok {
		t.Fatal("docs/security.md has no line for one leaf")
	}
	for _, program := range []string{"jq", "openssl", "basenc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("not tried: %s isn't installed", program)
			return
		}
	}
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir = filepath.Dir(rows)
	b, err := cmd.Output()
	leaf := strings.TrimRight(strings.TrimSpace(string(b)), "=")
	if err != nil || len(leaf) != 43 || !strings.Contains(read(t, rows), `"`+leaf+`"`) {
		t.Errorf("by hand: %v: %s", err, b)
	}
}

// checkCommitments takes the file of rows, and calls with their arguments: of one the record
// holds these whole, of the others it doesn't.
func checkCommitments(t *testing.T, d *harness.Deployment, c checker, user, rows string, ids, args map[string]string) {
	t.Helper()
	commitments := func(token, id string) string {
		status, b := d.REST(token).Do("GET", "/api/v1/calls/"+id+"/commitments", "")
		if status != 200 {
			t.Fatalf("commitments: HTTP %d %s", status, b)
		}
		return c.file("call.json", string(b))
	}
	const checked, unchecked = "these are the", "not checked"
	for _, k := range []struct {
		name, token, call, args string
		ok                      bool
		first, second           string // what's said of arguments and of the result
	}{
		{"the caller", user, "whole", "", true, checked, checked},
		{"an administrator", d.Admin, "whole", "", true, checked, checked},
		{"an administrator who's given them", d.Admin, "whole", args["whole"], true, checked, checked},
		{"other arguments", user, "whole", strings.Replace(args["whole"], "u0065", "u0066", 1), false, "not the bytes", checked},
		{"the same, written otherwise", user, "whole", strings.Replace(args["whole"], `\u0065`, "e", 1), false, "not the bytes", checked},
		{"a secret's caller", user, "secret", args["secret"], true, checked, checked},
		{"a secret's caller, without it", user, "secret", "", true, unchecked, checked},
		{"another secret", user, "secret", strings.Replace(args["secret"], "2", "3", 1), false, "not the bytes", checked},
		{"over MCP", user, "MCP", args["MCP"], true, checked, checked},
		{"a guess by an administrator", d.Admin, "secret", args["secret"], true, unchecked, checked},
	} {
		line := []string{rows, "--call", commitments(k.token, ids[k.call])}
		if k.args != "" {
			line = append(line, "--args", c.file("args", k.args))
		}
		said, ok := c.check(line...)
		lines := strings.Split(said, "\n")
		if ok != k.ok || len(lines) != 4 || !strings.Contains(lines[0], k.first) || !strings.Contains(lines[1], k.second) {
			t.Errorf("%s: %s", k.name, said)
		}
	}
}

// changed changes one thing in one row after another.
func (c checker) changed(rows string) {
	c.t.Helper()
	for name, change := range map[string]func(row map[string]any){
		"another byte":    func(r map[string]any) { r["exact"] = strings.Replace(r["exact"].(string), `"v":1`, `"v": 1`, 1) },
		"another leaf":    func(r map[string]any) { r["leaf"] = strings.Repeat("A", 43) },
		"another time":    func(r map[string]any) { r["at"] = strings.Replace(r["at"].(string), "Z", "+00:00", 1) },
		"another kind":    func(r map[string]any) { r["kind"] = "sent" },
		"another call":    func(r map[string]any) { r["call_id"] = "x" },
		"another reading": func(r map[string]any) { r["body"].(map[string]any)["more"] = true },
	} {
		var list struct {
			Rows []map[string]any `json:"rows"`
		}
		if err := json.Unmarshal([]byte(rows), &list); err != nil {
			c.t.Fatal(err)
		}
		change(list.Rows[slices.IndexFunc(list.Rows, func(r map[string]any) bool { return r["kind"] == "outcome" })])
		b, err := json.Marshal(list)
		if err != nil {
			c.t.Fatal(err)
		}
		if said, ok := c.check(c.file("changed.json", string(b))); ok || !strings.Contains(said, " 1 differences") {
			c.t.Errorf("%s isn't found: %s", name, said)
		}
	}
}

// callRaw makes a call with exactly these arguments.
func callRaw(t *testing.T, d *harness.Deployment, token, args string) (id string) {
	t.Helper()
	status, b := d.REST(token).Do("POST", "/api/v1/calls", `{"agent_id":"web-01","tool":"shell_exec","args":`+args+`}`)
	var out harness.CallResult
	if err := json.Unmarshal(b, &out); err != nil || status != 200 || out.State != "succeeded" {
		t.Fatalf("HTTP %d %s", status, b)
	}
	return out.CallID
}

// callMCP is callRaw over MCP, with all of the tool's arguments.
func callMCP(t *testing.T, d *harness.Deployment, token, arguments string) (id string) {
	t.Helper()
	header := http.Header{"Mcp-Method": {"tools/call"}, "Mcp-Name": {"shell_exec"}}
	resp, b := d.PostMCP(token, harness.Modern, header, toolsCall(harness.Modern, `"name":"shell_exec","arguments":`+arguments))
	var list struct {
		Calls []struct {
			CallID string `json:"call_id"`
			Edge   string `json:"edge"`
			State  string `json:"state"`
		} `json:"calls"`
	}
	if status := d.REST(token).JSON("GET", "/api/v1/calls?limit=1", nil, &list); status != 200 || len(list.Calls) != 1 || list.Calls[0].Edge != "mcp" || list.Calls[0].State != "succeeded" {
		t.Fatalf("HTTP %d %s: %+v", resp.StatusCode, b, list)
	}
	return list.Calls[0].CallID
}

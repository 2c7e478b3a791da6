package restapi

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/commit"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// leafOf is a row's leaf as somebody computes it who has only the answer.
func leafOf(r AuditRow) string {
	sum := sha256.Sum256(append([]byte{0}, r.Exact...))
	return protocol.B64(sum[:])
}

// TestARowComesOutAsItWasWritten: whatever a row holds, its exact bytes come out, on the wire of
// body as well, and its leaf and its time are theirs.
func TestARowComesOutAsItWasWritten(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	// What stays as it was written: escapes that needn't be, the order of members, numbers.
	same := []string{
		`{"timeout_seconds":10,"command":"\u0065cho \u003c\u0026\u003e <&> \u2028 ` + "\u2028" + ` \/ \u00e4 ä \ud83d\ude00 \u0000 \u202e"}`,
		`{"command":"a\"b\\c\n\u000a","cwd":"/\u0074mp"}`,
	}
	for _, args := range append(same, `{ "command" : "x" ,  "timeout_seconds" :  5 }`, `{"command":"x","stdin":"\u0041"}`, `{"command":"`+strings.Repeat(`\u0041\u2028<`, 1000)+`"}`) {
		if a := w.do("POST", "/api/v1/calls", admin, `{"agent_id":"web-01","tool":"shell_exec","args":`+args+`}`); a.status != 200 {
			t.Fatalf("%s: HTTP %d %s", args, a.status, a.body)
		}
	}
	if a := w.do("POST", "/api/v1/calls", admin, `{"agent_id":"web-01","tool":"fs_read","args":{"path":"/f","offset":9007199254740991}}`); a.code() == "bad_args" {
		t.Fatalf("HTTP %d %s", a.status, a.body)
	}
	times := map[string]time.Time{
		"2026-01-02T03:04:05.120000Z": time.Date(2026, 1, 2, 3, 4, 5, 120_000_999, time.UTC),
		"2026-01-02T03:04:06.000000Z": time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC),
	}
	for _, at := range times {
		if err := w.db.RecordAdmin(t.Context(), fleet.AdminEvent{Principal: "p\xff\x00<", Action: "test", Detail: map[string]string{"b\u2028": "\xc3(", "a": "<&>\u202e\"\\"}, At: at}); err != nil {
			t.Fatal(err)
		}
	}
	w.db.RecordRefusal(fleet.Refusal{Client: "\xff\xfe", Agent: "\"\\u0041", Code: protocol.CodeUnknownAgent, Message: "\xed\xa0\x80 <b>"})
	var rows []AuditRow
	w.until("all is recorded", func() bool {
		rows = decode[AuditList](t, w.do("GET", "/api/v1/audit?limit=200", admin, "")).Rows
		return len(rows) > 0 && strings.Contains(w.do("GET", "/api/v1/audit?kind=refusal", admin, "").body, "<b>")
	})
	all := ""
	for _, r := range rows {
		all += r.Exact
		var said struct {
			At   string `json:"at"`
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal([]byte(r.Exact), &said); err != nil || said.At != r.At || said.Kind != r.Kind {
			t.Errorf("%+v isn't what its row says: %v", r, err)
		}
		if r.Exact != string(r.Body) || r.Leaf != leafOf(r) {
			t.Errorf("an honest row looks forged: %+v", r)
		}
		delete(times, r.At)
	}
	for _, args := range append(same, `{"command":"x","timeout_seconds":5}`, `9007199254740991`) {
		if !strings.Contains(all, args) {
			t.Errorf("no row has %s", args)
		}
	}
	if len(times) > 0 {
		t.Errorf("no row is of %v", times)
	}
}

// TestAChangedRowIsSeen: somebody who changed rows in the database doesn't keep others from
// being listed, and the changed ones don't fit their leaves.
func TestAChangedRowIsSeen(t *testing.T) {
	for name, body := range map[string]string{"no JSON": "{", "no text": "{\"v\":\"\xff\"}", "a name twice": `{"v":1,"v":1}`, "another text": `{"v":1}`} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			admin := w.pat("a", true, everyAgent, everyTool)
			w.pat("b", false, everyAgent, everyTool)
			db, err := sql.Open("sqlite", filepath.Join(w.dir, "drover.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if _, err := db.Exec(`UPDATE record SET body = ? WHERE id = (SELECT max(id) FROM record)`, []byte(body)); err != nil {
				t.Fatal(err)
			}
			rows := decode[AuditList](t, w.do("GET", "/api/v1/audit", admin, "")).Rows
			if len(rows) != 2 || rows[0].Leaf == leafOf(rows[0]) || rows[1].Leaf != leafOf(rows[1]) {
				t.Fatalf("rows: %+v", rows)
			}
			if null := string(rows[0].Body) == "null"; null != (name != "another text") {
				t.Errorf("shown: %+v", rows[0])
			}
		})
	}
}

// fits tells that a commitment is that to exact bytes.
func fits(c commit.Commitment, exact string) bool {
	salt, err := hex.DecodeString(c.Salt)
	sum := sha256.Sum256(append(salt, exact...))
	return err == nil && len(salt) == 16 && hex.EncodeToString(sum[:]) == c.Commitment
}

// TestWhoIsGivenASalt: the caller has the salts of its calls. An administrator has them where
// they're no means to guess at what the record leaves out; nobody else has anything.
func TestWhoIsGivenASalt(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	w.hosts.answer = func(_ context.Context, req *protocol.Request) *protocol.Response {
		return &protocol.Response{Type: protocol.TypeResponse, ID: req.ID, Result: jsontext.Value(processOK)}
	}
	user, other, admin := w.pat("u", false, everyAgent, everyTool), w.pat("o", false, everyAgent, everyTool), w.pat("a", true, everyAgent, everyTool)
	for name, c := range map[string]struct {
		args  string
		exact bool // the record holds them as they are
	}{
		"whole":       {`{"command":"\u0069d"}`, true},
		"white space": {`{"command": "id"}`, false},
		"a secret":    {`{"command":"su","stdin":"hunter2"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			call := decode[Call](t, w.do("POST", "/api/v1/calls", user, `{"agent_id":"web-01","tool":"shell_exec","args": `+c.args+` }`))
			path := "/api/v1/calls/" + call.CallID + "/commitments"
			own, theirs := decode[commit.Commitments](t, w.do("GET", path, user, "")), decode[commit.Commitments](t, w.do("GET", path, admin, ""))
			if a := w.do("GET", path, other, ""); a.status != 404 || strings.Contains(a.body, "salt") {
				t.Errorf("another one's: HTTP %d %s", a.status, a.body)
			}
			if !fits(own.Args, c.args) || (own.Args.Exact == c.args) != c.exact {
				t.Errorf("the caller's: %+v", own.Args)
			}
			if (theirs.Args.Salt == own.Args.Salt) != c.exact || (theirs.Args.Salt == "") == c.exact || theirs.Args.Exact != own.Args.Exact || theirs.Args.Commitment != own.Args.Commitment {
				t.Errorf("an administrator's: %+v", theirs.Args)
			}
			if own.Result == nil || theirs.Result == nil || *own.Result != *theirs.Result || !fits(*own.Result, own.Result.Exact) || own.Result.Exact != string(call.Result) {
				t.Errorf("the result: %+v, %+v", own.Result, theirs.Result)
			}
			rows := w.do("GET", "/api/v1/audit?call_id="+call.CallID, admin, "").body
			if !strings.Contains(rows, own.Args.Commitment) || !strings.Contains(rows, own.Result.Commitment) || strings.Contains(rows, own.Args.Salt) {
				t.Errorf("the record: %s", rows)
			}
			// A result that's no longer kept is what only its caller may still know.
			if _, err := w.db.PruneResults(t.Context(), -time.Hour); err != nil {
				t.Fatal(err)
			}
			own2, theirs := decode[commit.Commitments](t, w.do("GET", path, user, "")), decode[commit.Commitments](t, w.do("GET", path, admin, ""))
			if own2.Result.Salt != own.Result.Salt || own2.Result.Exact != "" || theirs.Result.Salt != "" || theirs.Result.Exact != "" {
				t.Errorf("a day later: %+v, %+v", own2.Result, theirs.Result)
			}
		})
	}
}

// TestWhatIsRedactedHasItsLength: that of what was given, not of how it's written.
func TestWhatIsRedactedHasItsLength(t *testing.T) {
	w := newWorld(t, nil)
	w.agent("web-01", nil)
	admin := w.pat("a", true, everyAgent, everyTool)
	long := strings.Repeat(`\u0041`, 2000)
	for args, want := range map[string]string{
		`{"path":"/f","content":"0123456789abcd"}`:                      `"content":"[14 bytes]"`,
		`{"path":"/f","content":"\u0041\n\ud83d\ude00ä"}`:               `"content":"[8 bytes]"`,
		`{"path":"/f","content":""}`:                                    `"content":"[0 bytes]"`,
		`{"path":"/f","content":"aGVsbG8=","encoding":"base64"}`:        `"content":"[8 bytes]"`,
		`{"path":"/\u0066","content":"a"}`:                              `"path":"/\u0066"`,
		`{"command":"x","env":{"A": "b"}}`:                              `"env":"[10 bytes]"`,
		`{"command":"` + long + `"}`:                                    `… [2000 bytes]"`,
		`{"argv":["x","` + strings.Repeat("y", 5000) + `"],"cwd":"/a"}`: `… [5008 bytes]"`,
	} {
		tool := "shell_exec"
		if strings.Contains(args, "path") {
			tool = "fs_write"
		}
		call := decode[Call](t, w.do("POST", "/api/v1/calls", admin, `{"agent_id":"web-01","tool":"`+tool+`","args":`+args+`}`))
		rows := decode[AuditList](t, w.do("GET", "/api/v1/audit?kind=intent&call_id="+call.CallID, admin, "")).Rows
		if len(rows) != 1 || !strings.Contains(rows[0].Exact, want) {
			t.Errorf("%.60s: want %s in %+v", args, want, rows)
		}
	}
}

package restapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/mux"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// disk plays the host's end of the two tools, with one file.
type disk struct {
	content []byte
	version string
	// spoil, if not nil, is the error with which a download ends after so many bytes.
	spoil   *protocol.Error
	after   int
	uploads chan upload
}

// upload is what came of one.
type upload struct {
	args capability.FSUploadIn
	size int64
	body []byte
	err  error
}

func (d *disk) stream(_ context.Context, req *protocol.Request, x mux.Exchange) *protocol.Response {
	if x.Sink != nil {
		return d.download(req, x.Sink)
	}
	in, err := capability.FSUpload.Decode(req.Args)
	if err != nil {
		return fault(protocol.Errorf(protocol.CodeInternal, "%v", err))
	}
	u := upload{args: in, size: x.Size}
	u.body, u.err = io.ReadAll(x.Body)
	d.uploads <- u
	if u.err != nil {
		return fault(protocol.Failf(capability.ReasonCut, "%v", u.err))
	}
	out := capability.FSUploadOut{Path: in.Path, Received: in.Offset + int64(len(u.body)), Created: in.Offset == 0}
	if !in.Probe {
		out.Complete, out.Size, out.SHA256 = true, out.Received, cmp.Or(in.SHA256, hexSum(u.body))
	}
	return result(out, nil)
}

func (d *disk) download(req *protocol.Request, to io.Writer) *protocol.Response {
	in, err := capability.FSDownload.Decode(req.Args)
	if err != nil {
		return fault(protocol.Errorf(protocol.CodeInternal, "%v", err))
	}
	size := int64(len(d.content))
	out := capability.FSDownloadOut{FSFileHead: capability.FSFileHead{Path: `/srv/a "b".bin`, Size: size, Mode: "0644", Modified: "2026-11-30T10:00:00.5Z", Version: d.version}}
	if in.IfVersion != "" && in.IfVersion != d.version {
		in.Offset, in.Length = 0, 0
	}
	if in.Offset < 0 {
		in.Offset = max(0, size+in.Offset)
	}
	if in.Offset >= size && in.Offset > 0 {
		return result(out, protocol.Failf(capability.ReasonRange, "too far"))
	}
	out.Offset, out.Length = in.Offset, size-in.Offset
	if in.Length > 0 {
		out.Length = min(out.Length, in.Length)
	}
	if in.Head {
		return result(out, nil)
	}
	head, _ := json.Marshal(out.FSFileHead)
	part := d.content[out.Offset:][:out.Length]
	if d.spoil != nil {
		part = part[:min(d.after, len(part))]
	}
	for _, b := range [][]byte{head[:7], head[7:], append([]byte{'\n'}, part...)} {
		if len(b) == 0 {
			continue
		}
		if _, err := to.Write(b); err != nil {
			return fault(protocol.Failf(protocol.ReasonIO, "%v", err))
		}
	}
	if d.spoil != nil {
		return fault(d.spoil)
	}
	out.SHA256 = hexSum(part)
	if in.FileHash || out.Length == size {
		out.FileSHA256 = hexSum(d.content)
	}
	return result(out, nil)
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

func fault(e *protocol.Error) *protocol.Response { return &protocol.Response{Error: e} }

func result(out any, e *protocol.Error) *protocol.Response {
	b, err := json.Marshal(out)
	if err != nil {
		return fault(protocol.Errorf(protocol.CodeInternal, "%v", err))
	}
	return &protocol.Response{Result: b, Error: e}
}

// TestALateBody: a client that stands still with its upload is told so, and the record says it,
// too; one that goes is no late one.
func TestALateBody(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.FileIdle = 200 * time.Millisecond })
	d := &disk{uploads: make(chan upload, 8)}
	w.hosts.stream = d.stream
	w.agent("web-01", nil)
	token := w.pat("me", false, everyAgent, everyTool)
	r, wr := io.Pipe()
	defer func() { _ = wr.Close() }()
	go func() { _, _ = wr.Write(make([]byte, 500)) }()
	resp := w.open(t, "PUT", filePath, token, r)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	p := decode[Problem](t, answerOf{resp.StatusCode, resp.Header, string(b)})
	if resp.StatusCode != http.StatusRequestTimeout || p.Error.Reason != "body_late" {
		t.Errorf("HTTP %d %s", resp.StatusCode, b)
	}
	got := decode[Call](t, w.do("GET", Prefix+"/calls/"+resp.Header.Get(CallIDHeader), token, ""))
	if got.State != "failed" || got.Error == nil || got.Error.Message != p.Error.Message || got.Error.Reason != "body_late" {
		t.Errorf("the record: %+v %+v", got, got.Error)
	}
}

// fileWorld is a world with a host that has a file, and a token for it.
func fileWorld(t *testing.T, size int) (*world, *disk, string) {
	t.Helper()
	w := newWorld(t, nil)
	d := &disk{content: bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size], version: "1f-2e-3d", uploads: make(chan upload, 8)}
	w.hosts.stream = d.stream
	w.agent("web-01", nil)
	return w, d, w.pat("me", false, everyAgent, everyTool)
}

const filePath = Prefix + "/agents/web-01/files?path=/srv/a.bin"

func TestARangeOfAFile(t *testing.T) {
	w, d, token := fileWorld(t, 100_000)
	whole, tag := string(d.content), `"`+d.version+`"`
	for _, c := range []struct {
		name, rng, ifRange string
		status             int
		span, body         string
	}{
		{"none", "", "", 200, "", whole},
		{"first", "bytes=0-0", "", 206, "bytes 0-0/100000", whole[:1]},
		{"middle", "bytes=17-40016", "", 206, "bytes 17-40016/100000", whole[17:40017]},
		{"open", "bytes=99990-", "", 206, "bytes 99990-99999/100000", whole[99990:]},
		{"all of it", "bytes=0-", "", 206, "bytes 0-99999/100000", whole},
		{"suffix", "bytes=-5", "", 206, "bytes 99995-99999/100000", whole[99995:]},
		{"long suffix", "bytes=-500000", "", 206, "bytes 0-99999/100000", whole},
		{"beyond the end", "bytes=99999-200000", "", 206, "bytes 99999-99999/100000", whole[99999:]},
		{"unsatisfiable", "bytes=100000-", "", 416, "bytes */100000", ""},
		{"nothing", "bytes=-0", "", 416, "bytes */100000", ""},
		{"backwards", "bytes=5-4", "", 200, "", whole},
		{"several", "bytes=0-1,4-5", "", 200, "", whole},
		{"another unit", "lines=0-1", "", 200, "", whole},
		{"no number", "bytes=a-b", "", 200, "", whole},
		{"empty", "bytes=-", "", 200, "", whole},
		{"the same file", "bytes=5-9", tag, 206, "bytes 5-9/100000", whole[5:10]},
		{"another file", "bytes=5-9", `"1-1-1"`, 200, "", whole},
		{"weak", "bytes=5-9", "W/" + tag, 200, "", whole},
		{"date", "bytes=5-9", "Mon, 30 Nov 2026 10:00:00 GMT", 200, "", whole},
		{"another and beyond", "bytes=100000-", `"1-1-1"`, 200, "", whole},
	} {
		var headers []string
		if c.rng != "" {
			headers = append(headers, "Range", c.rng)
		}
		if c.ifRange != "" {
			headers = append(headers, "If-Range", c.ifRange)
		}
		got := w.do("GET", filePath, token, "", headers...)
		if got.status != c.status || got.header.Get("Content-Range") != c.span || c.body != "" && got.body != c.body {
			t.Errorf("%s: HTTP %d, %q, %d bytes", c.name, got.status, got.header.Get("Content-Range"), len(got.body))
		}
		if c.status == 416 && got.code() != "tool_failed" {
			t.Errorf("%s: %s", c.name, got.body)
		}
		if c.status != 416 && (got.header.Get("ETag") != tag || got.header.Get("Content-Length") != fmt.Sprint(len(c.body)) || got.header.Get("Accept-Ranges") != "bytes") {
			t.Errorf("%s: %v", c.name, got.header)
		}
		if id := got.header.Get(CallIDHeader); decode[Call](t, w.do("GET", Prefix+"/calls/"+id, token, "")).Tool != "fs_download" {
			t.Errorf("%s: the call %q isn't there", c.name, id)
		}
	}
}

func TestWhatAFilesAnswerSays(t *testing.T) {
	w, d, token := fileWorld(t, 50_000)
	head := w.do("HEAD", filePath, token, "")
	if head.status != 200 || head.body != "" || head.header.Get("Content-Length") != "50000" || head.header.Get("ETag") != `"1f-2e-3d"` ||
		head.header.Get("Accept-Ranges") != "bytes" || head.header.Get("Last-Modified") != "Mon, 30 Nov 2026 10:00:00 GMT" || head.header.Get(CallIDHeader) == "" {
		t.Errorf("HEAD: %+v", head)
	}
	got := w.do("GET", filePath, token, "")
	if h := got.header; h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Disposition"), `attachment; filename=`) {
		t.Errorf("%v", h)
	}
	d.content = d.content[:1000] // small enough to be held back whole: the digest is known before the headers
	small := w.do("GET", filePath, token, "", "Range", "bytes=0-9", "Want-Repr-Digest", "sha-256=1")
	if small.header.Get("Content-Digest") != digestOf(d.content[:10]) || small.header.Get("Repr-Digest") != digestOf(d.content) {
		t.Errorf("%v", small.header)
	}
	d.content = nil
	if empty := w.do("GET", filePath, token, "", "Range", "bytes=0-"); empty.status != 200 || empty.body != "" || empty.header.Get("Content-Length") != "0" {
		t.Errorf("empty: %+v", empty)
	}
}

// TestDigestsInTrailers: a client that takes trailers gets the digests of what is streamed.
func TestDigestsInTrailers(t *testing.T) {
	w, d, token := fileWorld(t, 200_000)
	resp := w.open(t, "GET", filePath, token, nil, "TE", "trailers", "Range", "bytes=1000-", "Want-Repr-Digest", "sha-512=1, sha-256=5")
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(b, d.content[1000:]) || resp.Trailer.Get("Content-Digest") != digestOf(b) || resp.Trailer.Get("Repr-Digest") != digestOf(d.content) {
		t.Errorf("%d bytes, %v, %v", len(b), err, resp.Trailer)
	}
}

// open sends a request and leaves its answer's body to be read.
func (w *world) open(t *testing.T, method, path, token string, body io.Reader, headers ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestAFileThatFailsOnTheWayNeverLooksWhole: however late the failure comes, the last bytes
// and the trailer don't.
func TestAFileThatFailsOnTheWayNeverLooksWhole(t *testing.T) {
	w, d, token := fileWorld(t, 300_000)
	d.spoil = protocol.Failf(capability.ReasonChanged, "it changed")
	for _, d.after = range []int{100_000, 299_999, 300_000} {
		for _, te := range []string{"", "trailers"} {
			resp := w.open(t, "GET", filePath, token, nil, "TE", te)
			b, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if !errors.Is(err, io.ErrUnexpectedEOF) || len(b) >= 300_000 || resp.Trailer.Get("Content-Digest") != "" {
				t.Errorf("after %d, TE %q: %d bytes, %v, %v", d.after, te, len(b), err, resp.Trailer)
			}
		}
	}
	// As long as nothing went out, the failure is the answer.
	d.after = 10_000
	if got := w.do("GET", filePath, token, ""); got.status != http.StatusConflict || got.code() != "tool_failed" || got.header.Get(CallIDHeader) == "" || got.header.Get("ETag") != "" {
		t.Errorf("%+v", got)
	}
	// An agent that sends less than it says is no better.
	d.spoil, d.after = nil, 0
	w.hosts.stream = func(_ context.Context, _ *protocol.Request, x mux.Exchange) *protocol.Response {
		out := capability.FSDownloadOut{FSFileHead: capability.FSFileHead{Path: "/a", Size: 9, Mode: "0644", Modified: "x", Version: "1", Length: 9}}
		head, _ := json.Marshal(out.FSFileHead)
		_, _ = x.Sink.Write(append(head, "\n12345678"...))
		return result(out, nil)
	}
	if got := w.do("GET", filePath, token, ""); got.status != http.StatusBadGateway || got.body == "12345678" {
		t.Errorf("short: %+v", got)
	}
}

func TestTheHostsWordOnAFileBecomesAStatus(t *testing.T) {
	w, d, token := fileWorld(t, 10)
	for reason, status := range map[string]int{
		"enoent": 404, "eacces": 403, "outside_root": 403, "erofs": 403, "sha_mismatch": 412, "eexist": 412, "changed": 409,
		"eisdir": 422, "not_regular": 422, "digest": 422, "enospc": 507, "io": 502,
	} {
		d.spoil = protocol.Failf(reason, "why")
		got := w.do("GET", filePath, token, "")
		if p := decode[Problem](t, got); got.status != status || p.Error.Code != "tool_failed" || p.Error.Reason != reason || p.Error.Message != `web-01 says: "why"` {
			t.Errorf("%s: HTTP %d %s", reason, got.status, got.body)
		}
	}
}

func TestAnUploadReachesTheAgent(t *testing.T) {
	w, d, token := fileWorld(t, 0)
	sum := strings.Repeat("ab", 32)
	body := strings.Repeat("x", 700_000)
	put := func(body io.Reader, query string, headers ...string) (answerOf, upload) {
		t.Helper()
		resp := w.open(t, "PUT", filePath+query, token, body, headers...)
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answerOf{resp.StatusCode, resp.Header, string(b)}, <-d.uploads
	}
	got, u := put(strings.NewReader(body), "&mode=0755&create_parents=true&sha256="+sum+"&if_sha256=absent")
	want := capability.FSUploadIn{Path: "/srv/a.bin", Size: 700_000, SHA256: sum, Mode: "0755", CreateParents: true, IfSHA256: "absent"}
	if c := decode[Call](t, got); got.status != 201 || u.args != want || u.size != 700_000 || string(u.body) != body || u.err != nil || c.Tool != "fs_upload" || c.CallID != got.header.Get(CallIDHeader) {
		t.Errorf("HTTP %d %s; %+v of %d, %v", got.status, got.body, u.args, u.size, u.err)
	}
	got, u = put(io.MultiReader(strings.NewReader(body)), "") // of unknown length
	if got.status != 201 || u.args.Size != -1 || u.size != -1 || string(u.body) != body {
		t.Errorf("chunked: HTTP %d, %+v, %d", got.status, u.args, u.size)
	}
	got, u = put(strings.NewReader(body), "&upload=me&sha256="+sum, "Content-Range", "bytes 300000-999999/1000000")
	if got.status != 200 || u.args.Offset != 300_000 || u.args.Size != 1_000_000 || u.args.UploadID != "me" || u.size != 700_000 || got.header.Get(UploadOffset) != "1000000" {
		t.Errorf("range: HTTP %d, %+v, %d, %v", got.status, u.args, u.size, got.header)
	}
	raw := bytes.Repeat([]byte{0xab}, 32)
	digest := "sha-512=:AA==:, sha-256=:" + base64.StdEncoding.EncodeToString(raw) + ":"
	for _, name := range []string{"Repr-Digest", "Content-Digest"} {
		if got, u = put(strings.NewReader(body), "", name, digest); got.status != 201 || u.args.SHA256 != sum {
			t.Errorf("%s: HTTP %d, %+v", name, got.status, u.args)
		}
	}
	got, u = put(http.NoBody, "", "If-None-Match", "*")
	if got.status != 201 || u.args.Size != 0 || u.args.IfSHA256 != "absent" || len(u.body) != 0 {
		t.Errorf("empty: HTTP %d, %+v", got.status, u.args)
	}
	// A chunked body that isn't as long as its Content-Range says never ends in order.
	for _, n := range []int{5, 20} {
		resp := w.open(t, "PUT", filePath+"&upload=me&sha256="+sum, token, io.MultiReader(strings.NewReader(body[:n])), "Content-Range", "bytes 0-9/10")
		_ = resp.Body.Close()
		if u := <-d.uploads; u.err == nil || len(u.body) > 10 {
			t.Errorf("%d of 10 bytes: %d, %v", n, len(u.body), u.err)
		}
	}
	for _, method := range []string{"GET", "HEAD"} {
		got := w.do(method, filePath+"&upload=me&size=77&sha256="+sum, token, "")
		u := <-d.uploads
		if got.status != 200 || got.header.Get(UploadOffset) != "0" || !u.args.Probe || u.args.Size != 77 || u.args.UploadID != "me" {
			t.Errorf("%s: %+v, %+v", method, got, u.args)
		}
	}
}

// TestAnUploadThatBreaksOffIsNoEnd: the agent's reader must see a failure, not an end.
func TestAnUploadThatBreaksOffIsNoEnd(t *testing.T) {
	w, d, token := fileWorld(t, 0)
	for _, size := range []int64{1000, -1} {
		r, wr := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), "PUT", w.url+filePath, r)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = size
		req.Header.Set("Authorization", "Bearer "+token)
		var sent sync.WaitGroup
		sent.Go(func() {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		})
		_, _ = wr.Write(make([]byte, 500))
		_ = wr.CloseWithError(errors.New("the line broke"))
		sent.Wait()
		select {
		case u := <-d.uploads:
			if u.err == nil || len(u.body) > 500 {
				t.Errorf("size %d: %d bytes, %v", size, len(u.body), u.err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("size %d: the agent still reads", size)
		}
	}
}

func TestWhoMayMoveFiles(t *testing.T) {
	w, _, all := fileWorld(t, 10)
	w.agent("db-01", nil)
	w.agent("off-01", nil)
	w.hosts.mu.Lock()
	w.hosts.online["off-01"] = false
	w.hosts.mu.Unlock()
	shell := w.pat("shell", false, everyAgent, fleet.ToolSet{Names: []string{"shell_exec"}})
	web := w.pat("web", false, fleet.AgentSet{IDs: []fleet.AgentID{"web-01"}}, everyTool)
	at := func(agent string) string { return Prefix + "/agents/" + agent + "/files?path=/srv/a.bin" }
	var alike []string
	for _, method := range []string{"GET", "PUT"} {
		for _, c := range []struct {
			agent, token string
			status       int
			code         string
		}{
			{"web-01", "", 401, "unauthenticated"},
			{"web-01", "drv_pat_wrong", 401, "unauthenticated"},
			{"web-01", shell, 404, "unknown_tool"},
			{"off-01", all, 503, "offline"},
			{"nobody", web, 404, "unknown_agent"}, {"db-01", web, 404, "unknown_agent"}, {"Web-01", web, 404, "unknown_agent"},
			{"web%2D0", web, 404, "unknown_agent"}, {"%ff", web, 404, "unknown_agent"}, {"web-01%00", web, 404, "unknown_agent"},
		} {
			got := w.do(method, at(c.agent), c.token, "")
			if got.status != c.status || got.code() != c.code || c.status == 401 && got.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s: HTTP %d %s", method, c.agent, got.status, got.body)
			}
			if c.code == "unknown_agent" {
				alike = append(alike, got.body)
			}
		}
	}
	for _, body := range alike {
		if body != alike[0] {
			t.Errorf("these can be told apart:\n%s%s", alike[0], body)
		}
	}
	if n := w.hosts.executed(); n != 0 {
		t.Errorf("%d calls reached a host", n)
	}
	// The tools themselves can't be called without their bytes.
	got := w.do("POST", Prefix+"/calls", all, `{"agent_id":"web-01","tool":"fs_download","args":{"path":"/a"}}`)
	if got.status != 400 || !strings.Contains(got.body, "drover cp") {
		t.Errorf("%+v", got)
	}
	if got := w.refusals(); got["unknown_agent"] != 12 || got["unknown_tool"] != 2 || got["unauthenticated"] != 4 || got["offline"] != 2 {
		t.Errorf("refusals: %v", got)
	}
}

func TestFileRequestsAreReadStrictly(t *testing.T) {
	w, _, token := fileWorld(t, 10)
	base := Prefix + "/agents/web-01/files"
	for _, c := range []struct {
		method, query string
		headers       []string
	}{
		{"GET", "", nil}, {"GET", "?path=", nil}, {"GET", "?path=/a&path=/b", nil}, {"GET", "?path=/a&mode=0644", nil}, {"GET", "?path=/a&size=1", nil},
		{"GET", "?path=/a;b=c", nil}, {"GET", "?path=/a%ff", nil}, {"GET", "?path=/a&upload=x", nil}, {"GET", "?path=/a", []string{"If-Match", `"1"`}},
		{"GET", "?path=%2Fa%zz", nil},
		{"PUT", "?path=/a&size=1", nil}, {"PUT", "?path=/a&create_parents=yes", nil}, {"PUT", "?path=/a", []string{"Content-Encoding", "gzip"}},
		{"PUT", "?path=/a", []string{"If-None-Match", `"1"`}}, {"PUT", "?path=/a", []string{"If-Unmodified-Since", "x"}},
		{"PUT", "?path=/a", []string{"Content-Range", "bytes 0-4/*"}}, {"PUT", "?path=/a", []string{"Content-Range", "bytes 0-3/5"}},
		{"GET", "?path=/a", []string{"If-Match", ""}}, {"GET", "?path=/a", []string{"Range", "bytes=0-1", "Range", "bytes=2-3"}},
		{"PUT", "?path=/a", []string{"If-None-Match", ""}}, {"PUT", "?path=/a", []string{"If-None-Match", "*", "If-None-Match", `"1"`}},
		{"PUT", "?path=/a", []string{"Content-Range", "bytes 0-4/9", "Content-Range", "bytes 0-4/5"}}, {"PUT", "?path=/a", []string{"Content-Range", ""}},
		{"PUT", "?path=/a", []string{"Repr-Digest", "sha-256=:AA==:"}}, {"PUT", "?path=/a", []string{"Repr-Digest", "sha-512=:AA==:"}},
		{"PUT", "?path=/a&sha256=" + strings.Repeat("cd", 32), []string{"Repr-Digest", "sha-256=:q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=:"}},
		{"PUT", "?path=/a&upload=x", []string{"Content-Range", "bytes 0-4/9", "Content-Digest", "sha-256=:q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=:"}},
		{"PUT", "?path=/a", []string{"Content-Range", "bytes 1-5/5"}}, {"PUT", "?path=/a", []string{"Content-Range", "bytes 5-1/9"}},
	} {
		body := ""
		if c.method == "PUT" {
			body = "12345"
		}
		if got := w.do(c.method, base+c.query, token, body, c.headers...); got.status != 400 || got.code() != "bad_args" {
			t.Errorf("%s %s %v: HTTP %d %s", c.method, c.query, c.headers, got.status, got.body)
		}
	}
	if got := w.do("POST", base+"?path=/a", token, ""); got.status != 405 {
		t.Errorf("POST: %+v", got)
	}
	if n := w.hosts.executed(); n != 0 {
		t.Errorf("%d calls reached the host", n)
	}
}

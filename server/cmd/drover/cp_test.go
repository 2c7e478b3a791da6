package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
	"github.com/drover-fleet/drover/tests/harness"
)

func TestWhichSideIsAnAgents(t *testing.T) {
	for word, want := range map[string]side{
		"web-01:/etc/hosts": {"web-01", "/etc/hosts"}, "w:/x": {"w", "/x"}, `web-01:C:\x`: {"web-01", `C:\x`}, "web-01:c:/x": {"web-01", "c:/x"},
		"./web-01:/etc/hosts": {"", "./web-01:/etc/hosts"}, `C:\x`: {"", `C:\x`}, `c:\x`: {"", `c:\x`}, "-": {"", "-"}, "/a:b": {"", "/a:b"}, "file": {"", "file"}, ":x": {"", ":x"},
	} {
		if got, err := parseSide(word); err != nil || got != want {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
	for word, want := range map[string]string{
		"": "empty", "Web-01:/x": "no agent id", "web_01:/x": "no agent id", "web-01:x": "write ./web-01:x", "web-01:": "absolute", "web-01:~/x": "absolute", "C:/x": "no agent id",
	} {
		if got, err := parseSide(word); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
}

func TestCpRefusesWhatItCannotMean(t *testing.T) {
	r := run{env: map[string]string{"DROVER_PAT": "drv_pat_x", "DROVER_URL": "http://127.0.0.1:1"}}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"a"}, "name the source and the destination"},
		{[]string{"a", "b"}, "one side must be AGENT:PATH"},
		{[]string{"web-01:/a", "db-01:/b"}, "one side must be AGENT:PATH"},
		{[]string{"--json", "web-01:/a", "-"}, "can't both go"},
		{[]string{"--nope", "a", "web-01:/b"}, "bad_args"},
		{[]string{"-", "web-01:/tmp/"}, "has no name"},
		{[]string{"web-01:/", "."}, "has no name"},
		{[]string{"/nonexistent/x", "web-01:/b"}, "tool_failed (enoent): the local file"},
		{[]string{"web-01:/b", "/nonexistent/x/y"}, "tool_failed (enoent): the local file"},
		{[]string{"/", "web-01:/b"}, "is a folder"},
	} {
		if got := r.drover(t.Context(), append([]string{"cp"}, c.args...)...); got.code != exitCall || !strings.Contains(got.err, c.want) || got.out != "" {
			t.Errorf("%q: %+v", c.args, got)
		}
	}
	if got := r.drover(t.Context(), "cp", "web-01:/a", t.TempDir()); got.code != exitCall || !strings.Contains(got.err, "no Drover server answers") {
		t.Errorf("no server: %+v", got)
	}
}

// noise is content that no two places have in common.
func noise(n int) []byte {
	b := make([]byte, n)
	if _, err := rand.NewChaCha8([32]byte{byte(n)}).Read(b); err != nil {
		panic(err) // it never fails
	}
	return b
}

func put(t *testing.T, path string, b []byte, mode os.FileMode) string {
	t.Helper()
	if err := os.WriteFile(path, b, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func get(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCpBothWays(t *testing.T) {
	_, r := fleet1(t)
	host, here := t.TempDir(), t.TempDir()
	for _, size := range []int{0, 1, 100_000, 5 << 20} {
		content := noise(size)
		src := put(t, filepath.Join(here, fmt.Sprint("src-", size)), content, 0o600)
		up := r.drover(t.Context(), "cp", "--json", "--mkdir", "--mode", "0750", src, "web-01:"+host+"/new/dir/")
		var got copied
		if err := json.Unmarshal([]byte(up.out), &got); err != nil || up.code != 0 || up.err != "" {
			t.Fatalf("%d: %+v", size, up)
		}
		there := host + "/new/dir/" + filepath.Base(src)
		sum := sha256.Sum256(content)
		if got.Direction != "upload" || got.Agent != "web-01" || got.Path != there || got.Size != int64(size) || got.SHA256 != hex.EncodeToString(sum[:]) || got.CallID == "" {
			t.Errorf("%d: %+v", size, got)
		}
		if info, err := os.Stat(there); err != nil || info.Mode() != 0o750 || !bytes.Equal(get(t, there), content) {
			t.Errorf("%d: %v, %v", size, info, err)
		}
		dst := filepath.Join(here, "dst")
		put(t, dst, []byte("old"), 0o640)
		if down := r.drover(t.Context(), "cp", "web-01:"+there, dst); down.code != 0 || down.out != "" || down.err != "" || !bytes.Equal(get(t, dst), content) {
			t.Errorf("%d: %+v", size, down)
		}
		if info, err := os.Stat(dst); err != nil || info.Mode() != 0o640 {
			t.Errorf("%d: %v, %v", size, info, err)
		}
		if out := r.drover(t.Context(), "cp", "web-01:"+there, "-"); out.code != 0 || out.out != string(content) {
			t.Errorf("%d: to standard output: %d bytes, %s", size, len(out.out), out.err)
		}
		in := r
		in.stdin = string(content)
		if got := in.drover(t.Context(), "cp", "-", "web-01:"+host+"/piped"); got.code != 0 || !bytes.Equal(get(t, host+"/piped"), content) {
			t.Errorf("%d: from standard input: %+v", size, got)
		}
	}
	if left, err := filepath.Glob(here + "/.drover*"); err != nil || len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCpSaysWhatIsWrong(t *testing.T) {
	_, r := fleet1(t)
	host := t.TempDir()
	src := put(t, filepath.Join(t.TempDir(), "src"), noise(3<<20), 0o600)
	for _, c := range []struct {
		from, to, want string
	}{
		{src, "web-01:" + host + "/no/folder", "enoent"},
		{src, "web-01:" + host + "/no/folder", "--mkdir"},
		{src, "web-01:" + host, "(to copy into a folder, end its path with /)"},
		{"web-01:" + host + "/none", t.TempDir(), "enoent"},
		{"web-01:" + host, t.TempDir(), "eisdir"},
		{src, "nobody:" + host + "/x", "unknown_agent"},
		{"nobody:" + host + "/x", t.TempDir(), "unknown_agent"},
	} {
		if got := r.drover(t.Context(), "cp", c.from, c.to); got.code != exitCall || !strings.Contains(got.err, c.want) {
			t.Errorf("%s to %s: %+v", c.from, c.to, got)
		}
	}
	if got, err := os.ReadDir(host); err != nil || len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	r.env["DROVER_PAT"] = "drv_pat_wrong"
	if got := r.drover(t.Context(), "cp", src, "web-01:"+host+"/x"); got.code != exitCall || !strings.Contains(got.err, invalidPAT+" (it was taken from DROVER_PAT)") {
		t.Errorf("%+v", got)
	}
}

// An agent that's offline when a copy begins isn't waited for: nothing is lost by saying so.
func TestCpToAnOfflineAgent(t *testing.T) {
	f := harness.New(t, harness.Options{})
	host := f.Agent("web-01")
	host.Stop()
	host.WaitOffline()
	r := run{env: map[string]string{"DROVER_URL": f.URL, "DROVER_PAT": f.Admin}}
	small, large := put(t, t.TempDir()+"/small", noise(1000), 0o600), put(t, t.TempDir()+"/large", noise(3<<20), 0o600)
	for _, args := range [][]string{{small, "web-01:/tmp/x"}, {large, "web-01:/tmp/x"}, {"web-01:/etc/hosts", t.TempDir()}} {
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		got := r.drover(ctx, append([]string{"cp"}, args...)...)
		stop()
		if got.code != exitCall || !strings.HasPrefix(got.err, "drover: offline: agent web-01 is offline") || strings.Count(got.err, "\n") != 1 {
			t.Errorf("%q: %+v", args, got)
		}
	}
}

// One that goes away in the middle is waited for, as is one whose server was away: it comes
// back a little later than its server.
func TestCpWaitsForAnAgentThatWasThere(t *testing.T) {
	offline, cut := fleet.Errorf(protocol.CodeOffline, "it's offline"), fmt.Errorf("x: %w", errCut)
	for name, c := range map[string]struct {
		met  bool
		ends []error
		want error
	}{
		"offline at first":            {false, []error{offline, nil}, offline},
		"offline after it was there":  {true, []error{offline, offline, nil}, nil},
		"offline after a cut":         {false, []error{cut, offline, offline, nil}, nil},
		"no server, and nothing sent": {false, []error{errDial, nil}, errDial},
	} {
		synctest.Test(t, func(t *testing.T) {
			var said bytes.Buffer
			tr := &transfer{app: &app{err: &said}, o: &cpFlags{resume: true}, met: c.met}
			tries := 0
			err := tr.persist(t.Context(), func(bool) error { tries++; return c.ends[tries-1] })
			if !errors.Is(err, c.want) || c.want == nil && tries != len(c.ends) || c.want != nil && tries != 1 {
				t.Errorf("%s: %d tries, %v\n%s", name, tries, err, said.String())
			}
		})
	}
}

// A download that was ended goes on where it stopped, unless the file is another by then.
func TestCpGoesOnWhereAnEarlierRunStopped(t *testing.T) {
	f, r := fleet1(t)
	host, here := t.TempDir(), t.TempDir()
	content := noise(3 << 20)
	there := put(t, host+"/f", content, 0o600)
	dst := here + "/f"
	begin := func() {
		t.Helper()
		var part receiving
		part.transfer = &transfer{agent: "web-01", remote: there, local: dst}
		version := versionOf(t, f.URL+restapi.Prefix+"/agents/web-01/files?path="+there, f.Admin)
		put(t, here+"/"+part.partPattern()+version+partEnd, content[:1<<20], 0o600)
	}
	begin()
	var got copied
	run := r.drover(t.Context(), "cp", "--json", "web-01:"+there, dst)
	if err := json.Unmarshal([]byte(run.out), &got); err != nil || got.Resumed != 1<<20-1 || !bytes.Equal(get(t, dst), content) {
		t.Errorf("%+v %v", run, err)
	}
	begin()
	content = noise(3<<20 + 1)
	put(t, there, content, 0o600)
	got = copied{}
	run = r.drover(t.Context(), "cp", "--json", "web-01:"+there, dst)
	if err := json.Unmarshal([]byte(run.out), &got); err != nil || got.Resumed != 0 || !bytes.Equal(get(t, dst), content) {
		t.Errorf("%+v %v", run, err)
	}
	// What is there isn't what the host has: the copy is refused as a whole.
	begin()
	spoiled := mustGlob(t, here+"/.drover*"+partEnd)
	put(t, spoiled, make([]byte, 1<<20), 0o600)
	if run := r.drover(t.Context(), "cp", "web-01:"+there, dst); run.code != exitCall || !strings.Contains(run.err, "SHA-256") || !bytes.Equal(get(t, dst), content) {
		t.Errorf("%+v", run)
	}
	if left, _ := filepath.Glob(here + "/.drover*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A download that is cut for good says what it leaves and where; the same command goes on from
// there, also with another token. With --resume=false nothing is left.
func TestCpSaysWhatACutDownloadLeaves(t *testing.T) {
	f, r := fleet1(t)
	host, here := t.TempDir(), t.TempDir()
	content := noise(64 << 20) // more than is on the way at once
	there, dst := put(t, host+"/f", content, 0o600), here+"/f"
	for _, resume := range []bool{false, true} {
		token, id := f.PAT("short", "web-01", "fs", false)
		args := []string{"cp", "--url", revokedMidway(t, f, id), "--token", token, "web-01:" + there, dst}
		if !resume {
			args = append(args, "--resume=false")
		}
		got := r.drover(t.Context(), args...)
		left, err := filepath.Glob(here + "/.drover*" + partEnd)
		switch {
		case err != nil || got.code != exitCall || got.out != "":
			t.Fatalf("%+v %v", got, err)
		case !resume && (len(left) != 0 || strings.Contains(got.err, "kept")):
			t.Errorf("with --resume=false: %v is left, and it says %s", left, got.err)
		case resume && (len(left) != 1 || !strings.Contains(got.err, "unauthenticated") || !strings.Contains(got.err, "what came is kept in \""+left[0]+"\": the same command goes on from there")):
			t.Errorf("%v is left, and it says %s", left, got.err)
		}
	}
	var c copied
	got := r.drover(t.Context(), "cp", "--json", "web-01:"+there, dst)
	if err := json.Unmarshal([]byte(got.out), &c); err != nil || c.Resumed == 0 || !bytes.Equal(get(t, dst), content) {
		t.Errorf("%+v %v", got, err)
	}
	if left, _ := filepath.Glob(here + "/.drover*"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// revokedMidway is the URL of a way to the server on which a PAT is revoked once the first
// 4 MiB of a file have passed. The rest comes so slowly that the server has ended the
// transfer before.
func revokedMidway(t *testing.T, f *harness.Fleet, pat string) string {
	t.Helper()
	to, err := url.Parse(f.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	proxy.ModifyResponse = func(resp *http.Response) error {
		if strings.HasSuffix(resp.Request.URL.Path, "/files") && resp.StatusCode == http.StatusOK {
			call := "/api/v1/calls/" + resp.Header.Get(restapi.CallIDHeader) + "?wait_seconds=1"
			resp.Body = &paced{ReadCloser: resp.Body, pause: func() {
				f.REST(f.Admin).Do("DELETE", "/api/v1/pats/"+pat, "")
				f.REST(f.Admin).Do("GET", call, "")
			}}
		}
		return nil
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

// paced is a body that pauses after every 4 MiB.
type paced struct {
	io.ReadCloser
	pause func()
	n     int
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	if p.n >= 4<<20 {
		p.n = 0
		p.pause()
	}
	n, err := p.ReadCloser.Read(b)
	p.n += n
	return n, err
}

// versionOf asks for a file's ETag.
func versionOf(t *testing.T, url, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodHead, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return strings.Trim(resp.Header.Get("ETag"), `"`)
}

func mustGlob(t *testing.T, pattern string) string {
	t.Helper()
	got, err := filepath.Glob(pattern)
	if err != nil || len(got) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	return got[0]
}

// A name travels as the bytes it is, whatever it looks like.
func TestCpKeepsNames(t *testing.T) {
	_, r := fleet1(t)
	for _, name := range []string{`a\x41b`, "caf\xe9", "tab\there", "Ünï", `back\slash`} {
		host, here, back := t.TempDir(), t.TempDir(), t.TempDir()
		src := put(t, filepath.Join(here, name), []byte(name), 0o600)
		if got := r.drover(t.Context(), "cp", src, "web-01:"+host+"/"); got.code != 0 || string(get(t, filepath.Join(host, name))) != name {
			t.Errorf("%q up: %+v", name, got)
		}
		if got := r.drover(t.Context(), "cp", "web-01:"+host+"/"+text.EscapeName(name), back); got.code != 0 || string(get(t, filepath.Join(back, name))) != name {
			t.Errorf("%q down: %+v", name, got)
		}
	}
	host, back := t.TempDir(), t.TempDir()
	put(t, filepath.Join(host, "caf\xe9"), []byte("x"), 0o600)
	if got := r.drover(t.Context(), "cp", "web-01:"+host+"/caf\xe9", back); got.code != 0 || string(get(t, filepath.Join(back, "caf\xe9"))) != "x" {
		t.Errorf("as bytes: %+v", got)
	}
	if got := r.drover(t.Context(), "cp", "web-01:"+host+`/..\x2f..\x2fup`, back); got.code != exitCall || !strings.Contains(got.err, "bad_args") {
		t.Errorf("a separator in a name: %+v", got)
	}
}

package e2e

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/tests/harness"
)

// moved is what a client sees of a transfer.
type moved struct {
	id     string
	status int
	header http.Header
	body   string
	whole  bool // the answer ended in order
	error  harness.APIError
}

// transfer asks for a file, or sends one; its request's body is chunked where it's given.
func transfer(f *harness.Client, method, query string, body io.Reader, headers ...string) <-chan moved {
	out := make(chan moved, 1)
	go func() {
		defer close(out)
		req, err := http.NewRequest(method, f.URL+"/api/v1/agents/raw-01/files?path=/srv/a"+query, body)
		if err != nil {
			f.T.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+f.Admin)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			out <- moved{}
			return
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		m := moved{id: resp.Header.Get("Drover-Call-Id"), status: resp.StatusCode, header: resp.Header, body: string(b), whole: err == nil}
		var problem struct {
			Error harness.APIError `json:"error"`
		}
		if m.status >= 400 && json.Unmarshal(b, &problem) == nil {
			m.error = problem.Error
		}
		out <- m
	}()
	return out
}

// stream is one even stream of a raw agent after the other.
type stream struct {
	a    *harness.RawAgent
	last uint32
}

// send opens a call's stream and sends it whole.
func (s *stream) send(t *testing.T, id string, content ...string) {
	t.Helper()
	s.last += 2
	if err := s.a.Send(fmt.Sprintf(`{"type":"open","stream":%d,"kind":"file","id":%q,"size":-1}`, s.last, id)); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(content, "")
	for len(all) > 0 {
		n := min(len(all), protocol.MaxChunk)
		s.chunk(t, all[:n], 0)
		all = all[n:]
	}
	s.chunk(t, "", protocol.FlagEnd)
}

func (s *stream) chunk(t *testing.T, payload string, flag byte) {
	t.Helper()
	b := append(binary.BigEndian.AppendUint32(nil, s.last), flag)
	if err := s.a.SendBinary(append(b, payload...)); err != nil {
		t.Fatal(err)
	}
}

// description is the head of a file, as one line.
func description(t *testing.T, length int) (out capability.FSDownloadOut, line string) {
	t.Helper()
	out.FSFileHead = capability.FSFileHead{Path: "/srv/a", Size: int64(length), Mode: "0644", Modified: "2026-11-30T10:00:00Z", Version: "1-2-3", Length: int64(length)}
	b, err := json.Marshal(out.FSFileHead)
	if err != nil {
		t.Fatal(err)
	}
	return out, string(b) + "\n"
}

func hexOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func respond(t *testing.T, a *harness.RawAgent, id string, result any, fails string) {
	t.Helper()
	b, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	frame := fmt.Sprintf(`{"type":"response","id":%q,"result":%s,"took_us":1}`, id, b)
	if fails != "" {
		frame = fmt.Sprintf(`{"type":"response","id":%q,"error":%s,"took_us":1}`, id, fails)
	}
	if err := a.Send(frame); err != nil {
		t.Fatal(err)
	}
}

// agrees compares what a client was answered with the record: an answer that is whole and no
// error is a success there, an error is the same error, and what broke off is no success.
func agrees(t *testing.T, f *harness.Client, id string, got moved, state, reason string) {
	t.Helper()
	call := await(t, f, id)
	if call.Error == nil {
		call.Error = &harness.APIError{}
	}
	switch {
	case call.State != state, call.Error.Reason != reason:
		t.Errorf("the record says %s %+v, want %s %s; the answer was %+v", call.State, call.Error, state, reason, got)
	case (state == "succeeded") != (got.whole && got.status/100 == 2):
		t.Errorf("the record says %s, and the answer was %+v", call.State, got)
	case got.status >= 400 && got.body != "" && got.error != *call.Error: // the answer to HEAD has none
		t.Errorf("the record says %+v, and the answer %+v", call.Error, got.error)
	}
}

// TestABusyAgentsFile: a file that its agent has no place for just now says when to come again.
func TestABusyAgentsFile(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	answer := transfer(&f.Client, "GET", "", nil)
	req, err := a.Request()
	if err != nil {
		t.Fatal(err)
	}
	respond(t, a, req.ID, nil, `{"code":"rate_limited","reason":"busy","message":"x"}`)
	got := <-answer
	agrees(t, &f.Client, req.ID, got, "not_started", "busy")
	if got.status != 429 || !soon(got.header) {
		t.Errorf("%+v", got)
	}
}

// TestAFileAndItsRecordAgree: however an agent's word and the bytes differ, a download's
// answer and the record tell the same end.
func TestAFileAndItsRecordAgree(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	s := &stream{a: a}
	small, large := strings.Repeat("s", 1000), strings.Repeat("l", 40_000) // of a large one the answer begins before its end
	for _, c := range []struct {
		name, method, content, sum string
		announced                  int
		spoil                      func(line string) string
		fails                      string
		state, reason              string
	}{
		{"as it should be", "GET", small, hexOf(small), 1000, nil, "", "succeeded", ""},
		{"large, as it should be", "GET", large, hexOf(large), 40_000, nil, "", "succeeded", ""},
		{"shorter", "GET", small, hexOf(small), 1001, nil, "", "failed", "bad_result"},
		{"large, shorter", "GET", large, hexOf(large), 40_001, nil, "", "failed", "bad_result"},
		{"longer", "GET", small, hexOf(small), 999, nil, `{"code":"cancelled","message":"x"}`, "failed", "bad_result"},
		{"large, longer", "GET", large, hexOf(large), 39_999, nil, `{"code":"cancelled","message":"x"}`, "failed", "bad_result"},
		{"longer, and unmoved", "GET", small, hexOf(small), 999, nil, "", "failed", "bad_result"},
		{"other bytes", "GET", small, hexOf(large), 1000, nil, "", "failed", "bad_result"},
		{"large, other bytes", "GET", large, hexOf(small), 40_000, nil, "", "failed", "bad_result"},
		{"another file", "GET", small, hexOf(small), 1000, func(line string) string { return strings.Replace(line, "1-2-3", "1-2-4", 1) }, "", "failed", "bad_result"},
		{"no description", "GET", small, hexOf(small), 1000, func(string) string { return "[]\n" }, "", "failed", "bad_result"},
		{"a file that nobody asked for", "HEAD", small, hexOf(small), 1000, nil, "", "failed", "bad_result"},
		{"cancelled by nobody", "GET", small, hexOf(small), 1000, nil, `{"code":"cancelled","message":"x"}`, "outcome_unknown", "contradiction"},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := transfer(&f.Client, c.method, "", nil)
			req, err := a.Request()
			if err != nil {
				t.Fatal(err)
			}
			out, line := description(t, c.announced)
			if out.SHA256 = c.sum; c.spoil != nil {
				line = c.spoil(line)
			}
			s.send(t, req.ID, line, c.content)
			respond(t, a, req.ID, out, c.fails)
			got := <-answer
			agrees(t, &f.Client, req.ID, got, c.state, c.reason)
			if c.state == "succeeded" && got.body != c.content {
				t.Errorf("%d bytes came", len(got.body))
			}
		})
	}
	t.Run("no file at all", func(t *testing.T) {
		answer := transfer(&f.Client, "GET", "", nil)
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		out, _ := description(t, 0)
		respond(t, a, req.ID, out, "")
		agrees(t, &f.Client, req.ID, <-answer, "failed", "bad_result")
	})
	t.Run("cut at its end", func(t *testing.T) {
		answer := transfer(&f.Client, "GET", "", nil)
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		out, line := description(t, len(large))
		out.SHA256 = hexOf(large)
		s.send(t, req.ID, line, large)
		a.Close()
		comeBack(t, a)
		s.last = 0
		tellFate(t, a, req.ID, `"state":"done","ended":true,"ago_ms":5`)
		respond(t, a, req.ID, out, "")
		agrees(t, &f.Client, req.ID, <-answer, "failed", "cut")
	})
	t.Run("the server is restarted at its end", func(t *testing.T) {
		answer := transfer(&f.Client, "GET", "", nil)
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		out, line := description(t, len(large))
		out.SHA256 = hexOf(large)
		s.send(t, req.ID, line, large)
		f.Restart()
		comeBack(t, a)
		tellFate(t, a, req.ID, `"state":"done","ended":true,"ago_ms":5`)
		respond(t, a, req.ID, out, "")
		agrees(t, &f.Client, req.ID, <-answer, "failed", "cut")
	})
}

// TestAnUploadAndItsRecordAgree: of an upload, too.
func TestAnUploadAndItsRecordAgree(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	const body = "0123456789"
	whole := capability.FSUploadOut{Path: "/srv/a", Received: 10, Complete: true, Size: 10, SHA256: hexOf(body), Mode: "0644"}
	part := capability.FSUploadOut{Path: "/srv/a", Received: 10}
	with := func(out capability.FSUploadOut, change func(*capability.FSUploadOut)) capability.FSUploadOut {
		change(&out)
		return out
	}
	resumed := "&upload=u&sha256=" + hexOf(body+body)
	for _, c := range []struct {
		name, query, span string
		body              string
		out               capability.FSUploadOut
		fails             string
		state, reason     string
	}{
		{"as it should be", "", "", body, whole, "", "succeeded", ""},
		{"with its sum", "&sha256=" + strings.ToUpper(hexOf(body)), "", body, whole, "", "succeeded", ""},
		{"a part", resumed, "bytes 0-9/20", body, part, "", "succeeded", ""},
		{"less came", "", "", body, with(whole, func(o *capability.FSUploadOut) { o.Received = 9 }), "", "outcome_unknown", "contradiction"},
		{"another size", "", "", body, with(whole, func(o *capability.FSUploadOut) { o.Size = 11 }), "", "outcome_unknown", "contradiction"},
		{"other content", "", "", body, with(whole, func(o *capability.FSUploadOut) { o.SHA256 = hexOf("x") }), "", "outcome_unknown", "contradiction"},
		{"not what was promised", "&sha256=" + hexOf(body), "", body, with(whole, func(o *capability.FSUploadOut) { o.SHA256 = hexOf("x") }), "", "outcome_unknown", "contradiction"},
		{"incomplete", "", "", body, part, "", "outcome_unknown", "contradiction"},
		{"complete too early", resumed, "bytes 0-9/20", body, whole, "", "outcome_unknown", "contradiction"},
		{"cancelled by nobody", "", "", body, whole, `{"code":"cancelled","message":"x"}`, "outcome_unknown", "contradiction"},
		{"the body broke", resumed, "bytes 0-9/20", body[:5], whole, `{"code":"tool_failed","reason":"partial","message":"x"}`, "failed", "body_cut"},
		{"the host's disk is full", resumed, "bytes 0-9/20", body[:5], whole, `{"code":"tool_failed","reason":"enospc","message":"x"}`, "failed", "enospc"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var headers []string
			if c.span != "" {
				headers = []string{"Content-Range", c.span}
			}
			answer := transfer(&f.Client, "PUT", c.query, io.MultiReader(strings.NewReader(c.body)), headers...)
			req, err := a.Request()
			if err != nil {
				t.Fatal(err)
			}
			if err := readFile(a); err != nil {
				t.Fatal(err)
			}
			respond(t, a, req.ID, c.out, c.fails)
			agrees(t, &f.Client, req.ID, <-answer, c.state, c.reason)
		})
	}
	t.Run("before all was sent", func(t *testing.T) {
		r, w := io.Pipe()
		answer := transfer(&f.Client, "PUT", "", r)
		defer func() { _ = w.Close() }()
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
		req, err := a.Request()
		if err != nil {
			t.Fatal(err)
		}
		respond(t, a, req.ID, whole, "")
		agrees(t, &f.Client, req.ID, <-answer, "outcome_unknown", "contradiction")
	})
}

// readFile reads until a file's stream ends, or is reset.
func readFile(a *harness.RawAgent) error {
	for {
		b, err := a.NextBinary()
		if err != nil {
			return err
		}
		if len(b) < protocol.ChunkHeader {
			return errors.New("a chunk without a header")
		}
		if b[4] != 0 {
			return nil
		}
	}
}

// TestADownloadWhoseClientGoes: a download ends as cancelled when its client has gone, and
// says why.
func TestADownloadWhoseClientGoes(t *testing.T) {
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	s := &stream{a: a}
	req, err := http.NewRequest("GET", f.URL+"/api/v1/agents/raw-01/files?path=/srv/a", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.Admin)
	began := make(chan *http.Response, 1)
	go func() {
		defer close(began)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			began <- resp
		}
	}()
	call, err := a.Request()
	if err != nil {
		t.Fatal(err)
	}
	_, line := description(t, 1<<30)
	s.last = 2
	if err := a.Send(fmt.Sprintf(`{"type":"open","stream":2,"kind":"file","id":%q,"size":-1}`, call.ID)); err != nil {
		t.Fatal(err)
	}
	s.chunk(t, line, 0)
	for range 3 {
		s.chunk(t, strings.Repeat("x", protocol.MaxChunk-100), 0)
	}
	resp := <-began
	if resp == nil {
		t.Fatal("no answer began")
	}
	_ = resp.Body.Close()
	if _, err := a.Next(protocol.TypeCancel); err != nil {
		t.Fatal(err)
	}
	s.chunk(t, "", protocol.FlagReset)
	respond(t, a, call.ID, nil, `{"code":"cancelled","message":"x"}`)
	if got := await(t, &f.Client, call.ID); got.State != "cancelled" || got.Error == nil || got.Error.Reason != "client_gone" {
		t.Errorf("%+v %+v", got, got.Error)
	}
}

// TestTheAnswerToATransferWaitsForTheRecord: while the outcome can't be written, nobody is told
// another end.
func TestTheAnswerToATransferWaitsForTheRecord(t *testing.T) {
	t.Parallel()
	f := harness.New(t, harness.Options{})
	a := f.RawAgent("raw-01")
	connect(t, a, "journal.boot")
	defer a.Close()
	answer := transfer(&f.Client, "GET", "", nil)
	req, err := a.Request()
	if err != nil {
		t.Fatal(err)
	}
	const content = "as it should be"
	out, line := description(t, len(content))
	out.SHA256 = hexOf(content)
	release := f.Lock()
	defer release()
	(&stream{a: a}).send(t, req.ID, line, content)
	respond(t, a, req.ID, out, "")
	select {
	case got := <-answer:
		t.Fatalf("answered before it was on record: %+v", got)
	case <-time.After(protocol.CancelGrace + 2*time.Second): // longer than what a cut gets
	}
	release()
	agrees(t, &f.Client, req.ID, <-answer, "succeeded", "")
}

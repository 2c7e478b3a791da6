package obs

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
)

// hostile is what hosts and clients have tried: new lines, escapes, C1 controls, DEL,
// bidirectional overrides, separators, tags, invalid bytes.
const hostile = "x\n{\"level\":\"INFO\",\"msg\":\"approved\"}\r\x1b[2J\u0085\u009b\x7f\u202e\u2066\u2028\u2029\U000e0041\xff\x00"

func TestOneRecordIsOneLine(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		t.Run(format, func(t *testing.T) {
			var buf bytes.Buffer
			log, err := NewLogger(&buf, format, "info")
			if err != nil {
				t.Fatal(err)
			}
			log.Info("enrolled "+hostile, "hostname", hostile, hostile, "key", "err", errors.New(hostile),
				"list", []string{hostile}, "struct", struct{ Name string }{hostile}, slog.Group("g", "a", hostile))
			line := buf.String()
			if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
				t.Fatalf("not one line: %q", line)
			}
			for _, r := range strings.TrimSuffix(line, "\n") {
				if r < 0x20 || (r >= 0x7f && r < 0xa0) || r == 0x202e || r == 0x2066 || r == 0x2028 || r == 0x2029 || r == 0xe0041 {
					t.Errorf("%U reached the log: %q", r, line)
				}
			}
			if format == "json" {
				var rec map[string]any
				if err := json.Unmarshal([]byte(line), &rec); err != nil {
					t.Fatalf("doesn't parse as one record: %v: %s", err, line)
				}
				if rec["level"] != "INFO" || !strings.Contains(rec["hostname"].(string), "\u202e\u2066\u2028\u2029\U000e0041") {
					t.Errorf("the record changed: %v", rec)
				}
			}
		})
	}
}

func TestLongValuesAreCut(t *testing.T) {
	var buf bytes.Buffer
	log, err := NewLogger(&buf, "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("m", "v", strings.Repeat("é", 1<<20), "err", errors.New(strings.Repeat("x", 1<<20)))
	if buf.Len() > 3*MaxValue || !strings.Contains(buf.String(), "bytes)") {
		t.Errorf("%d bytes", buf.Len())
	}
}

func TestLoggerRefusesUnknownWords(t *testing.T) {
	if _, err := NewLogger(&bytes.Buffer{}, "xml", "info"); err == nil || !strings.Contains(err.Error(), "json, text") {
		t.Errorf("format: %v", err)
	}
	if _, err := NewLogger(&bytes.Buffer{}, "json", "loud"); err == nil || !strings.Contains(err.Error(), "debug, info") {
		t.Errorf("level: %v", err)
	}
}

func TestRequestsAreLoggedAndCounted(t *testing.T) {
	var buf bytes.Buffer
	log, err := NewLogger(&buf, "json", "debug")
	if err != nil {
		t.Fatal(err)
	}
	m := NewMetrics("1.2.3")
	m.Named("a")
	m.Named("b") // it has one name at a time
	m.Gauge("drover_agents_online", "Agents online.", func() float64 { return 3 })
	m.Call("mcp", "shell_exec", "succeeded", 20*time.Millisecond)
	m.Refusal("rest", "no_agent")
	r := chi.NewRouter()
	r.Use(Requests(log, m, nil))
	r.Get("/things/{id}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Request-Id", "abc")
		w.WriteHeader(http.StatusTeapot)
	})
	req := httptest.NewRequest("GET", "/things/7?token=s3cret", nil)
	req.Header.Set("User-Agent", "evil\u202e")
	req.Header.Set("Authorization", "Bearer s3cret")
	r.ServeHTTP(httptest.NewRecorder(), req)
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("BREW", "/nothing", nil))

	if strings.Contains(buf.String(), "s3cret") {
		t.Errorf("a credential is in the log: %s", buf.String())
	}
	for _, want := range []string{`"path":"/things/7"`, `"status":418`, `"request_id":"abc"`, `"user_agent":"evil\u202e"`} {
		if !strings.Contains(buf.String(), want) {
			t.Errorf("no %s in %s", want, buf.String())
		}
	}
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`drover_http_requests_total{method="GET",route="/things/{id}",status="418"} 1`,
		`drover_http_requests_total{method="other",route="none",status="405"} 1`,
		`drover_agents_online 3`, `drover_build_info{version="1.2.3"} 1`, `drover_replica_info{replica="b"} 1`,
		`drover_calls_total{edge="mcp",state="succeeded",tool="shell_exec"} 1`,
		`drover_refusals_total{code="no_agent",edge="rest"} 1`,
	} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %s", want)
		}
	}
}

package server

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// get asks a server that isn't yet known to anybody.
func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequest("GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestStartsServesAndStops(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Config{Listen: "127.0.0.1:0", DataDir: dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Listen: strings.TrimPrefix(s.URL(), "http://"), DataDir: t.TempDir()}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a busy port was taken twice")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	token, err := s.FirstPAT(ctx, "first")
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/api/v1/agents": 401, "/": 200, "/mcp": 401, "/metrics": 200} {
		if status, body := get(t, s.URL()+path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := get(t, s.URL()+"/api/v1/agents", token); status != 200 || !strings.Contains(body, `"agents":[]`) {
		t.Errorf("agents: %d %s", status, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	for want, c := range map[string]Config{
		"--data":       {},
		"--listen":     {DataDir: "x", Listen: "7400"},
		"--public-url": {DataDir: "x", PublicURL: "drover.example.org"},
		"keep-alive":   {DataDir: "x", KeepAlive: 30_000_000_000},
	} {
		if _, err := c.withDefaults(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestOneServerOnItsData: a second server would end the first one's calls in the record.
func TestOneServerOnItsData(t *testing.T) {
	dir := t.TempDir()
	first, err := New(Config{Listen: "127.0.0.1:0", DataDir: dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Listen: "127.0.0.1:0", DataDir: dir}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "Drover already runs on the data in "+dir) {
		t.Errorf("a second server: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	second, err := New(Config{Listen: "127.0.0.1:0", DataDir: dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("after the first one's end: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

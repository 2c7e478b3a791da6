package e2e

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/server"
	"github.com/drover-fleet/drover/tests/harness"
	"github.com/drover-fleet/drover/tests/testenv"
)

// TestAServerWhoseDatabaseIsTakenStops: Postgres ends the session by which a server has its
// database, and a second server that waits for it gets it. The first one stops by itself,
// with an error that says why, and the second serves.
func TestAServerWhoseDatabaseIsTakenStops(t *testing.T) {
	t.Parallel()
	url := harness.PostgresSchema(t)
	admin := harness.OpenPostgres(t, url)
	start := func(name string) (*server.Server, error) {
		return server.New(server.Config{Listen: "127.0.0.1:0", DataDir: t.TempDir(), DatabaseURL: url + "&application_name=" + name}, slog.New(slog.DiscardHandler))
	}
	name := strings.TrimPrefix(url[strings.Index(url, "search_path="):], "search_path=")
	first, err := start(name + "_1")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- first.Run(context.Background()) }()
	harness.Eventually(t, 20*time.Second, "the first serves", func() bool { return serves(first.URL()) })

	var second *server.Server
	for second == nil { // where the first is quicker, once more
		tried := make(chan error, 1)
		go func() {
			s, err := start(name + "_2")
			second = s
			tried <- err
		}()
		harness.Eventually(t, 20*time.Second, "the second tries", func() bool { return testenv.TriesLock(t, admin, name+"_2") || len(tried) > 0 })
		if _, err := admin.Exec(`SELECT pg_terminate_backend($1::int)`, testenv.LockSession(t, admin, name+"_1")); err != nil {
			t.Fatal(err)
		}
		if err := <-tried; err != nil && !strings.Contains(err.Error(), "another Drover server") {
			t.Fatal(err)
		}
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "another Drover server") {
			t.Errorf("the first one ended with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the first one goes on beside the second")
	}
	if serves(first.URL()) {
		t.Error("the first one still answers")
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- second.Run(ctx) }()
	harness.Eventually(t, 20*time.Second, "the second serves", func() bool { return serves(second.URL()) })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func serves(url string) bool {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url + "/healthz")
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestArgumentsOfOpenCalls: what a credential's open calls carry is bounded, since it's kept
// until they end, whoever waits for them.
func TestArgumentsOfOpenCalls(t *testing.T) {
	f := harness.New(t, harness.Options{})
	f.Agent("web-01")
	f.Agent("web-02")
	token, _ := f.PAT("hoards", "all", "all", false)
	other, _ := f.PAT("other", "all", "all", false)
	const size, fit = 1 << 20, 63 // 64 MiB with what's around them
	body := fmt.Sprintf(`{"agent_id":"web-01","tool":"shell_exec","wait_seconds":1,"args":{"command":"sleep 600","stdin":%q}}`, strings.Repeat("x", size))
	call := func(token string) (int, harness.CallResult) {
		var res harness.CallResult
		status, b := f.REST(token).Do("POST", "/api/v1/calls", body)
		if err := json.Unmarshal(b, &res); err != nil {
			t.Errorf("HTTP %d %.200s", status, b)
		}
		return status, res
	}
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	for range 9 {
		wg.Go(func() {
			for range fit / 9 {
				status, res := call(token)
				if status != 202 {
					t.Errorf("HTTP %d %+v", status, res.Error)
				}
				mu.Lock()
				ids = append(ids, res.CallID)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if status, res := call(token); status != 429 || res.Error.Reason != "principal_open_bytes" {
		t.Fatalf("one more: HTTP %d %+v", status, res.Error)
	}
	if status, res := f.REST(token).Call("web-02", "shell_exec", map[string]any{"command": "echo fine"}); status != 200 || res.Stdout() != "fine\n" {
		t.Errorf("a small call of its own: HTTP %d %+v", status, res.Error)
	}
	if status, res := call(other); status != 202 {
		t.Errorf("a large call of another: HTTP %d %+v", status, res.Error)
	}
	for _, id := range ids {
		if status, b := f.REST(token).Do("POST", "/api/v1/calls/"+id+"/cancel", ""); status/100 != 2 {
			t.Errorf("cancel: HTTP %d %s", status, b)
		}
	}
	harness.Eventually(t, 20*time.Second, "what has ended holds nothing", func() bool {
		status, _ := call(token)
		return status == 202
	})
}

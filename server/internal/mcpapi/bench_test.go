//go:build unix

package mcpapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// benchHead is what a client of the modern era sends before its body.
const benchHead = "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n" +
	"Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: %s\r\n" +
	"User-Agent: bench\r\nContent-Length: %d\r\n\r\n%s"

const benchBody = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"roots":{"listChanged":true}}},` +
	`"name":"%s","arguments":%s}}`

// BenchmarkCall is a tools/call of the modern era from the socket to the socket: server,
// SQLite and agent in this process, and a client that costs next to nothing. It reports
// what all of them use.
func BenchmarkCall(b *testing.B) {
	f := harness.New(b, harness.Options{Engine: harness.SQLite})
	f.Agent("web-01")
	for _, c := range []struct{ name, tool, args string }{
		{"forwarded", "fs_stat", `{"agent_id":"web-01","path":"/"}`},
		{"refused", "fs_stat", `{"agent_id":"web-02","path":"/"}`},
		{"own", "whoami", `{}`},
	} {
		body := fmt.Sprintf(benchBody, c.tool, c.args)
		request := fmt.Sprintf(benchHead, f.Admin, c.tool, len(body), body)
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", c.name, callers), func(b *testing.B) {
				benchCalls(b, strings.TrimPrefix(f.URL, "http://"), []byte(request), callers)
			})
		}
	}
}

func benchCalls(b *testing.B, addr string, request []byte, callers int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	began := processorTime(b)
	for range callers {
		wg.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			r := bufio.NewReader(conn)
			for left.Add(-1) >= 0 {
				if err := benchCall(conn, r, request); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-began).Microseconds())/float64(b.N), "cpu-µs/op")
}

func benchCall(conn net.Conn, r *bufio.Reader, request []byte) error {
	if _, err := conn.Write(request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Contains(body, []byte(`"result"`))) {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/tests/harness"
)

// TestAStoppingServerAnswers: a server that is asked to stop ends the streams that would stand
// for ever, and still answers what it was asked before.
func TestAStoppingServerAnswers(t *testing.T) {
	d := harness.Launch(t, harness.Build(t, ""), harness.LaunchOptions{Engine: harness.SQLite})
	addr := strings.TrimPrefix(d.URL, "http://")
	ask := func(body string, send int) (net.Conn, string) {
		t.Helper()
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, err = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s",
			addr, d.Admin, len(body), body[:send])
		if err != nil {
			t.Fatal(err)
		}
		return conn, body[send:]
	}
	stream := standing(t, d)
	initialize := `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"late","version":"1"}}}`
	conn, rest := ask(initialize, 40)
	// Connections are accepted in turn: with this one answered, the server has the other.
	if status, _ := d.REST(d.Admin).Do("GET", "/api/v1/agents", ""); status != http.StatusOK {
		t.Fatalf("HTTP %d", status)
	}
	stopped := make(chan struct{})
	go func() { d.Server.Stop(); close(stopped) }()
	select {
	case <-stream:
	case <-time.After(30 * time.Second):
		t.Fatal("the GET stream stands on")
	}
	if _, err := io.WriteString(conn, rest); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"serverInfo"`) {
		t.Errorf("HTTP %d %s, %v", resp.StatusCode, body, err)
	}
	_ = conn.Close()
	<-stopped
}

// standing opens a session's GET stream; the channel is closed at its end.
func standing(t *testing.T, d *harness.Deployment) <-chan struct{} {
	t.Helper()
	header := http.Header{}
	resp, _ := d.PostMCP(d.Admin, harness.Legacy, nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"standing","version":"1"}}}`)
	header.Set("Mcp-Session-Id", resp.Header.Get("Mcp-Session-Id"))
	d.PostMCP(d.Admin, harness.Legacy, header, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	header.Set("Authorization", "Bearer "+d.Admin)
	header.Set("Accept", "text/event-stream")
	header.Set("Mcp-Protocol-Version", string(harness.Legacy))
	req.Header = header
	got, err := http.DefaultClient.Do(req)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("GET /mcp: %v %+v", err, got)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, got.Body)
		_ = got.Body.Close()
		close(ended)
	}()
	return ended
}

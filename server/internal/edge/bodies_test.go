package edge

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

func nobodyRevoked(string) bool { return true }

// bodies reads bodies of up to 4 MiB of the principal that the query names, and answers with
// their size after a while, or when told.
func bodies(b *Bodies) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, done, err := b.Read(w, r, r.URL.RawQuery, 4<<20)
		defer done()
		if err != nil {
			WriteError(w, fleet.AsError(err))
			return
		}
		_, _ = fmt.Fprint(w, len(body))
	})
}

func post(who string, size int) string {
	return fmt.Sprintf("POST /?%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", who, size)
}

// trickle sends size bytes, 64 KiB at a time, with a pause before each.
func trickle(c net.Conn, size int, pause time.Duration) error {
	for size > 0 {
		time.Sleep(pause) // the bubble's time, which costs none
		n := min(size, 64<<10)
		if _, err := c.Write(bytes.Repeat([]byte("x"), n)); err != nil {
			return err
		}
		size -= n
	}
	return nil
}

// A body over a line of 20 kbit/s arrives; one that stops in its midst is given up, however
// much of it came before.
func TestASlowBodyIsWaitedForAStoppedOneIsNot(t *testing.T) {
	for name, chunked := range map[string]bool{"of a known size": false, "chunked": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const size = 4 << 20
				head, all := post("a", size), size
				if chunked {
					head = fmt.Sprintf("POST /?a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", size)
				}
				b := NewBodies(nobodyRevoked)
				slow := dialIn(t, bodies(b))
				send(t, slow, head)
				send(t, slow, strings.Repeat("x", 9<<10))
				if err := trickle(slow, all-9<<10, 25*time.Second); err != nil {
					t.Fatal(err)
				}
				if chunked {
					send(t, slow, "\r\n0\r\n\r\n")
				}
				_ = slow.SetReadDeadline(time.Time{})
				if status, body, _ := answer(t, slow); status != 200 || body != fmt.Sprint(size) {
					t.Errorf("a slow body: %d %s", status, body)
				}

				stopped := dialIn(t, bodies(b))
				send(t, stopped, head)
				if err := trickle(stopped, 3<<20, time.Millisecond); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				status, body, closed := answer(t, stopped)
				if took := time.Since(start); status != 408 || !closed || took > piecePatience+time.Second || !strings.Contains(body, ReasonBodyLate) {
					t.Errorf("a stopped body: %d after %s, closed %v: %s", status, took, closed, body)
				}
				if b.Held() != 0 {
					t.Errorf("%d bytes are still held", b.Held())
				}
			})
		})
	}
}

// What one principal's bodies take is bounded, and what all take. Who is over the bound waits
// for a while, and small bodies, and those of others, aren't held up.
func TestBodiesTakeNoMoreThanTheirShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBodies(nobodyRevoked)
		h := bodies(b)
		begin := func(who string) net.Conn {
			c := dialIn(t, h)
			send(t, c, post(who, 4<<20))
			go func() { _, _ = io.WriteString(c, strings.Repeat("x", 3<<20)) }()
			synctest.Wait()
			return c
		}
		var held []net.Conn
		for range 16 {
			held = append(held, begin("a"))
		}
		if b.Held() != ownBodies {
			t.Fatalf("%d bytes are held", b.Held())
		}
		over := begin("a")
		start := time.Now()
		status, body, closed := answer(t, over)
		if took := time.Since(start); status != 429 || !closed || took > bodyTurn+time.Second || !strings.Contains(body, `"reason":"principal_body_bytes"`) {
			t.Errorf("one too many: %d after %s, closed %v: %s", status, took, closed, body)
		}
		whole := func(who string, size int) (int, string) {
			c := dialIn(t, h)
			send(t, c, post(who, size)+strings.Repeat("x", size))
			status, body, _ := answer(t, c)
			return status, body
		}
		for _, c := range []struct {
			who  string
			size int
		}{{"a", 1}, {"a", smallBody}, {"b", smallBody + 1}, {"b", 4 << 20}} {
			if status, body := whole(c.who, c.size); status != 200 || body != fmt.Sprint(c.size) {
				t.Errorf("%d bytes of %s beside it: %d %s", c.size, c.who, status, body)
			}
		}
		// One that waits has its turn when another one is answered.
		waits := begin("a")
		send(t, held[0], strings.Repeat("x", 1<<20))
		if status, body, _ := answer(t, held[0]); status != 200 {
			t.Errorf("one that was held: %d %s", status, body)
		}
		send(t, waits, strings.Repeat("x", 1<<20))
		if status, body, _ := answer(t, waits); status != 200 {
			t.Errorf("the one that waited: %d %s", status, body)
		}
		for _, c := range held[1:] {
			_ = c.Close()
		}
		synctest.Wait()
		if b.Held() != 0 {
			t.Errorf("%d bytes are still held", b.Held())
		}
		for _, who := range []string{"c", "d", "e", "f"} {
			for range 16 {
				begin(who)
			}
		}
		if b.Held() != allBodies {
			t.Fatalf("%d bytes are held", b.Held())
		}
		if status, body, _ := answer(t, begin("g")); status != 429 || !strings.Contains(body, `"reason":"body_bytes"`) {
			t.Errorf("one too many of all: %d %s", status, body)
		}
	})
}

// A body whose size wasn't said counts as what came of it.
func TestAChunkedBodyCountsAsWhatItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBodies(nobodyRevoked)
		answered := make(chan bool)
		conn := dialIn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, done, err := b.Read(w, r, "a", 4<<20)
			if err != nil {
				t.Error(err)
			}
			<-answered
			done()
			done() // once more is nothing
		}))
		const size = 100 << 10
		send(t, conn, fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", size, strings.Repeat("x", size)))
		synctest.Wait()
		if b.Held() != size {
			t.Errorf("%d bytes are held", b.Held())
		}
		close(answered)
		synctest.Wait()
		if b.Held() != 0 {
			t.Errorf("%d bytes are held after the answer", b.Held())
		}
	})
}

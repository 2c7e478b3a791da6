package edge

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// A client that doesn't read its answer, or stops in the midst of it, holds nothing for long.
func TestAnAnswerNobodyReadsIsGivenUp(t *testing.T) {
	for name, read := range map[string]int{"nothing": 0, "a part": 300 << 10} {
		for kind, flush := range map[string]bool{"at once": false, "flushed": true} {
			t.Run(name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ended := make(chan error, 1)
					conn := dialIn(t, UnreadAnswer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						if flush {
							w.WriteHeader(http.StatusOK)
							w.(http.Flusher).Flush()
						}
						_, err := w.Write(make([]byte, 1<<20))
						ended <- err
					})))
					start := time.Now()
					send(t, conn, get)
					if _, err := io.CopyN(io.Discard, conn, int64(read)); err != nil {
						t.Fatal(err)
					}
					select {
					case err := <-ended:
						if took := time.Since(start); err == nil || took > answerPatience+time.Second {
							t.Errorf("the write ended after %s: %v", took, err)
						}
					case <-time.After(time.Hour):
						t.Error("the handler still writes")
					}
				})
			})
		}
	}
}

// Waiting long for an answer, pausing within one, reading slowly, and coming again much later
// on the same connection are no offence.
func TestASlowAnswerIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := bytes.Repeat([]byte("0123456789abcdef"), 16<<10) // 256 KiB
		conn := dialIn(t, UnreadAnswer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(2*len(body)))
			for range 2 {
				time.Sleep(10 * time.Minute) // the bubble's time, which costs none
				if _, err := w.Write(body); err != nil {
					t.Error(err)
				}
				w.(http.Flusher).Flush()
			}
		})))
		for range 2 {
			send(t, conn, get)
			resp, err := http.ReadResponse(bufio.NewReaderSize(slow{conn}, 4<<10), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, append(bytes.Clone(body), body...)) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			time.Sleep(time.Minute + answerPatience/2) // less than IdleTimeout, more than the deadline
		}
	})
}

// slow takes 4 KiB every two seconds.
type slow struct{ io.Reader }

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(2 * time.Second)
	return s.Reader.Read(p[:min(len(p), 4<<10)])
}

// The connection of a WebSocket is handed over without a deadline.
func TestAHijackedConnectionHasNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := dialIn(t, UnreadAnswer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				time.Sleep(time.Hour)
				_, _ = io.WriteString(c, "late")
				_ = c.Close()
			}()
		})))
		send(t, conn, get)
		if got, err := io.ReadAll(conn); err != nil || string(got) != "late" {
			t.Errorf("%q, %v", got, err)
		}
	})
}

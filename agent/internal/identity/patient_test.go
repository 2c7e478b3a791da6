package identity

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-fleet/drover/protocol"
)

// door is a registrar behind answers that come before its own.
type door struct {
	registrar *registrar
	first     []func() (*http.Response, error)
	at        []time.Time
}

func (d *door) RoundTrip(r *http.Request) (*http.Response, error) {
	n := len(d.at)
	d.at = append(d.at, time.Now())
	if n < len(d.first) {
		return d.first[n]()
	}
	w := httptest.NewRecorder()
	d.registrar.ServeHTTP(w, r)
	return w.Result(), nil
}

func says(status int, retryAfter, body string) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		w := httptest.NewRecorder()
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(status)
		_, _ = w.WriteString(body)
		return w.Result(), nil
	}
}

func TestEnrolPatiently(t *testing.T) {
	r, _ := newRegistrar(t)
	synctest.Test(t, func(t *testing.T) {
		busy := `{"code":"rate_limited","message":"too many enrolments at once"}`
		d := &door{registrar: r, first: []func() (*http.Response, error){
			says(429, "20", busy),
			says(503, "", `{"code":"unavailable","message":"the store is away"}`),
			says(502, "absurd", "<html>bad gateway"),
			says(429, "99999999", busy),
			func() (*http.Response, error) { return nil, errors.New("connection refused") },
		}}
		e := r.enrolment(t, "http://127.0.0.1:1")
		e.Client = &http.Client{Transport: d}
		var log bytes.Buffer
		id, err := EnrolPatiently(t.Context(), e, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = id.Close() }()
		if id.AgentID() != "web-01" || len(d.at) != 6 {
			t.Fatalf("%s after %d attempts", id.AgentID(), len(d.at))
		}
		for i, at := range []struct{ least, most time.Duration }{
			{20500 * time.Millisecond, 22 * time.Second}, {time.Second, 3 * time.Second}, {2 * time.Second, 6 * time.Second},
			{time.Hour, time.Hour + 12*time.Second}, {8 * time.Second, 24 * time.Second},
		} {
			if pause := d.at[i+1].Sub(d.at[i]); pause < at.least || pause > at.most {
				t.Errorf("pause %d: %s, want %s to %s", i, pause, at.least, at.most)
			}
		}
		for _, want := range []string{"too many enrolments at once", "the store is away", "connection refused", "again_in=2", "status 502"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, &log)
			}
		}
	})
}

// What waiting doesn't help ends at once.
func TestEnrolPatientlyGivesUp(t *testing.T) {
	r, _ := newRegistrar(t)
	synctest.Test(t, func(t *testing.T) {
		for _, first := range []func() (*http.Response, error){
			says(401, "", `{"code":"unauthenticated","message":"this enrolment token isn't valid here"}`),
			says(409, "", `{"code":"conflict","message":"the id is taken"}`),
			says(404, "5", "no such page"),
		} {
			d := &door{registrar: r, first: []func() (*http.Response, error){first}}
			e := r.enrolment(t, "http://127.0.0.1:1")
			e.Client = &http.Client{Transport: d}
			_, err := EnrolPatiently(t.Context(), e, slog.New(slog.DiscardHandler))
			var later *NotNowError
			if err == nil || errors.As(err, &later) || len(d.at) != 1 {
				t.Errorf("%v after %d attempts", err, len(d.at))
			}
		}
		d := &door{registrar: r, first: []func() (*http.Response, error){says(429, "", `{"code":"rate_limited","message":"busy"}`)}}
		e := r.enrolment(t, "http://127.0.0.1:1")
		e.Client = &http.Client{Transport: d}
		var pe *protocol.Error
		if _, err := Enrol(t.Context(), e); !errors.As(err, &pe) || pe.Code != protocol.CodeRateLimited {
			t.Errorf("Enrol itself doesn't wait, and says why: %v", err)
		}
	})
}

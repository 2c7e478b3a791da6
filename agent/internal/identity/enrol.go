package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	mrand "math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/protocol/text"
)

// EnrolPath is where a server takes enrolments, below its base URL.
const EnrolPath = "/agent/v1/enroll"

// Enrolment says how to enrol.
type Enrolment struct {
	Dir      string // the state folder; made with mode 0700
	Server   string // base URL
	Token    string // drv_enr_…
	Hostname string // shown to operators until the first connection
	// Client does the request; its transport decides about proxies and certificates.
	Client *http.Client
	// Plaintext allows http beyond loopback.
	Plaintext bool
	// Replace gives up an enrolment that's in Dir already, once the server has accepted the
	// new one. Without it that's an error.
	Replace bool
}

// Enrol makes a key on this host, registers it with the server by the token and stores the
// enrolment. The server proves with its key, which the token names, that the answer is its
// own, so the first contact is verified. When an attempt breaks off, trying again with the
// same token completes it.
func Enrol(ctx context.Context, e Enrolment) (*Identity, error) {
	if err := CheckURL(e.Server, e.Plaintext); err != nil {
		return nil, err
	}
	token, err := protocol.ParseEnrolToken(e.Token)
	if err != nil {
		return nil, err
	}
	key, put, err := e.prepare(protocol.B64(token.ID[:]))
	if err != nil {
		return nil, fmt.Errorf("%w; the token wasn't used", advise(e.Dir, err))
	}
	st, err := e.register(ctx, token, key)
	if err != nil {
		return nil, err
	}
	if err := put(*st); err != nil {
		return nil, err
	}
	return Open(e.Dir)
}

// maxRetryAfter bounds how long a server is obeyed that asks to be left alone.
const maxRetryAfter = time.Hour

// NotNowError is a server, or what stands before it, that can't enrol anybody for the
// moment. Trying again with the same token is right.
type NotNowError struct {
	After time.Duration // what the server asked for (Retry-After); 0 if nothing
	Err   error
}

// Error implements error.
func (e *NotNowError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *NotNowError) Unwrap() error { return e.Err }

// EnrolPatiently is Enrol, but waits for a server that can't be reached yet or enrols nobody
// for the moment, and says so in the log: on the first start of a whole installation the
// agent may be the first, or one of many. It ends with the enrolment, with an error that
// waiting doesn't help, or with ctx. The pauses double from about a second to 30, with
// jitter, on top of what the server asks for.
func EnrolPatiently(ctx context.Context, e Enrolment, log *slog.Logger) (*Identity, error) {
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		id, err := Enrol(ctx, e)
		var later *NotNowError
		if !errors.As(err, &later) || ctx.Err() != nil {
			return id, err
		}
		pause := later.After + wait/2 + mrand.N(wait)
		log.Warn("can't enrol yet", "err", err, "again_in", pause.Round(time.Second))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		case <-timer.C:
		}
	}
}

// prepare makes the folder and the key to register by this token, and says how the enrolment
// is put in place then. Until that is done nothing of an old one is touched.
func (e *Enrolment) prepare(token string) (key ed25519.PrivateKey, put func(State) error, err error) {
	if err := os.MkdirAll(e.Dir, 0o700); err != nil {
		return nil, nil, err
	}
	if err := checkPrivate(e.Dir); err != nil {
		return nil, nil, err
	}
	state, own := filepath.Join(e.Dir, stateFile), filepath.Join(e.Dir, keyFile)
	if _, err := os.Stat(state); err == nil && !e.Replace {
		return nil, nil, errEnrolled(e.Dir)
	}
	if err := checkOwner(state); err != nil {
		return nil, nil, err
	}
	release, err := hold(e.Dir, enrolLock)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	if err := apply(e.Dir); err != nil {
		return nil, nil, err
	}
	write := func(st State) error { return place(e.Dir, key, st) }
	old, err := readState(state)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		key, err = makeKey(own, e.Replace)
		return key, write, err
	case !e.Replace: // made this moment
		return nil, nil, errEnrolled(e.Dir)
	}
	if err == nil {
		if key, err = readKey(own); err == nil && old.madeBy(e.Dir, key) == token { // what this token made is here: its answer may have been lost to a caller
			return key, write, nil
		}
	}
	key, err = makeKey(filepath.Join(e.Dir, nextKey(token)), true)
	return key, func(st State) error { return e.replace(key, st) }, err
}

func errEnrolled(dir string) error {
	return fmt.Errorf("%s holds an enrolment already; to give it up and enrol again, say so with --replace", dir)
}

func (e *Enrolment) register(ctx context.Context, token protocol.EnrolToken, key ed25519.PrivateKey) (*State, error) {
	nonce := make([]byte, protocol.NonceSize)
	rand.Read(nonce)
	hostname := text.Line(e.Hostname, 253)
	pub := key.Public().(ed25519.PublicKey)
	transcript := protocol.EnrolTranscript(token.ID[:], pub, nonce, hostname, token.Server[:])
	body, err := json.Marshal(protocol.EnrolRequest{
		TokenID: protocol.B64(token.ID[:]), AgentKey: protocol.B64(pub), Nonce: protocol.B64(nonce), Hostname: hostname,
		Signature: protocol.B64(ed25519.Sign(token.Key(), transcript)), Proof: protocol.B64(ed25519.Sign(key, transcript)),
	})
	if err != nil {
		return nil, err
	}
	answer, err := e.post(ctx, body)
	if err != nil {
		return nil, err
	}
	var reply protocol.EnrolReply
	if err := strict.Unmarshal(answer, &reply, strict.Limits{MaxBytes: maxReply}); err != nil {
		return nil, fmt.Errorf("the answer of %s isn't an enrolment: %w", e.Server, err)
	}
	server, err := verify(reply, token, transcript)
	if err != nil {
		return nil, err
	}
	return &State{AgentID: reply.AgentID, Generation: reply.Generation, ServerKey: protocol.B64(server), ServerURL: e.Server,
		Token: protocol.B64(token.ID[:])}, nil
}

// verify checks that the reply comes from the server that made the token.
func verify(reply protocol.EnrolReply, token protocol.EnrolToken, transcript []byte) (ed25519.PublicKey, error) {
	server, err := protocol.UnB64(reply.ServerKey, ed25519.PublicKeySize)
	if err != nil || !bytes.Equal(protocol.Fingerprint(server), token.Server[:]) {
		return nil, errors.New("this isn't the server that made the token: its key is another; check the URL, or whether someone stands between")
	}
	sig, err := protocol.UnB64(reply.Signature, ed25519.SignatureSize)
	if err != nil || !ed25519.Verify(server, protocol.EnrolReplyTranscript(transcript, reply.AgentID, reply.Generation), sig) {
		return nil, errors.New("the server's answer isn't signed by its key; someone stands between, or it's damaged")
	}
	return server, nil
}

const maxReply = 16 << 10

// answerTime is how long a server, and a proxy before it, may take to answer.
const answerTime = 30 * time.Second

func (e *Enrolment) post(ctx context.Context, body []byte) ([]byte, error) {
	base := strings.NewReplacer("wss://", "https://", "ws://", "http://").Replace(e.Server)
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(base, "/")+EnrolPath, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := e.Client.Do(req)
	if errors.Is(err, http.ErrSchemeMismatch) {
		return nil, &NotNowError{Err: fmt.Errorf("%s speaks plain HTTP, not TLS: is http:// meant, or the port of a TLS proxy? (%w)", e.Server, err)}
	}
	if err != nil {
		return nil, &NotNowError{Err: fmt.Errorf("the server can't be reached: %w", err)}
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, &NotNowError{Err: fmt.Errorf("the server's answer broke off: %w", err)}
	}
	if resp.StatusCode != http.StatusOK {
		return nil, e.refused(resp, answer)
	}
	return answer, nil
}

// refused words an answer that isn't 200: a Drover server says why in its body, a proxy
// doesn't.
func (e *Enrolment) refused(resp *http.Response, answer []byte) error {
	err := fmt.Errorf("the server answered %s; is %s a Drover server?", resp.Status, e.Server)
	var fault protocol.Error
	if json.Unmarshal(answer, &fault) == nil && fault.Message != "" {
		fault.Message = text.Line(fault.Message, 500)
		err = &fault
	}
	switch resp.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &NotNowError{After: retryAfter(resp.Header), Err: fmt.Errorf("the server enrols nobody for the moment (status %d): %w", resp.StatusCode, err)}
	}
	return err
}

// retryAfter reads the header, in seconds or as a date; 0 if there's none to be understood.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	var d time.Duration
	if s, err := strconv.Atoi(v); err == nil {
		d = time.Duration(min(s, int(maxRetryAfter/time.Second))) * time.Second
	} else if at, err := http.ParseTime(v); err == nil {
		d = time.Until(at)
	}
	return min(max(d, 0), maxRetryAfter)
}

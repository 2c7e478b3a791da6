package enroll

import (
	"context"
	"crypto/ed25519"
	"errors"
	"math/rand/v2"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// maxBody bounds an enrolment's body.
const maxBody = 8 << 10

// retryAfter is when a host that was turned away for the moment may come again, in seconds:
// another time for each, and agents add more jitter.
func retryAfter() string { return strconv.Itoa(1 + rand.IntN(4)) }

// ServeHTTP answers POST /agent/v1/enroll. The token's own signature is the credential; the
// agent id comes from the token and from nowhere else.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	reply, err := s.serve(w, r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	b, err := json.Marshal(reply)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // a reply that's lost is asked for again
}

func (s *Service) serve(w http.ResponseWriter, r *http.Request) (*protocol.EnrolReply, error) {
	if r.Method != http.MethodPost {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "enrolment is a POST")
	}
	if mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mt != "application/json" {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "enrolment takes Content-Type: application/json")
	}
	if r.Header.Get("Origin") != "" {
		return nil, fleet.Errorf(protocol.CodeDenied, "enrolment isn't for browsers")
	}
	// A slot is for work, not for waiting: whoever holds a body back holds a connection alone.
	body, err := edge.Read(w, r, maxBody)
	if err != nil {
		return nil, err
	}
	var req protocol.EnrolRequest
	if err := strict.Unmarshal(body, &req, strict.Limits{MaxBytes: maxBody, MaxDepth: 4}); err != nil {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "this isn't an enrolment: %v", err)
	}
	d, err := decode(&req)
	if err != nil {
		return nil, err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return nil, fleet.Errorf(protocol.CodeRateLimited, "too many enrolments at once; try again in a moment")
	}
	return s.enrol(r.Context(), &req, d)
}

// decoded is a request's binary parts.
type decoded struct {
	tokenID, nonce, signature, proof []byte
	key                              ed25519.PublicKey
}

func decode(req *protocol.EnrolRequest) (d decoded, err error) {
	for _, part := range []struct {
		to   *[]byte
		text string
		size int
	}{
		{&d.tokenID, req.TokenID, 16}, {(*[]byte)(&d.key), req.AgentKey, ed25519.PublicKeySize}, {&d.nonce, req.Nonce, protocol.NonceSize},
		{&d.signature, req.Signature, ed25519.SignatureSize}, {&d.proof, req.Proof, ed25519.SignatureSize},
	} {
		if *part.to, err = protocol.UnB64(part.text, part.size); err != nil {
			return d, fleet.Errorf(protocol.CodeBadArgs, "this isn't an enrolment: a value isn't base64url of the right length")
		}
	}
	if len(req.Hostname) > 1024 {
		return d, fleet.Errorf(protocol.CodeBadArgs, "this isn't an enrolment: the hostname is too long")
	}
	return d, nil
}

func errNoToken() error {
	return fleet.Errorf(protocol.CodeUnauthenticated, "this enrolment token isn't valid here; make one with: drover enroll create")
}

func (s *Service) enrol(ctx context.Context, req *protocol.EnrolRequest, d decoded) (*protocol.EnrolReply, error) {
	token, err := s.cfg.Store.EnrolToken(ctx, req.TokenID)
	var fe *fleet.Error
	if errors.As(err, &fe) && fe.Code == protocol.CodeNotFound {
		return nil, errNoToken()
	}
	if err != nil {
		return nil, err
	}
	pub := s.cfg.ServerKey.Public().(ed25519.PublicKey)
	transcript := protocol.EnrolTranscript(d.tokenID, d.key, d.nonce, req.Hostname, protocol.Fingerprint(pub))
	if !ed25519.Verify(token.Key, transcript, d.signature) || !ed25519.Verify(d.key, transcript, d.proof) {
		return nil, errNoToken()
	}
	id, generation, err := s.register(ctx, token, d.key, req.Hostname)
	if err != nil {
		return nil, err
	}
	return &protocol.EnrolReply{AgentID: string(id), Generation: generation, ServerKey: protocol.B64(pub),
		Signature: protocol.B64(ed25519.Sign(s.cfg.ServerKey, protocol.EnrolReplyTranscript(transcript, string(id), generation)))}, nil
}

func (s *Service) register(ctx context.Context, token *Token, key ed25519.PublicKey, hostname string) (fleet.AgentID, int64, error) {
	now := time.Now()
	hostname = text.Line(hostname, 253)
	detail := map[string]string{"token": token.ID, "hostname": hostname, "fingerprint": protocol.B64(protocol.Fingerprint(key))}
	ev := fleet.AdminEvent{Principal: "agent:" + string(token.Agent), Action: "enroll.use", Object: string(token.Agent), Detail: detail, At: now}
	id, generation, err := s.cfg.Store.Enrol(ctx, Enrolment{TokenID: token.ID, Key: key, Hostname: hostname, At: now}, ev)
	if err != nil {
		s.recordRefusal(ctx, ev, err)
		return "", 0, err
	}
	s.cfg.Log.Info("agent enrolled", "agent", string(id), "generation", generation, "hostname", hostname)
	if generation > 1 {
		s.closeOld(id, generation)
	}
	return id, generation, nil
}

// closeOld ends the tunnel of the key that was replaced. The new key may have connected
// already when this enrolment is a repeated one; it comes back at once.
func (s *Service) closeOld(id fleet.AgentID, generation int64) {
	s.cfg.CloseAgent(id, protocol.CloseRemoved, "enrolled again with a newer key, generation "+strconv.FormatInt(generation, 10))
}

// recordRefusal notes that somebody who holds the token was turned away.
func (s *Service) recordRefusal(ctx context.Context, ev fleet.AdminEvent, cause error) {
	fe := fleet.AsError(cause)
	ev.Action = "enroll.refused"
	ev.Detail["code"], ev.Detail["message"] = string(fe.Code), fe.Message
	if err := s.cfg.Store.RecordAdmin(ctx, ev); err != nil {
		s.cfg.Log.Error("a refused enrolment was not recorded", "agent", ev.Object, "error", err)
	}
	s.cfg.Log.Warn("enrolment refused", "agent", ev.Object, "hostname", ev.Detail["hostname"], "code", string(fe.Code), "message", fe.Message)
}

func (s *Service) fail(w http.ResponseWriter, r *http.Request, err error) {
	fe := fleet.AsError(err)
	status := edge.StatusOf(fe)
	switch {
	case fe.Code == protocol.CodeRateLimited || fe.Code == protocol.CodeUnavailable:
		w.Header().Set("Retry-After", retryAfter())
	case status >= http.StatusInternalServerError:
		s.cfg.Log.Error("enrolment failed", "remote", r.RemoteAddr, "error", err, "cause", fe.Err)
	}
	b, merr := json.Marshal(protocol.Error{Code: fe.Code, Reason: fe.Reason, Message: fe.Message})
	if merr != nil {
		b = []byte(`{"code":"internal","message":"Drover failed inside; the server's log has the cause"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // nobody is left to tell
}

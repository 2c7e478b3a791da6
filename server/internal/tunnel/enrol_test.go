package tunnel_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"io"
	"net/http"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
)

// postEnrol enrols a key by a token over HTTP.
func (r *rig) postEnrol(token protocol.EnrolToken, pub ed25519.PublicKey, key ed25519.PrivateKey) (int, protocol.EnrolReply) {
	r.t.Helper()
	nonce := make([]byte, protocol.NonceSize)
	rand.Read(nonce)
	transcript := protocol.EnrolTranscript(token.ID[:], pub, nonce, "host", token.Server[:])
	body, _ := json.Marshal(protocol.EnrolRequest{TokenID: protocol.B64(token.ID[:]), AgentKey: protocol.B64(pub), Nonce: protocol.B64(nonce), Hostname: "host",
		Signature: protocol.B64(ed25519.Sign(token.Key(), transcript)), Proof: protocol.B64(ed25519.Sign(key, transcript))})
	resp, err := http.Post(r.http.URL+"/agent/v1/enroll", "application/json", bytes.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	var reply protocol.EnrolReply
	if resp.StatusCode == 200 {
		if err := json.Unmarshal(b, &reply); err != nil {
			r.t.Fatal(err)
		}
	}
	return resp.StatusCode, reply
}

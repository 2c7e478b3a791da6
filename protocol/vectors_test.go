package protocol_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/drover-fleet/drover/protocol"
)

// vectors pins what is hashed and signed, for agents in other languages. Binary values are
// in lower-case hex.
type vectors struct {
	Comment     string `json:"comment"`
	Fingerprint struct {
		ServerSeed string `json:"server_seed"`
		ServerKey  string `json:"server_key"`
		ServerFP   string `json:"server_fingerprint"`
		AgentSeed  string `json:"agent_seed"`
		AgentKey   string `json:"agent_key"`
		AgentFP    string `json:"agent_fingerprint"`
		Preimage   string `json:"agent_fingerprint_preimage"`
	} `json:"keys"`
	Handshake struct {
		Hello            string `json:"hello"` // text, as sent
		ServerNonce      string `json:"server_nonce"`
		ServerTranscript string `json:"server_transcript"`
		ServerSignature  string `json:"server_signature"`
		AgentTranscript  string `json:"agent_transcript"`
		AgentSignature   string `json:"agent_signature"`
		NextKey          string `json:"next_server_key"`
		NextTranscript   string `json:"next_server_key_transcript"`
		NextSignature    string `json:"next_server_key_signature"`
	} `json:"handshake"`
	Seals []sealVector `json:"seals"`
	Enrol struct {
		TokenID    string `json:"token_id"`
		TokenSeed  string `json:"token_seed"`
		Token      string `json:"token"` // text
		Nonce      string `json:"nonce"`
		Hostname   string `json:"hostname"`
		Transcript string `json:"transcript"`
		Signature  string `json:"signature"`
		Proof      string `json:"proof"`
		AgentID    string `json:"agent_id"`
		Generation int64  `json:"generation"`
		ReplyHash  string `json:"reply_transcript"`
		ReplySig   string `json:"reply_signature"`
	} `json:"enrolment"`
}

type sealVector struct {
	Generation int64  `json:"generation"`
	CallID     string `json:"call_id"`
	Tool       string `json:"tool"`
	Args       string `json:"args"` // text, byte for byte
	Seal       string `json:"seal"`
	Member     string `json:"member"` // as it stands in the request frame
}

func seed(b byte) ed25519.PrivateKey { return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, 32)) }

func pub(k ed25519.PrivateKey) ed25519.PublicKey { return k.Public().(ed25519.PublicKey) }

// lengthed is the preimage that docs/protocol.md describes, written a second time.
func lengthed(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(binary.BigEndian.AppendUint64(out, uint64(len(p))), p...)
	}
	return out
}

func compute() vectors {
	v := vectors{Comment: "Computed from fixed seeds; see docs/protocol.md. Binary values are hex, texts are what they are."}
	server, agent, h := seed(1), seed(2), hex.EncodeToString
	k := &v.Fingerprint
	k.ServerSeed, k.ServerKey, k.ServerFP = h(server.Seed()), h(pub(server)), h(protocol.Fingerprint(pub(server)))
	k.AgentSeed, k.AgentKey, k.AgentFP = h(agent.Seed()), h(pub(agent)), h(protocol.Fingerprint(pub(agent)))
	k.Preimage = h(lengthed([]byte("drover/key/v1"), pub(agent)))

	hello := []byte(`{"type":"hello","agent_id":"web-01","versions":[1],"generation":1,"instance":"i-1","last_epoch":0,"nonce":"AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM","facts":{"hostname":"h","os":"linux","os_version":"","arch":"amd64","run_as":"root","agent_version":"1"},"capabilities":[]}`)
	nonce := bytes.Repeat([]byte{4}, 32)
	s := &v.Handshake
	st, at := protocol.ServerTranscript(hello, nonce, pub(agent), pub(server)), protocol.AgentTranscript(hello, nonce, pub(agent), pub(server))
	s.Hello, s.ServerNonce, s.ServerTranscript, s.AgentTranscript = string(hello), h(nonce), h(st), h(at)
	s.ServerSignature, s.AgentSignature = h(ed25519.Sign(server, st)), h(ed25519.Sign(agent, at))
	next := seed(5)
	nt := protocol.NextKeyTranscript(pub(next))
	s.NextKey, s.NextTranscript, s.NextSignature = h(pub(next)), h(nt), h(ed25519.Sign(server, nt))

	for _, c := range []sealVector{
		{Generation: 1, CallID: "019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60", Tool: "shell_exec", Args: `{"command":"id"}`},
		{Generation: 2, CallID: "019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60", Tool: "shell_exec", Args: `{"command":"id"}`},
		{Generation: 1, CallID: "019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60", Tool: "shell_exec", Args: "{ \"command\" :\t\"\\u0069d\\/\" }"},
		{Generation: 1, CallID: "x", Tool: "fs_stat", Args: `{"path":"/tmp/é😀"}`},
	} {
		b := protocol.Seal(protocol.Fingerprint(pub(agent)), c.Generation, c.CallID, c.Tool, []byte(c.Args))
		c.Seal, c.Member = h(b), protocol.B64(b)
		v.Seals = append(v.Seals, c)
	}

	var token protocol.EnrolToken
	copy(token.ID[:], bytes.Repeat([]byte{6}, 16))
	copy(token.Seed[:], bytes.Repeat([]byte{7}, 32))
	copy(token.Server[:], protocol.Fingerprint(pub(server)))
	e := &v.Enrol
	en := bytes.Repeat([]byte{8}, 32)
	e.TokenID, e.TokenSeed, e.Token, e.Nonce, e.Hostname = h(token.ID[:]), h(token.Seed[:]), token.String(), h(en), "web-01.example.com"
	et := protocol.EnrolTranscript(token.ID[:], pub(agent), en, e.Hostname, token.Server[:])
	e.Transcript, e.Signature, e.Proof = h(et), h(ed25519.Sign(token.Key(), et)), h(ed25519.Sign(agent, et))
	e.AgentID, e.Generation = "web-01", 1
	rt := protocol.EnrolReplyTranscript(et, e.AgentID, e.Generation)
	e.ReplyHash, e.ReplySig = h(rt), h(ed25519.Sign(server, rt))
	return v
}

func TestVectors(t *testing.T) {
	const path = "testdata/vectors.json"
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && *update {
		if b, err = json.Marshal(compute(), jsontext.WithIndent("  ")); err == nil {
			err = os.WriteFile(path, append(b, '\n'), 0o644)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	var want vectors
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, compute()); d != "" {
		t.Error(d)
	}
}

// The layout of what is hashed, as docs/protocol.md states it, against the functions.
func TestLayout(t *testing.T) {
	agent, server := pub(seed(2)), pub(seed(1))
	gen := []byte{0, 0, 0, 0, 0, 0, 1, 2}
	hello, nonce := []byte("hello"), bytes.Repeat([]byte{4}, 32)
	for name, c := range map[string]struct {
		got   []byte
		parts [][]byte
	}{
		"fingerprint": {protocol.Fingerprint(agent), [][]byte{[]byte("drover/key/v1"), agent}},
		"seal":        {protocol.Seal([]byte("fp"), 258, "id", "tool", []byte("{}")), [][]byte{[]byte("drover/seal/v1"), []byte("fp"), gen, []byte("id"), []byte("tool"), []byte("{}")}},
		"server":      {protocol.ServerTranscript(hello, nonce, agent, server), [][]byte{[]byte("drover/tunnel/v1/server"), hello, nonce, agent, server}},
		"agent":       {protocol.AgentTranscript(hello, nonce, agent, server), [][]byte{[]byte("drover/tunnel/v1/agent"), hello, nonce, agent, server}},
		"next key":    {protocol.NextKeyTranscript(server), [][]byte{[]byte("drover/tunnel/v1/next-key"), server}},
		"enrolment":   {protocol.EnrolTranscript([]byte("id"), agent, nonce, "host", []byte("fp")), [][]byte{[]byte("drover/enroll/v1/agent"), []byte("id"), agent, nonce, []byte("host"), []byte("fp")}},
		"reply":       {protocol.EnrolReplyTranscript([]byte("t"), "web-01", 258), [][]byte{[]byte("drover/enroll/v1/server"), []byte("t"), []byte("web-01"), gen}},
	} {
		if want := sha256.Sum256(lengthed(c.parts...)); !bytes.Equal(want[:], c.got) {
			t.Errorf("%s: another layout", name)
		}
	}
}

func TestEnrolTokenText(t *testing.T) {
	text := compute().Enrol.Token
	for in, ok := range map[string]bool{
		text: true, " " + text + "\n": true, text[:len(text)-1]: false, text + "A": false, strings.ToUpper(text): false, "": false,
		strings.TrimPrefix(text, protocol.EnrolTokenPrefix): false, text[:20] + " " + text[20:]: false, text[:len(text)-1] + "=": false,
	} {
		if _, err := protocol.ParseEnrolToken(in); (err == nil) != ok {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// Package commit has the salted hashes by which the record holds what it doesn't keep, and
// decides who is given what it takes to check them.
package commit

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"unicode/utf8"

	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Salt makes a commitment unguessable: 16 bytes. crypto/rand never fails: it ends the program.
func Salt() []byte {
	salt := make([]byte, 16)
	_, _ = rand.Read(salt)
	return salt
}

// Of is a commitment: SHA-256(salt ‖ exact), 32 bytes.
func Of(salt, exact []byte) []byte {
	h := sha256.New()
	h.Write(salt)
	h.Write(exact)
	return h.Sum(nil)
}

// Commitments are what the record commits to of one call.
type Commitments struct {
	CallID string      `json:"call_id"`
	Args   Commitment  `json:"args" doc:"Of the arguments, as the caller wrote them, without agent_id."`
	Result *Commitment `json:"result,omitzero" doc:"Of the result. Absent while the call is open, and of one without a result."`
}

// Commitment is one of them, in hex.
type Commitment struct {
	Commitment string `json:"commitment" doc:"SHA-256 over the salt's bytes and then the exact ones, in hex, as it stands in the record."`
	Salt       string `json:"salt,omitzero" doc:"16 bytes in hex. Whoever has it can test guesses of what was committed to: others than the caller get it only together with exact. Absent also when it isn't kept any more."`
	Exact      string `json:"exact,omitzero" doc:"The exact bytes, as text, where they are kept: arguments of which nothing was left out or written otherwise in the record, a result for a day."`
}

// Show tells a call's commitments. Its caller (own) knows what was committed to, and gets the
// salts. To anybody else a salt would be the means to guess at what was left out of the record,
// such as a password on standard input: they get it where the exact bytes are to be read anyway.
func Show(c *fleet.Call, own bool) Commitments {
	out := Commitments{CallID: string(c.ID), Args: shown(c.Commitment, c.Salt, c.Args, own)}
	if c.ResultCommitment != nil {
		result := shown(c.ResultCommitment, c.ResultSalt, c.Result, own)
		out.Result = &result
	}
	return out
}

func shown(commitment, salt, kept []byte, own bool) Commitment {
	out := Commitment{Commitment: hex.EncodeToString(commitment)}
	exact := len(salt) > 0 && utf8.Valid(kept) && bytes.Equal(Of(salt, kept), commitment)
	if exact {
		out.Exact = string(kept)
	}
	if exact || own {
		out.Salt = hex.EncodeToString(salt)
	}
	return out
}

package fleet

// Claim is an agent that has proved its key and wants to be the one that's connected.
type Claim struct {
	Agent      AgentID
	Generation int64
	Instance   string // of its process
	LastEpoch  int64  // the epoch that it stored last
	At         int64  // now, in seconds since 1970
	// Beside: another process with the same key is connected and answers.
	Beside bool
}

// Verdict is what a claim came to.
type Verdict string

// The verdicts.
const (
	Admitted Verdict = "admitted"
	// Reclaimed: admitted, because this process was connected before the one that is now the
	// agent's, which it has outlived: that one is a copy.
	Reclaimed Verdict = "reclaimed"
	// Forked: its state is older than what the agent has acknowledged.
	Forked Verdict = "forked"
	// Duplicate: another process has the same state, and the identity is kept for that.
	Duplicate Verdict = "duplicate"
)

// Epoch is n for a claim that was admitted, else 0.
func (v Verdict) Epoch(n int64) int64 {
	if v == Admitted || v == Reclaimed {
		return n
	}
	return 0
}

// Standing is what's known of the processes that have an agent's key.
type Standing struct {
	Epoch     int64  // of the latest connection
	Acked     int64  // the highest that was acknowledged
	Instance  string // of the latest connection
	Kept      string // the only instance that is let in; "" for any
	KeptEpoch int64  // until this is below acked
	Earlier   string // the instances before the latest: see holders
}

// Judge decides a claim and changes the standing by it; an admitted one has a new epoch, of
// at least lowest.
//
// A LastEpoch below the highest that the agent acknowledged is Forked. A process Beside
// another one that has acknowledged no less is a Duplicate; from then on the identity is kept
// for the other one, whether it's connected or not, until that has acknowledged a newer
// epoch, which makes the duplicate a fork for good. A process that held the identity earlier,
// and that is still there with the state it had then, was restarted as none of those that
// came after it, since it has its folder locked: it has its identity back, Reclaimed, and
// they are forgotten. Of several, the earliest has it.
func (s *Standing) Judge(c Claim, lowest int64) Verdict {
	verdict := Admitted
	earlier := parseHolders(s.Earlier)
	back := earlier.find(c.Instance, c.LastEpoch)
	switch {
	case back >= 0 && c.Instance != s.Instance:
		verdict = Reclaimed
		s.Kept, s.KeptEpoch = c.Instance, s.Epoch
		s.Instance, s.Earlier = c.Instance, earlier[:back].String()
	case c.LastEpoch < s.Acked && c.Instance != s.Kept:
		return Forked
	case s.Kept != "" && c.Instance != s.Kept:
		return Duplicate
	case c.Beside && c.Instance != s.Instance:
		s.Kept, s.KeptEpoch = s.Instance, max(s.Epoch, c.LastEpoch)
		return Duplicate
	case c.Instance != s.Instance:
		if s.Instance != "" {
			s.Earlier = earlier.add(s.Instance, s.Acked, c.At).String()
		}
		s.Instance = c.Instance
	}
	s.Epoch = max(s.Epoch+1, lowest, c.LastEpoch+1, s.KeptEpoch+1)
	return verdict
}

package mux

// maxRecent is how many calls that have ended a session remembers: on the agent's side to
// turn away repeats, on the calling side for what comes late of calls that were given up.
const maxRecent = 1024

// recent remembers the newest ids of a kind.
type recent struct {
	ids    []string // a ring
	oldest int
	known  map[string]struct{}
}

// add remembers id, and returns the one that is forgotten for it, or "".
func (r *recent) add(id string) (forgotten string) {
	if r.has(id) {
		return ""
	}
	if r.known == nil {
		r.known = map[string]struct{}{}
	}
	r.known[id] = struct{}{}
	if len(r.ids) < maxRecent {
		r.ids = append(r.ids, id)
		return ""
	}
	forgotten = r.ids[r.oldest]
	r.ids[r.oldest] = id
	r.oldest = (r.oldest + 1) % maxRecent
	if _, ok := r.known[forgotten]; !ok {
		return ""
	}
	delete(r.known, forgotten)
	return forgotten
}

func (r *recent) has(id string) bool {
	_, ok := r.known[id]
	return ok
}

func (r *recent) forget(id string) { delete(r.known, id) }

package mcpapi

// Enforce ends the sessions of principals that aren't alive any more, and brings the tool lists
// of the others' up to date. Requests and streams are edge.Serving's to end, calls under way
// dispatch's.
func (a *API) Enforce(alive func(principal string) bool) {
	for _, s := range a.servers.all() {
		if !alive(s.principal) {
			a.servers.drop(s.principal)
		}
	}
	a.Refresh()
}

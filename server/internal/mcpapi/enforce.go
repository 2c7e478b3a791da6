package mcpapi

// Enforce revokes every principal that is open here and no longer alive, and brings the
// tool lists of the others' sessions up to date.
func (a *API) Enforce(alive func(principal string) bool) {
	held := map[string]bool{}
	for _, s := range a.servers.all() {
		held[s.principal] = true
	}
	a.mu.Lock()
	for principal := range a.open {
		held[principal] = true
	}
	a.mu.Unlock()
	for principal := range held {
		if !alive(principal) {
			a.Revoke(principal)
		}
	}
	a.Refresh()
}

package mcpapi

import (
	"net/http"
	"strings"
)

// Header names of MCP's streamable HTTP transport.
const (
	versionHeader = "Mcp-Protocol-Version"
	sessionHeader = "Mcp-Session-Id"
)

// modernVersion is the first revision without sessions: closing the response is the
// cancel. Revisions are dates, which compare as text.
const modernVersion = "2026-07-28"

// stateful decides which of the SDK's two handlers serves a request: only the stateless
// one speaks the revisions from 2026-07-28 on, and only the stateful one can take older
// clients' cancels. Where a session id can't come back, because the client never echoes
// it or because another replica may be asked next, older revisions are served without
// sessions too. It may drop the header of a session that an initialize leaves behind.
func (a *API) stateful(r *http.Request, method string) bool {
	switch {
	case r.Header.Get(versionHeader) >= modernVersion, a.stateless:
		return false
	case method == methodInitialize:
		// A client whose session is gone may begin again with the old id still set.
		r.Header.Del(sessionHeader)
		return !strings.HasPrefix(r.UserAgent(), "Claude-User")
	case r.Header.Get(sessionHeader) != "":
		return true
	default:
		return false
	}
}

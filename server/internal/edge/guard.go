package edge

import (
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Hosts lets only requests pass whose Host is an IP literal, localhost or one of allow
// (names without port, in any case), so that a web page can't reach this server under a
// name of its own (DNS rebinding). The port is free: a proxy may have another. The refusal
// says which flag to set.
func Hosts(allow ...string) func(http.Handler) http.Handler {
	names := map[string]bool{"localhost": true}
	for _, a := range allow {
		names[canonicalHost(a)] = true
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host := canonicalHost(r.Host)
			if _, err := netip.ParseAddr(host); err != nil && !names[host] {
				WriteError(w, fleet.Errorf(protocol.CodeDenied,
					"this server doesn't answer to the host name %s; if it should, start it with --public-url https://NAME (DROVER_PUBLIC_URL)", text.Quote(r.Host, 80)))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// canonicalHost strips port, brackets and one final dot, and lowers the case.
func canonicalHost(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// Loopback tells whether a Host (with or without a port) names this machine itself:
// localhost or a loopback address. A request that came through a proxy carries the public
// name, as long as the proxy keeps it.
func Loopback(hostport string) bool {
	host := canonicalHost(hostport)
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// HostName returns the host name of a URL such as --public-url, for Hosts.
func HostName(publicURL string) (string, error) {
	u, err := url.Parse(publicURL)
	if err != nil || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return "", fmt.Errorf("%q isn't an http or https URL with a host name", publicURL)
	}
	return u.Hostname(), nil
}

// CrossOrigin refuses requests that a browser sends for another site and that aren't safe
// methods (http.CrossOriginProtection). trusted are origins ("https://drover.example.com")
// that are let through: the public URL's, for proxies that change the Host. refused is told of
// each request that isn't.
func CrossOrigin(refused func(*http.Request, *fleet.Error), trusted ...string) (func(http.Handler) http.Handler, error) {
	guard := http.NewCrossOriginProtection()
	for _, origin := range trusted {
		if err := guard.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("the origin %q: %w", origin, err)
		}
	}
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fe := fleet.Errorf(protocol.CodeDenied,
			"a web page of the origin %s may not send requests to this server; if it's this server's own page behind a proxy, start it with --public-url (DROVER_PUBLIC_URL)", text.Quote(r.Header.Get("Origin"), 80))
		refused(r, fe)
		WriteError(w, fe)
	}))
	return guard.Handler, nil
}

// Origin returns the origin of a URL, for CrossOrigin.
func Origin(publicURL string) (string, error) {
	if _, err := HostName(publicURL); err != nil {
		return "", err
	}
	u, err := url.Parse(publicURL)
	if err != nil {
		return "", err
	}
	return u.Scheme + "://" + strings.ToLower(u.Host), nil
}

// SameOrigin tells whether a browser sent r for a page of this very origin, or whoever sent
// it is no browser: these say where they come from.
func SameOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return true
	case "":
	default:
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}

// JSONBody refuses bodies that aren't declared as application/json: a form or plain text is
// what a web page can send without asking. Requests without a body pass.
func JSONBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := DeclaredJSON(r); err != nil {
			WriteError(w, fleet.AsError(err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ReasonMediaType is that of a body that isn't declared as what it must be.
const ReasonMediaType = "media_type"

// DeclaredJSON tells whether JSONBody lets a request pass. Its error is a *fleet.Error.
func DeclaredJSON(r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	if IsJSON(r.Header.Get("Content-Type")) {
		r.Header.Set("Content-Type", "application/json") // however it was written: names of types have no case
		return nil
	}
	fe := fleet.Errorf(protocol.CodeBadArgs, "the body must be sent as Content-Type: application/json")
	fe.Reason = ReasonMediaType
	return fe
}

// IsJSON tells whether a Content-Type is application/json, in UTF-8 where it says so.
func IsJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || media != "application/json" {
		return false
	}
	cs := params["charset"]
	return cs == "" || strings.EqualFold(cs, "utf-8")
}

// Allow are the methods that the path of a request takes in the router that it came through, as
// the header Allow has them.
func Allow(r *http.Request) string {
	var all []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if chi.RouteContext(r.Context()).Routes.Match(chi.NewRouteContext(), method, r.URL.EscapedPath()) {
			all = append(all, method)
			if method == http.MethodGet {
				all = append(all, http.MethodHead) // by its own route, or GET's
			}
		}
	}
	return strings.Join(all, ", ")
}

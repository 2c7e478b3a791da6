package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/drover-fleet/drover/protocol/text"
)

// NewClient makes an HTTP client for enrolment and tunnel: proxies as HTTPS_PROXY,
// HTTP_PROXY and NO_PROXY say, and, when caFile isn't "", only the certificate authorities
// in that PEM file. Its errors say what to do about proxies and certificates.
func NewClient(caFile string) (*http.Client, error) {
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		OnProxyConnectResponse: proxyAnswer,
		DialContext:            (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    15 * time.Second,
		ResponseHeaderTimeout:  15 * time.Second,
		MaxIdleConns:           1,
		IdleConnTimeout:        5 * time.Second,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if caFile != "" {
		pem, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("the CA file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the CA file %s holds no certificate in PEM form", caFile)
		}
		t.TLSClientConfig.RootCAs = pool
	}
	return &http.Client{Transport: &explaining{next: t, caFile: caFile}}, nil
}

// ProxyError is an HTTP proxy's answer when it was asked for a way to the server and gave none.
type ProxyError struct {
	Proxy      string // its address, without user and password; "on the way" if it isn't known
	Status     int
	RetryAfter time.Duration // from the header; 0 when there's none
}

// Error implements error.
func (e *ProxyError) Error() string {
	if e.Status == http.StatusProxyAuthRequired {
		return fmt.Sprintf("the proxy %s wants a user and a password that it accepts (status 407): give them as http://USER:PASSWORD@HOST:PORT in HTTPS_PROXY", e.Proxy)
	}
	return fmt.Sprintf("the proxy %s opens no way to the server (status %d %s): it must allow CONNECT to it, or name the server in NO_PROXY to go there directly",
		e.Proxy, e.Status, http.StatusText(e.Status))
}

// proxyAnswer refuses what isn't 200, with what to do about it.
func proxyAnswer(_ context.Context, proxy *url.URL, _ *http.Request, res *http.Response) error {
	if res.StatusCode == http.StatusOK {
		return nil
	}
	e := &ProxyError{Proxy: text.Line(proxy.Host, 256), Status: res.StatusCode}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 && s < 86400 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}

// wayError is trouble on the way to the server that somebody can mend.
type wayError struct {
	kind string
	error
}

// Unwrap returns the cause.
func (e *wayError) Unwrap() error { return e.error }

// explaining says in errors what whoever runs the agent can do about them.
type explaining struct {
	next   *http.Transport
	caFile string
}

// RoundTrip implements http.RoundTripper.
func (x *explaining) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := x.next.RoundTrip(r)
	if err == nil && res.StatusCode != http.StatusProxyAuthRequired {
		return res, nil
	}
	if err == nil { // plain http: the proxy answers in the server's place
		_ = res.Body.Close()
		err = &ProxyError{Status: res.StatusCode, Proxy: "on the way"}
		if proxy, perr := x.next.Proxy(r); perr == nil && proxy != nil {
			err = proxyAnswer(r.Context(), proxy, nil, res)
		}
	}
	var proxied *ProxyError
	if errors.As(err, &proxied) {
		return nil, proxied
	}
	if hint := x.certificate(err); hint != "" {
		return nil, &wayError{"certificate", fmt.Errorf("%w: %s", err, hint)}
	}
	if proxy, perr := x.next.Proxy(r); perr == nil && proxy != nil {
		return nil, &wayError{"proxy", fmt.Errorf("through the proxy %s, which HTTPS_PROXY, HTTP_PROXY and NO_PROXY decide: %w", text.Line(proxy.Host, 256), err)}
	}
	return nil, err
}

// CloseIdleConnections lets http.Client close them.
func (x *explaining) CloseIdleConnections() { x.next.CloseIdleConnections() }

// certificate says what to do about a server's certificate that isn't trusted, "" when
// that isn't what err is about.
func (x *explaining) certificate(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown) && x.caFile != "":
		return "the server's certificate isn't signed by an authority in " + x.caFile + ", and with --ca-file no others count"
	case errors.As(err, &unknown):
		return "this host doesn't know the authority that signed the server's certificate: give its certificate with --ca-file, or install it on the host"
	case errors.As(err, &name):
		return "the server's certificate is for another name: --server must name the server as its certificate does"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "by this host's clock it's " + time.Now().UTC().Format(time.RFC3339) + ": if that's wrong, set the clock; if it's right, renew the server's certificate"
	}
	return ""
}

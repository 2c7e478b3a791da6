package link

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// NewClient makes an HTTP client for enrolment and tunnel: proxies as HTTPS_PROXY,
// HTTP_PROXY and NO_PROXY say, and, when caFile isn't "", only the certificate authorities
// in that PEM file.
func NewClient(caFile string) (*http.Client, error) {
	t := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 15 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   15 * time.Second,
		ResponseHeaderTimeout: 15 * time.Second,
		MaxIdleConns:          1,
		IdleConnTimeout:       5 * time.Second,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
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
	return &http.Client{Transport: t}, nil
}

package server

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store/pgconf"
)

// Config is what a server is started with. The zero value of a field has the meaning that
// its comment gives.
type Config struct {
	// Listen is the address to serve HTTP on; "127.0.0.1:7400" when empty. Port 0 takes a
	// free one: see Server.URL.
	Listen string
	// DataDir holds the server's key and, unless DatabaseURL is set, the database. It's
	// created with mode 0700. Required.
	DataDir string
	// DatabaseURL is a postgres:// URL; empty means SQLite in DataDir.
	DatabaseURL string
	// NatsURL joins this replica to others that serve the same database: nats://HOST:PORT or
	// tls://HOST:PORT. Empty: this server has the database to itself.
	NatsURL string
	// ServerKeyFile holds the server's key; DataDir/server.key when empty. Replicas need the
	// same key.
	ServerKeyFile string
	// NewServerKey lets the key in ServerKeyFile take the place of the one that the enrolled
	// agents trust: they're let in no more until they are enrolled again.
	NewServerKey bool
	// PublicURL is how clients reach the server from outside ("https://drover.example.org"),
	// behind a proxy for instance. Its host name is accepted as Host and as Origin.
	PublicURL string
	// EnrollCommand is what makes an enrolment token on the server's machine, without
	// --agent-id; the page shows it to administrators. Empty: nothing is known of it.
	EnrollCommand string
	// Version is shown to clients and agents; "dev" when empty.
	Version string
	// KeepAlive is how often agents are pinged; 20 s when zero, at most 25 s.
	KeepAlive time.Duration
	// ResultTTL is how long results are kept for call_result; a day when zero.
	ResultTTL time.Duration
	// DrainTimeout is how long a stopping server waits for running calls; 10 s when zero.
	// What runs longer goes on, and is asked for at the next start.
	DrainTimeout time.Duration
	// ResumeWait is the longest that a call whose connection was cut waits for its agent to
	// come back; zero: as long as the call may run, and two minutes beyond.
	ResumeWait time.Duration
	// CancelWait is the same once its end was asked for; zero: two minutes.
	CancelWait time.Duration
}

// bad refuses a configuration, before anything is done.
func bad(format string, args ...any) error {
	return fleet.Errorf(protocol.CodeBadArgs, format, args...)
}

// Check refuses what New would refuse of a configuration by itself, and an address that this
// machine can't listen on, before anything is made. One that another program has is New's to
// tell: whoever has the data as well comes first.
func (c Config) Check() error {
	c, err := c.withDefaults()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.Listen)
	if err == nil {
		return l.Close()
	}
	if AddressTaken(err) {
		return nil
	}
	return fmt.Errorf("can't listen on %s (%w); give another address with --listen", c.Listen, err)
}

// AddressTaken tells whether another program listens there already.
func AddressTaken(err error) bool {
	const windows = syscall.Errno(10048) // WSAEADDRINUSE
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, windows)
}

func (c Config) withDefaults() (Config, error) {
	if c.Listen == "" {
		c.Listen = "127.0.0.1:7400"
	}
	if c.DataDir == "" {
		return c, bad("no data folder is given: --data DIR")
	}
	_, port, err := net.SplitHostPort(c.Listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return c, bad("--listen must be HOST:PORT: %v", err)
	}
	if c.PublicURL != "" {
		u, err := url.Parse(c.PublicURL)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" || (u.Path != "" && u.Path != "/") {
			return c, bad("--public-url must be http(s)://HOST without a path")
		}
		c.PublicURL = u.Scheme + "://" + u.Host
	}
	if err := c.checkServices(); err != nil {
		return c, err
	}
	if c.ServerKeyFile == "" {
		c.ServerKeyFile = filepath.Join(c.DataDir, enroll.KeyFile)
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = 20 * time.Second
	}
	if c.KeepAlive > 25*time.Second {
		return c, bad("the keep-alive must be at most 25 s: proxies cut connections that are idle for longer")
	}
	if c.ResultTTL == 0 {
		c.ResultTTL = 24 * time.Hour
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = 10 * time.Second
	}
	return c, nil
}

func (c Config) checkServices() error {
	if c.NatsURL != "" && c.DatabaseURL == "" {
		return bad("several replicas (--nats-url) need one PostgreSQL database: give --database-url")
	}
	for one := range strings.SplitSeq(c.NatsURL, ",") {
		if scheme, _, ok := strings.Cut(strings.TrimSpace(one), "://"); ok && scheme != "nats" && scheme != "tls" {
			return bad("--nats-url must be nats://HOST:PORT or tls://HOST:PORT")
		}
	}
	if c.DatabaseURL == "" {
		return nil
	}
	if _, err := pgconf.Parse(c.DatabaseURL); err != nil {
		return bad("--database-url: %v", err)
	}
	return nil
}

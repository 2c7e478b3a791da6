package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/memory"
	"github.com/drover-fleet/drover/server/internal/obs"
)

func (a *app) serveCmd() *cobra.Command {
	var cfg server.Config
	var logFormat, logLevel string
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the server", Args: noArgs,
		Long: `Runs the server until it gets SIGINT or SIGTERM; then it takes no new calls, waits a
while for the running ones and tells the agents to come back. A second signal ends it
at once.

By default it listens on this machine alone. To let agents and clients in from
elsewhere, put a TLS proxy before it (docs/deploy.md) and say how it's reached:
--public-url https://drover.example.org.

It lets about 64 MB of garbage lie while it works and gives it back when it's idle, and
keeps below 70 % of the machine's or the container's memory as far as it can; GOGC and
GOMEMLIMIT in the environment overrule either.`,
		Example: `  drover serve
  drover serve --data /var/lib/drover --public-url https://drover.example.org
  drover serve --database-url postgres://drover@db/drover
  drover serve --database-url postgres://drover@db/drover --nats-url nats://mq:4222 --server-key /etc/drover/server.key`,
	}
	w := &where{}
	f := cmd.Flags()
	w.localFlags(f, a.getenv)
	f.StringVar(&cfg.Listen, "listen", "127.0.0.1:7400", "the address to serve HTTP on")
	env(f, "listen", "DROVER_LISTEN")
	f.StringVar(&cfg.NatsURL, "nats-url", "", "joins this server to others on the same --database-url: nats://HOST:PORT or tls://HOST:PORT")
	env(f, "nats-url", "DROVER_NATS_URL")
	f.BoolVar(&cfg.NewServerKey, "new-server-key", false, "once, when the server's key is lost for good: go on with another one; every agent has to be enrolled again")
	f.StringVar(&cfg.PublicURL, "public-url", "", "how clients and agents reach the server from outside")
	env(f, "public-url", "DROVER_PUBLIC_URL")
	f.StringVar(&logFormat, "log-format", a.logFormat(), "json or text")
	env(f, "log-format", "DROVER_LOG_FORMAT")
	f.StringVar(&logLevel, "log-level", "info", "debug, info, warn or error")
	env(f, "log-level", "DROVER_LOG_LEVEL")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := obs.NewLogger(a.err, logFormat, logLevel)
		if err != nil {
			return fleet.Errorf(protocol.CodeBadArgs, "%v", err)
		}
		cfg.DataDir, cfg.DatabaseURL, cfg.ServerKeyFile, cfg.Version = w.data, w.databaseURL, w.serverKey(), versionText()
		cfg.EnrollCommand = enrollCommand(w)
		memory.Tune(cmd.Context(), a.getenv)
		s, err := server.New(cfg, log)
		if err != nil {
			if server.AddressTaken(err) {
				return fmt.Errorf("%s is taken by another program (%w); give another address with --listen", cfg.Listen, err)
			}
			return withCause(err)
		}
		return s.Run(cmd.Context())
	}
	return cmd
}

// logFormat is text for people and JSON for programs.
func (a *app) logFormat() string {
	if a.errTTY {
		return "text"
	}
	return "json"
}

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// takeData takes the database, alone or among replicas, and sees to it that this server has the
// key which it's served with. made tells that the key's file was made just now: it goes again
// when it's refused.
func (s *Server) takeData(ctx context.Context, made bool) error {
	if err := s.hold(ctx, s.cfg.NatsURL != ""); err != nil {
		return err
	}
	err := s.settleKey(ctx, made)
	if err != nil && made {
		err = errors.Join(err, os.Remove(s.cfg.ServerKeyFile))
	}
	return err
}

// hold takes the database, in the place of how it was held before.
func (s *Server) hold(ctx context.Context, shared bool) (err error) {
	if s.own != nil {
		if err := s.own.Release(); err != nil {
			return err
		}
	}
	take := s.db.Own
	if shared {
		take = s.db.Share
	}
	s.own, err = take(ctx)
	if err == nil || s.cfg.DatabaseURL != "" || fleet.AsError(err).Code != protocol.CodeConflict {
		return err
	}
	at := ""
	if url, rerr := os.ReadFile(filepath.Join(s.cfg.DataDir, URLFile)); rerr == nil {
		at = ", at " + text.Line(strings.TrimSpace(string(url)), 200)
	}
	return fleet.Wrap(protocol.CodeConflict, err, "Drover already runs on the data in %s%s; use that one, or stop it first, or give this one another folder with --data", s.cfg.DataDir, at)
}

// settleKey refuses a key that isn't the database's own: its agents would find an impostor
// here, and be offline through this server alone. Another key may take its place where no agent
// trusts it and nobody serves with it, and where the operator gives it up.
func (s *Server) settleKey(ctx context.Context, made bool) error {
	if err := s.db.Refresh(ctx); err != nil {
		return err
	}
	key, agents := enroll.Fingerprint(s.key), len(s.db.Snapshot().Agents)
	known, err := s.db.ServerKey(ctx, "", "")
	lost := agents > 0 && (known != "" || made) && known != key
	if err == nil && !lost && known == "" { // the first server, or the first one that keeps account of it
		known, err = s.db.ServerKey(ctx, key, "")
	}
	switch {
	case err != nil || known == key:
		return err
	case lost && !s.cfg.NewServerKey:
		return s.foreignKey(made, known)
	}
	return s.replaceKey(ctx, made, known, agents)
}

// replaceKey makes this server's key the database's own in the place of the one that is known.
// That takes the database for a moment when nobody else serves it.
func (s *Server) replaceKey(ctx context.Context, made bool, known string, agents int) error {
	shared := s.cfg.NatsURL != ""
	if shared {
		switch err := s.hold(ctx, false); {
		case err != nil && fleet.AsError(err).Code == protocol.CodeConflict: // somebody serves with the other key
			return s.foreignKey(made, known)
		case err != nil:
			return err
		}
	}
	key := enroll.Fingerprint(s.key)
	now, err := s.db.ServerKey(ctx, key, known)
	if err == nil && shared {
		if err = s.hold(ctx, true); err == nil {
			now, err = s.db.ServerKey(ctx, "", "") // another one may have come in between
		}
	}
	switch {
	case err != nil:
		return err
	case now != key:
		return s.foreignKey(made, now)
	case agents > 0:
		s.log.Error("another server key counts from now on: the agents trust the one before it and won't connect; enrol every agent again with drover enroll create --replace",
			"file", s.cfg.ServerKeyFile, "agents", agents)
	default:
		s.log.Info("another server key counts from now on; no agent was enrolled", "file", s.cfg.ServerKeyFile)
	}
	return nil
}

// foreignKey says what to do about a key that isn't the database's own; known is that one's
// fingerprint, "" when nobody has written it down.
func (s *Server) foreignKey(made bool, known string) error {
	data := "the PostgreSQL database of --database-url"
	if s.cfg.DatabaseURL == "" {
		data = filepath.Join(s.cfg.DataDir, "drover.db")
	}
	what := s.cfg.ServerKeyFile + " has another server key"
	if made {
		what = s.cfg.ServerKeyFile + " was not there, and a new server key is another one"
	}
	if known != "" {
		known = fmt.Sprintf(" (fingerprint %.16s…)", known)
	}
	return fmt.Errorf("%s than %s is served with%s: agents trust that one alone, and would never connect here. Copy the right server.key there, from another replica or a backup, or name it with --server-key. If it's lost for good: stop all other servers of this database, start one with --new-server-key, once, and enrol every agent again with drover enroll create --replace",
		what, data, known)
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server"
	"github.com/drover-fleet/drover/server/internal/authn"
	"github.com/drover-fleet/drover/server/internal/dispatch"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
	"github.com/drover-fleet/drover/server/internal/store"
)

// openLocal makes a client of an API over the data itself, beside a server that may be
// running: whoever may open the data is its administrator. The server notices the changes.
// create allows to make a new data folder: what is printed from one that no server uses would
// be good for nothing.
func openLocal(ctx context.Context, w *where, create bool) (*client, error) {
	key, err := localKey(w, create)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	db, err := store.Open(ctx, store.Config{DataDir: w.data, DatabaseURL: w.databaseURL, Key: key, Log: log})
	if err != nil {
		return nil, withCause(err)
	}
	tokens := authn.New(db)
	api, err := restapi.New(restapi.Config{
		Dispatch: dispatch.New(dispatch.Config{
			Store: db, Router: noTunnels{}, Online: func(fleet.AgentID) (bool, time.Time) { return false, time.Time{} },
			Alive: func(string) bool { return true }, Log: log,
		}),
		PATs:      localTokens{Service: tokens, who: localPrincipal()},
		Enrolment: localEnrolment{Service: enroll.New(enroll.Config{Store: db, ServerKey: key, Log: log}), where: w, key: key, db: db},
		Bodies:    edge.NewBodies(func(string) bool { return true }),
		Serving:   edge.NewServing(func(string) bool { return true }),
		Store:     db, Blind: true, Version: versionText(), Log: log,
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &client{base: "http://localhost", http: &http.Client{Transport: inProcess{api}}, close: db.Close, tokens: tokens}, nil
}

// withCause adds the private cause to an error of opening the database: whoever starts a
// server or administers its data is who may know, and the driver leaves passwords out.
func withCause(err error) error {
	fe, ok := errors.AsType[*fleet.Error](err)
	if !ok || fe.Code != protocol.CodeUnavailable || fe.Err == nil {
		return err
	}
	told := *fe
	told.Message += ": " + text.Line(fe.Err.Error(), 500)
	return &told
}

// absolutePath is path as people find it from anywhere.
func absolutePath(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func present(dir, file string) bool {
	_, err := os.Stat(filepath.Join(dir, file))
	return !errors.Is(err, fs.ErrNotExist)
}

// localKey reads the server's key. It's made with a new data folder, and nil where there's
// only a database: its server keeps the key elsewhere.
func localKey(w *where, create bool) (ed25519.PrivateKey, error) {
	exists := func(file string) bool { return present(w.data, file) }
	switch {
	case w.databaseURL != "" && w.keyFile == "" && !exists(enroll.KeyFile):
		return nil, nil
	case w.databaseURL == "" && !exists("drover.db") && (present(w.serverKey(), "") || exists(server.URLFile)):
		// A new database beside it would print credentials that its server never heard of.
		return nil, fleet.Errorf(protocol.CodeBadArgs, "%s has a server's files but no drover.db: if that server uses PostgreSQL, give its database with --database-url or DROVER_DATABASE_URL, as the server has it; if it's new, let drover serve start there first; or use --url",
			w.data)
	case w.databaseURL == "" && exists("drover.db") && !present(w.serverKey(), ""):
		return nil, checkOwner(w.data) // another key made here would keep the server from its data
	case w.databaseURL == "" && !create && !exists("drover.db"):
		return nil, fleet.Errorf(protocol.CodeNotFound, "there's no Drover data in %s. A server makes it when it first starts: drover serve there, make run in .data. Start it first, name its folder with --data DIR, or ask a running server with --url URL",
			absolutePath(w.data))
	}
	if err := os.MkdirAll(w.data, 0o700); err != nil {
		return nil, fleet.Wrap(protocol.CodeUnavailable, err, "the data folder can't be made: %v; give --data DIR, or --url URL to ask a running server", err)
	}
	if err := checkOwner(w.data); err != nil {
		return nil, err
	}
	key, err := enroll.LoadServerKey(w.serverKey())
	if err != nil {
		return nil, fmt.Errorf("%w; run this as the user that runs the server, or use --url", err)
	}
	return key, nil
}

// localEnrolment is enrolment beside the server.
type localEnrolment struct {
	*enroll.Service
	where *where
	key   ed25519.PrivateKey
	db    *store.DB
}

// Create implements restapi.Enrolment. A token carries the fingerprint of the server's key:
// without the right one it would be refused on the host.
func (l localEnrolment) Create(ctx context.Context, by string, spec enroll.Spec) (string, *enroll.Token, error) {
	if l.key == nil {
		return "", nil, fleet.Errorf(protocol.CodeBadArgs, "a token needs the server's key, and %s isn't there: give it with --server-key, or the server's data folder with --data too, or use --url",
			l.where.serverKey())
	}
	if known, err := l.db.ServerKey(ctx, "", ""); err != nil || known != "" && known != enroll.Fingerprint(l.key) {
		return "", nil, cmp.Or(err, error(fleet.Errorf(protocol.CodeBadArgs, "a token needs the server's key, and %s has another one than the server of this data: give the right one with --server-key, or use --url", l.where.serverKey())))
	}
	return l.Service.Create(ctx, by, spec)
}

// localPrincipal is who administers beside the server: a user of this machine.
func localPrincipal() fleet.Principal {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	clean := strings.Map(func(r rune) rune {
		if r == '.' || r == '_' || r == '-' || (r >= '0' && r <= '9') || (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z') {
			return r
		}
		return '-'
	}, name)
	return authn.System("cli:" + clean)
}

// localTokens lets every request in as the local administrator.
type localTokens struct {
	*authn.Service
	who fleet.Principal
}

// Bearer implements restapi.Tokens.
func (l localTokens) Bearer(*http.Request) (fleet.Principal, bool, error) { return l.who, true, nil }

// noTunnels is the router of a process without tunnels.
type noTunnels struct{}

// Route implements dispatch.Router.
func (noTunnels) Route(fleet.AgentID, int64) (dispatch.Caller, bool) { return nil, false }

// inProcess carries requests to a handler without a network.
type inProcess struct{ h http.Handler }

// RoundTrip implements http.RoundTripper.
func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.Body == nil {
		r.Body = http.NoBody
	}
	rec := &recorder{header: http.Header{}, status: http.StatusOK}
	p.h.ServeHTTP(rec, r)
	return &http.Response{
		StatusCode: rec.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: rec.header,
		Body: io.NopCloser(&rec.body), ContentLength: int64(rec.body.Len()), Request: r,
	}, nil
}

type recorder struct {
	header http.Header
	status int
	wrote  bool
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(status int) {
	if !r.wrote {
		r.status, r.wrote = status, true
	}
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(b []byte) (int, error) {
	r.wrote = true
	return r.body.Write(b)
}

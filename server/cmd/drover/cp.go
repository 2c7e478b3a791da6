package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/capability"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/edge"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/meter"
)

// cpFlags are the flags of drover cp.
type cpFlags struct {
	where       where
	mode        string
	mkdir, json bool
	resume      bool
}

func (a *app) cpCmd() *cobra.Command {
	o := &cpFlags{}
	cmd := &cobra.Command{
		Use: "cp SRC DST", Short: "Copy a file to or from one agent",
		Long: `Copies one file of any size to or from exactly the agent that's named: one side is
AGENT:PATH with an absolute path on the host, the other a local file. - is standard input
or output. A local name with a colon is written ./a:b. A destination that ends with / is a
folder, as is a local one that is there.

The file appears whole or not at all: what comes is kept beside the destination, checked
against the SHA-256 of the other side, and moved into place. A file that is replaced keeps
its mode, on a host also its owner; a new one gets 0644, or --mode.

A name on a host that isn't plain text is written as fs_list shows it, with \xNN for a
byte; a local name is taken as it is, and keeps its bytes on the other side.

A connection that's cut is taken up again where it broke. So is a copy that was ended:
the same command goes on with what is there, for a day on a host. --resume=false begins
anew, keeps nothing and tries once. What comes from standard input can't be resumed. An
agent that's offline from the beginning isn't waited for.

Exit code: 0, or 255 (standard error: drover: CODE: what happened).`,
		Example: `  export DROVER_URL=https://drover.example.org DROVER_PAT=drv_pat_…
  drover cp image.tar web-01:/srv/image.tar
  drover cp web-01:/var/log/nginx/access.log .
  drover cp --mkdir --mode 0755 ./deploy.sh web-01:/opt/shop/bin/
  tar c conf | drover cp - web-01:/tmp/conf.tar
  drover cp web-01:/etc/os-release -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fleet.Errorf(protocol.CodeBadArgs, "name the source and the destination: drover cp ./file AGENT:/path, or drover cp AGENT:/path ./file")
			}
			return nil
		},
	}
	f := cmd.Flags()
	o.where.remoteFlags(f, defaultURL)
	f.StringVar(&o.mode, "mode", "", "permissions of the copy as octal digits, such as 0755")
	f.BoolVar(&o.mkdir, "mkdir", false, "make missing folders on the host")
	f.BoolVar(&o.resume, "resume", true, "go on where an earlier try ended")
	f.BoolVar(&o.json, "json", false, "print what was copied as JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := a.cp(cmd.Context(), o, args[0], args[1]); err != nil {
			return &exit{code: exitCall, cause: err}
		}
		return nil
	}
	return cmd
}

// side is one end of a copy.
type side struct{ agent, path string } // agent is "" for this machine

// std: the local side is standard input or output.
func (s side) std() bool { return s.agent == "" && s.path == "-" }

// parseSide reads AGENT:PATH or a local path.
func parseSide(word string) (side, error) {
	name, rest, ok := strings.Cut(word, ":")
	drive := len(name) == 1 && (strings.HasPrefix(rest, `\`) || runtime.GOOS == "windows" && strings.HasPrefix(rest, "/"))
	switch {
	case word == "":
		return side{}, fleet.Errorf(protocol.CodeBadArgs, "the source and the destination can't be empty")
	case !ok || name == "" || strings.ContainsAny(name, `/\`) || drive:
		return side{path: word}, nil
	}
	if _, ok := fleet.ParseAgentID(name); !ok {
		return side{}, fleet.Errorf(protocol.CodeUnknownAgent, "%s is no agent id (a-z, 0-9 and -; see drover agents list); for a local file of that name write ./%s", text.Quote(name, 64), text.Line(word, 64))
	}
	if !absolute(rest) {
		return side{}, fleet.Errorf(protocol.CodeBadArgs, "the path on %s must be absolute, such as %s:/tmp/file; relative paths have no meaning on a host; for a local file of that name write ./%s", name, name, text.Line(word, 64))
	}
	return side{agent: name, path: text.EscapeInvalid(rest)}, nil
}

// absolute tells whether a path is absolute on the systems that agents run on.
func absolute(p string) bool {
	return strings.HasPrefix(p, "/") || strings.HasPrefix(p, `\\`) || len(p) > 2 && p[1] == ':' && (p[2] == '\\' || p[2] == '/')
}

// byteNames tells whether p is a path on a system whose names are bytes and have a written
// form (\xNN), not one on Windows.
func byteNames(p string) bool { return strings.HasPrefix(p, "/") }

// remoteBase is the last component of a path on a host, as a name on this machine.
func remoteBase(p string) string {
	if byteNames(p) {
		return text.UnescapeName(path.Base(p))
	}
	return path.Base(strings.ReplaceAll(p, `\`, "/"))
}

// remoteName is the name of a local file as a name in the folder on a host.
func remoteName(name, folder string) (string, error) {
	if err := named(name, folder); err != nil {
		return "", err
	}
	if byteNames(folder) {
		return text.EscapeName(name), nil
	}
	if !utf8.ValidString(name) || strings.ContainsAny(name, `\/:*?"<>|`) {
		return "", fleet.Errorf(protocol.CodeBadArgs, "%s can't be a file's name on Windows; name the file there", text.Quote(name, 80))
	}
	return name, nil
}

// transfer is one copy.
type transfer struct {
	app           *app
	api           *client
	o             *cpFlags
	agent, remote string
	local         string // "-" for standard input or output
	toHost        bool
	kept          string // what a download has left on this machine: a file, "" for nothing
	meter         *meter.Meter
	met           bool // the agent has answered
	began         time.Time
}

// copied is what --json prints.
type copied struct {
	Agent     string  `json:"agent_id"`
	Direction string  `json:"direction"` // upload or download
	Path      string  `json:"path"`      // on the host, after links
	Local     string  `json:"local"`
	Size      int64   `json:"size"`
	SHA256    string  `json:"sha256"`
	Resumed   int64   `json:"resumed_at,omitzero"` // bytes that an earlier try had brought
	CallID    string  `json:"call_id"`
	Seconds   float64 `json:"seconds"`
}

func (a *app) cp(ctx context.Context, o *cpFlags, from, to string) error {
	src, err := parseSide(from)
	if err != nil {
		return err
	}
	dst, err := parseSide(to)
	if err != nil {
		return err
	}
	if (src.agent == "") == (dst.agent == "") {
		return fleet.Errorf(protocol.CodeBadArgs, "one side must be AGENT:PATH and the other local, such as: drover cp ./file web-01:/tmp/file")
	}
	if o.json && dst.std() {
		return fleet.Errorf(protocol.CodeBadArgs, "--json and the file can't both go to standard output")
	}
	o.where.remote = true
	api, err := a.dial(&o.where)
	if err != nil {
		return err
	}
	t := &transfer{app: a, api: api, o: o, began: time.Now()}
	var done *copied
	if dst.agent != "" {
		t.agent, t.remote, t.local, t.toHost = dst.agent, dst.path, src.path, true
		done, err = t.upload(ctx)
	} else {
		t.agent, t.remote, t.local = src.agent, src.path, dst.path
		done, err = t.download(ctx)
	}
	if ctx.Err() != nil && err != nil {
		return fleet.Errorf(protocol.CodeCancelled, "stopped; %s", t.left())
	}
	if err != nil || !o.json {
		return err
	}
	done.Agent, done.Local, done.Seconds = t.agent, t.local, time.Since(t.began).Seconds()
	return printJSON(a.out, done)
}

// measure begins the progress line.
func (t *transfer) measure(size int64) {
	t.meter = &meter.Meter{W: t.app.err, On: t.app.errTTY, Name: t.agent + ":" + t.remote, Size: size, Now: time.Now}
}

// url is the path of the file in the API.
func (t *transfer) url(q url.Values) string {
	q.Set("path", t.remote)
	return "/agents/" + url.PathEscape(t.agent) + "/files?" + q.Encode()
}

// Patience with a connection that's cut.
const (
	cpTries = 10               // one after the other without a byte in between
	cpPause = 10 * time.Second // the longest, between two
)

// persist tries until it works, as long as failures are of the way and not of the file, and
// bytes move in between.
func (t *transfer) persist(ctx context.Context, try func(retry bool) error) error {
	contact, failed := false, 0
	for n := 0; ; n++ {
		before := t.meter.Moved()
		err := try(n > 0)
		contact = contact || !errors.Is(err, errDial)
		if err == nil || !t.o.resume || !contact || !goesOn(err) || ctx.Err() != nil {
			return err
		}
		if fleet.AsError(err).Code == protocol.CodeOffline && n == 0 && !t.met {
			return err // it wasn't there to begin with
		}
		if failed++; t.meter.Moved() > before {
			failed = 1
		}
		if failed >= cpTries {
			return err
		}
		wait := pauseAfter(err, min(cpPause, time.Second<<(failed-1)))
		t.meter.Clear()
		t.app.say("drover: %s; going on in %s", text.Line(err.Error(), 300), wait)
		if err := pause(ctx, wait); err != nil {
			return err
		}
	}
}

// goesOn tells whether a copy may go on after an error.
func goesOn(err error) bool {
	if passing(err) {
		return true
	}
	fe, ok := errors.AsType[*fleet.Error](err)
	if !ok || fe.Reason == "contradiction" { // a host that says what can't be won't do better
		return false
	}
	switch fe.Code {
	case protocol.CodeOffline, protocol.CodeNotStarted, protocol.CodeOutcomeUnknown:
		return true
	}
	switch fe.Reason {
	case capability.ReasonPartial, capability.ReasonCut, capability.ReasonInUse, capability.ReasonOffset, edge.ReasonBodyLate, edge.ReasonBodyCut:
		return true
	}
	return false
}

// ask sends a request of the files interface. An answer that is an error is returned as one.
func (t *transfer) ask(ctx context.Context, req *http.Request) (*http.Response, error) {
	resp, err := t.api.http.Do(req)
	if err != nil {
		return nil, t.api.unreachable(ctx, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, t.api.unreachable(ctx, err)
	}
	return nil, t.api.problem(resp, b)
}

// named refuses a source that has no name to use in a folder.
func named(name, folder string) error {
	if strings.ContainsAny(name, "/\x00"+string(filepath.Separator)) || slices.Contains([]string{"", ".", "..", "-"}, name) {
		return fleet.Errorf(protocol.CodeBadArgs, "the source has no name to use in %s; name the file there", text.Quote(folder, 80))
	}
	return nil
}

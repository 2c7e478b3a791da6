package link

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/drover-fleet/drover/protocol/wsconn"
)

// news logs once for each change: an agent that tries for a week, or that something cuts
// off every few seconds, doesn't fill the disk.
type news struct {
	log           *slog.Logger
	anew, agentID string // for what there's to do: see remedy
	last          string
	said          map[string]bool // states of this outage that there was a line about
	// next is when there's another line about dials that are answered and refused, which is
	// after twice the time that the one before waited, every.
	next  time.Time
	every time.Duration
	// unsteady: connections are cut again and again, the latest after held, though they are
	// used every keepAlive.
	unsteady        bool
	held, keepAlive time.Duration
	doubled         bool // there was a line about requests that come twice
}

func (n *news) up(w *welcomed) {
	if n.unsteady {
		n.log.Debug("connected", "epoch", w.Epoch, "protocol", w.Version)
		return
	}
	n.last, n.said, n.next = "up", nil, time.Time{}
	n.log.Info("connected", "epoch", w.Epoch, "protocol", w.Version)
	if w.ahead > skew || w.ahead < -skew {
		n.log.Warn("this host's clock and the server's differ; times in logs won't match",
			"ahead", w.ahead.Round(time.Second).String(), "server_time", time.UnixMicro(w.ServerTime).UTC())
	}
}

// repeated is told of each request that came twice over a connection; the log, of the first.
func (n *news) repeated(id string) {
	level := slog.LevelWarn
	if n.doubled {
		level = slog.LevelDebug
	}
	n.doubled = true
	n.log.Log(context.Background(), level, "a request came twice over one connection; it was dropped, and the first one goes on. The server, or a proxy on the way, doubles messages", "call", id)
}

// judged is told of each connection's end, whether it came too early once more.
func (n *news) judged(early int, held, keepAlive time.Duration) {
	n.unsteady, n.held, n.keepAlive = early > 1, held, keepAlive
	if early == 0 && n.last == "unsteady" {
		n.last, n.said = "up", nil
	}
}

// skew is the difference of clocks that is worth a line.
const skew = time.Minute

func (n *news) down(err error, wait time.Duration) {
	state := n.state(err)
	log := n.log.With("error", err, "retry_in", wait.Round(time.Millisecond).String())
	switch {
	case n.said[state] && n.again(err):
		log.Warn("still not connected: whoever answers, the server or a proxy in front of it, refuses the tunnel", "next_line_in", n.every.String())
		return
	case n.said[state], n.last == "unsteady" && state == "away":
		log.Debug("still not connected")
		return
	case state == "unsteady":
		log.Warn("the connection is cut again and again, though it's used regularly: a proxy on the way may cut idle connections too early; its idle timeout must be longer than the keep-alive",
			"held", n.held.Round(time.Millisecond).String(), "keep_alive", n.keepAlive.String())
	case n.shutOut(err) != "":
		log.Error(n.shutOut(err))
	case state == "impostor":
		log.Warn("not connected: whoever answers doesn't prove, for this agent, the key of its server, and was told nothing. Either the server doesn't know this agent and its key, as when its database was put back to a time before the enrolment: then " +
			n.remedy(n.agentID, " (with --replace if it has the id)") + ". Or it's another server, or something stands between: then check the URL. This agent tries again until it works, without a further line")
	case state == "removed":
		log.Warn("not connected: the server ended it, as this agent was removed or its key replaced; asking which")
	case n.refusal(err):
		log.Warn("not connected: the server, or a proxy in front of it, answers and refuses the tunnel; trying again until it works. If it goes on, ask whoever runs them: 502, 503 and 504 are most often a proxy's that reaches no server")
	default:
		log.Warn("not connected; trying again until it works")
	}
	n.last = state
	if n.said == nil {
		n.said = map[string]bool{}
	}
	n.said[state] = true
}

// Lines about dials that are refused all the time.
const (
	againFirst = time.Minute
	againLast  = time.Hour
)

// refusal tells that a dial was answered by something that opened no tunnel.
func (n *news) refusal(err error) bool {
	_, ok := errors.AsType[*wsconn.DialError](err)
	return ok
}

// again tells that it's time for another line about a refusal.
func (n *news) again(err error) bool {
	now := time.Now()
	switch {
	case !n.refusal(err):
		return false
	case n.next.IsZero(): // the first refusal has its own line
		n.every = againFirst
	case now.Before(n.next):
		return false
	default:
		n.every = min(2*n.every, againLast)
		n.next = now.Add(n.every)
		return true
	}
	n.next = now.Add(n.every)
	return false
}

// remedy says how to enrol this host anew, under id; more is about the first command.
func (n *news) remedy(id, more string) string {
	return "enrol this host anew: `drover enroll create --agent-id " + id + "`" + more + " on the server, `" + n.anew + "` here as the agent's user, and start this agent again"
}

// shutOut says what a refusal means that trying again alone doesn't mend, and what does; "" for
// others, and for those of somebody who hasn't proved to be the server.
func (n *news) shutOut(err error) string {
	const quietly = "; this agent asks again now and then, without a further line"
	r, ok := errors.AsType[*RefusedError](err)
	if !ok || !r.proven {
		return ""
	}
	switch r.Reason {
	case "unknown":
		return "shut out: the server has no agent with this id and key. To have it back, " + n.remedy(n.agentID, " (with --replace if it has the id)") + quietly
	case "generation":
		return "shut out: this key is void, since the agent was enrolled again, with another state folder or on another host. To have its id here, " + n.remedy(n.agentID+" --replace", "") + quietly
	case "removed":
		return "shut out: an operator removed this agent, and its id isn't used again. Uninstall it, or, under a new id, " + n.remedy("NEW-ID", "") + quietly
	case "quarantined", "duplicate":
		return "shut out, for the reason that the server gives" + quietly
	}
	return ""
}

// state names why there's no connection, as far as it needs another line.
func (n *news) state(err error) string {
	var r *RefusedError
	var proxy *ProxyError
	var way *wayError
	var answered *wsconn.DialError
	switch {
	case errors.As(err, &r):
		return "refused " + r.Reason
	case errors.Is(err, errImpostor):
		return "impostor"
	case errors.As(err, &proxy):
		return "proxy " + strconv.Itoa(proxy.Status)
	case errors.As(err, &way):
		return way.kind
	case errors.As(err, &answered):
		return "answered " + strconv.Itoa(answered.Status)
	case removed(err):
		return "removed"
	case n.unsteady:
		return "unsteady"
	}
	return "away"
}

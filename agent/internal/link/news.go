package link

import (
	"errors"
	"log/slog"
	"time"
)

// news logs once for each change: an agent that tries for a week doesn't fill the disk.
type news struct {
	log  *slog.Logger
	last string
}

func (n *news) up(w *welcomed) {
	n.last = "up"
	n.log.Info("connected", "epoch", w.Epoch, "protocol", w.Version)
	if w.ahead > skew || w.ahead < -skew {
		n.log.Warn("this host's clock and the server's differ; times in logs won't match", "ahead", w.ahead.Round(time.Second).String())
	}
}

// skew is the difference of clocks that is worth a line.
const skew = time.Minute

func (n *news) down(err error, wait time.Duration) {
	state := "away"
	var r *RefusedError
	switch {
	case errors.As(err, &r):
		state = "refused " + r.Reason
	case errors.Is(err, errImpostor):
		state = "impostor"
	}
	if n.last == state {
		n.log.Debug("still not connected", "error", err, "retry_in", wait.Round(time.Millisecond).String())
		return
	}
	n.last = state
	n.log.Warn("not connected; trying again until it works", "error", err, "retry_in", wait.Round(time.Millisecond).String())
}

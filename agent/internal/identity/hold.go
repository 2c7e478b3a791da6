package identity

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// lockFile is locked by the one agent that runs on a state folder.
const lockFile = "agent.lock"

// How long a starting agent waits for one that is just stopping, and how often it looks. A
// program that is being started holds what its parent held for an instant, too.
const (
	holdWait  = 5 * time.Second
	holdRetry = 50 * time.Millisecond
)

// Hold makes this process the one agent of a state folder, until release: a second one
// would be refused by the server as a copy, and make the first one look suspect.
func Hold(dir string) (release func(), err error) {
	release, err = hold(dir, lockFile)
	if errors.Is(err, errHeld) {
		return nil, fmt.Errorf("another drover-agent runs on %s already; stop it first, or give this one another folder with --state", dir)
	}
	return release, advise(dir, err)
}

// errHeld: another process has the lock, and keeps it.
var errHeld = errors.New("another drover-agent is at work in this state folder, and doesn't end")

// hold takes the lock of that name in a folder.
func hold(dir, name string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the state folder: %w", err)
	}
	retry := time.NewTicker(holdRetry)
	defer retry.Stop()
	for begin := time.Now(); !tryHold(f); <-retry.C {
		if time.Since(begin) < holdWait {
			continue
		}
		_ = f.Close()
		return nil, errHeld
	}
	return func() { _ = f.Close() }, nil
}

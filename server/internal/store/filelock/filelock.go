// Package filelock locks a file against other processes, and in this one.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// retryEvery is how often a lock is tried that another process holds.
const retryEvery = 20 * time.Millisecond

// Lock takes an exclusive lock on the file at path, made if needed, and waits for it
// until ctx ends. The system gives the lock back when the process ends, however it ends;
// the file stays.
func Lock(ctx context.Context, path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	for {
		ok, err := tryLock(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if ok {
			return f.Close, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another Drover holds %s: %w", path, context.Cause(ctx)), f.Close())
		case <-retry.C:
		}
	}
}

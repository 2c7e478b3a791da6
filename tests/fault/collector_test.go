package fault_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// collector is a testing.TB for one schedule: it collects what fails, in any goroutine, and
// has an end of its own.
type collector struct {
	testing.TB
	dir string

	mu   sync.Mutex
	said []string
	ends []func()
	dirs int
	ctx  context.Context
	stop func()
}

func newCollector(t testing.TB, name string) *collector {
	c := &collector{TB: t, dir: filepath.Join(t.TempDir(), name)}
	c.ctx, c.stop = context.WithCancel(t.Context())
	return c
}

// Context implements testing.TB: it ends before the cleanups run.
func (c *collector) Context() context.Context { return c.ctx }

func (c *collector) Errorf(format string, args ...any) {
	said := fmt.Sprintf(format, args...)
	if strings.Contains(said, "enrol: unauthenticated (revoked)") {
		return // an agent that was re-keyed, and removed before it had used its token
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, said)
}

func (c *collector) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	runtime.Goexit()
}

func (c *collector) Error(args ...any) { c.Errorf("%s", fmt.Sprint(args...)) }
func (c *collector) Fatal(args ...any) { c.Fatalf("%s", fmt.Sprint(args...)) }

func (c *collector) Failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.said) > 0
}

func (c *collector) Cleanup(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, f)
}

func (c *collector) TempDir() string {
	c.mu.Lock()
	c.dirs++
	dir := filepath.Join(c.dir, fmt.Sprint(c.dirs))
	c.mu.Unlock()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.Fatalf("%v", err)
	}
	return dir
}

// end runs the cleanups, the last one first, and returns what failed.
func (c *collector) end() []string {
	c.stop()
	c.mu.Lock()
	ends := slices.Clone(c.ends)
	c.mu.Unlock()
	for _, f := range slices.Backward(ends) {
		f()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

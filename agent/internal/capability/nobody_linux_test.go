package capability_test

import (
	"syscall"
	"testing"

	"github.com/drover-fleet/drover/protocol"
)

// asNobody runs fn while the whole process is an unprivileged user: capabilities run in
// goroutines of their own. Tests that use it may not be parallel.
func asNobody(t *testing.T, fn func() *protocol.Error) *protocol.Error {
	t.Helper()
	setAll(t, 65534)
	defer setAll(t, 0)
	return fn()
}

func setAll(t *testing.T, id int) {
	t.Helper()
	if err := syscall.Setresuid(-1, id, 0); err != nil {
		t.Fatal(err)
	}
}

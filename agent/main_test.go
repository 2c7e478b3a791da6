package agent

import (
	"os"
	"testing"

	"github.com/drover-fleet/drover/tests/testenv"
)

func TestMain(m *testing.M) {
	remove := testenv.Runtime()
	code := m.Run()
	remove()
	os.Exit(code)
}

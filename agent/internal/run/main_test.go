package run_test

import (
	"os"
	"testing"

	"github.com/drover-fleet/drover/tests/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

package fault_test

import (
	"os"
	"strings"
)

// processAlive tells that a process runs: a zombie doesn't.
func processAlive(pid string) bool {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

package jobs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/agent/internal/durable"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
)

// Files of a job's folder, beside the two of its output.
const (
	metaFile  = "meta.json"    // written by the manager before anything starts
	lockFile  = "lock"         // locked by the supervisor while it lives
	beganFile = "started.json" // written by the supervisor once the program runs
	sizesFile = "sizes.json"   // while output is being dropped
	stopFile  = "stop.json"    // the manager's order to end
	endFile   = "status.json"  // written once: how it ended
	spareFile = "spare"        // makes room for status.json on a full disk
	logFile   = "supervisor.log"
)

// meta is what a job is.
type meta struct {
	JobID     string          `json:"job_id"`
	Name      string          `json:"name,omitempty"`
	Command   string          `json:"command"`
	Caller    protocol.Caller `json:"caller"`
	CreatedAt time.Time       `json:"created_at"`
	Boot      string          `json:"boot,omitempty"`
	Folder    string          `json:"folder,omitempty"` // see folderID
}

// began is the program's start.
type began struct {
	PID   int       `json:"pid"`
	Start uint64    `json:"start"`
	At    time.Time `json:"at"`
	By    string    `json:"by,omitempty"` // the supervisor
}

// sizes are those of both streams.
type sizes struct {
	Stdout Size `json:"stdout"`
	Stderr Size `json:"stderr"`
}

// stopOrder asks a supervisor to end its job.
type stopOrder struct {
	Signal  string `json:"signal"`
	GraceMS int64  `json:"grace_ms"`
	Reason  string `json:"reason"`
}

// end is how a job ended.
type end struct {
	State    State     `json:"state"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Signal   string    `json:"signal,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	At       time.Time `json:"at"`
	Sizes    sizes     `json:"sizes"`
	Left     []int     `json:"left,omitempty"`
	// Never says that the program certainly wasn't started. What lacks a start without it may
	// have run: a start isn't always written down.
	Never bool `json:"never,omitzero"`
}

// readFile decodes a job's file into v; false when it isn't there. Members that this
// version doesn't know are passed over: the supervisor may be of another one.
func readFile(dir, name string, v any) (bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, strict.Unmarshal(b, v, strict.Limits{MaxBytes: 1 << 20, Extra: true})
}

func writeFile(dir, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, name), append(b, '\n'))
}

// lock takes a job's lock, which a living supervisor holds; nil without an error when it's
// taken. Closing the file gives it back.
func lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if !tryLock(f) {
		return nil, f.Close()
	}
	return f, nil
}

// sizesOf are the sizes of a job's output as it stands.
func sizesOf(dir string) sizes {
	var s sizes
	_, _ = readFile(dir, sizesFile, &s) // absent while all is kept
	for name, size := range map[string]*Size{Stdout: &s.Stdout, Stderr: &s.Stderr} {
		size.Kept = 0
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			size.Kept = info.Size()
		}
	}
	return s
}

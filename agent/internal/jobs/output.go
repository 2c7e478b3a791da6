package jobs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drover-fleet/drover/protocol"
)

// Output is one stream of a job's output.
type Output struct {
	Job  Job
	File *os.File // to be closed; nil while there's none
	Size int64    // of the file, as far as it counts
}

// Close closes the file.
func (o Output) Close() {
	if o.File != nil {
		_ = o.File.Close()
	}
}

// Open opens a stream of a job's output as it stands. It's final when the job isn't Running.
func (m *Manager) Open(c protocol.Caller, id, stream string) (Output, error) {
	// The state comes first: once a job has ended, its output is all there.
	job, err := m.Get(c, id)
	if err != nil {
		return Output{}, err
	}
	if !reads(c, job.Caller) {
		return Output{}, protocol.Failf(ReasonNotYours, "the job is another's: an administrator may list and stop it, not read its output")
	}
	o := Output{Job: job}
	kept := job.Stdout.Kept
	if stream == Stderr {
		kept = job.Stderr.Kept
	}
	o.File, err = os.Open(filepath.Join(m.opt.Dir, id, stream))
	switch {
	case errors.Is(err, fs.ErrNotExist) && (kept == 0 || job.State == Running):
		return o, nil
	case errors.Is(err, fs.ErrNotExist):
		return o, protocol.Failf(ReasonGone, "the output of this job, which is %s, isn't kept any more: an ended job's is for %s, and less when all jobs' is too much",
			job.State, hours(m.opt.Limits.Output))
	case err != nil:
		return o, err
	}
	info, err := o.File.Stat()
	if err != nil {
		o.Close()
		return Output{}, err
	}
	o.Size = info.Size()
	return o, nil
}

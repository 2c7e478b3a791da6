package jobs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/drover-fleet/drover/agent/internal/share"
)

// stored is how much output there is.
type stored struct {
	all     int64
	running map[string]int64 // by principal, of jobs that run
}

// prune lets old jobs go, and outputs when there's too much; never of a job that runs. What
// is too much is the oldest of the principal that has the most. m.mu is held.
func (m *Manager) prune() stored {
	out := stored{running: map[string]int64{}}
	held, sizes := map[string]int64{}, map[*job]int64{}
	for _, j := range m.jobs {
		if j.end == nil {
			s := sizesOf(j.dir)
			n := s.Stdout.Kept + s.Stderr.Kept
			out.running[j.Caller.Principal] += n
			held[j.Caller.Principal] += n
			out.all += n
		}
	}
	ended := m.pruneEnded()
	for who, list := range ended {
		for _, j := range list {
			s := sizesOf(j.dir)
			if n := s.Stdout.Kept + s.Stderr.Kept; m.opt.Now().Sub(j.end.At) > m.opt.Limits.Output {
				m.dropOutput(j)
			} else {
				sizes[j], held[who], out.all = n, held[who]+n, out.all+n
			}
		}
	}
	can := func(who string) bool { return len(ended[who]) > 0 }
	for out.all > m.opt.Limits.Stored {
		who, ok := share.Largest(held, can)
		if !ok {
			break
		}
		j := ended[who][0]
		ended[who] = ended[who][1:]
		if n := sizes[j]; n > 0 {
			m.dropOutput(j)
			held[who] -= n
			out.all -= n
		}
	}
	return out
}

// pruneEnded lets ended jobs go that are too old or too many. It returns the others by
// principal, the oldest first.
func (m *Manager) pruneEnded() map[string][]*job {
	ended, count, all := map[string][]*job{}, map[string]int{}, 0
	for _, j := range m.jobs {
		switch who := j.Caller.Principal; {
		case j.end == nil:
		case m.opt.Now().Sub(j.end.At) > m.opt.Limits.Status:
			m.forget(j)
		default:
			ended[who] = append(ended[who], j)
			count[who]++
			all++
		}
	}
	for _, list := range ended {
		slices.SortFunc(list, func(a, b *job) int { return a.end.At.Compare(b.end.At) })
	}
	for ; all > m.opt.Limits.Finished; all-- {
		who, _ := share.Largest(count, func(string) bool { return true })
		m.forget(ended[who][0])
		ended[who] = ended[who][1:]
		count[who]--
	}
	return ended
}

func (m *Manager) dropOutput(j *job) {
	for _, name := range []string{Stdout, Stderr} {
		if err := os.Remove(filepath.Join(j.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("an old job's output can't be removed", "job", j.JobID, "err", err)
		}
	}
}

package proctree

import (
	"os"
	"path/filepath"
)

// lostGroups are the cgroups of a job whose supervisor is gone.
func lostGroups(jobID string) []*group {
	own, err := ownGroup()
	if err != nil {
		return nil
	}
	var out []*group
	for _, dead := range deadGroups(own) {
		list, _ := filepath.Glob(filepath.Join(dead, groupName(JobMark+jobID)))
		for _, dir := range list {
			out = append(out, &group{dir: dir})
		}
	}
	return out
}

// forgetLost removes what is left of the cgroups of a dead supervisor, where they're empty.
func forgetLost(lost []*group) {
	for _, g := range lost {
		g.release()
		_ = os.Remove(filepath.Dir(g.dir)) // the supervisor's own
	}
}

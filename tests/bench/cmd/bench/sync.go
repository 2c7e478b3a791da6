package main

import (
	"errors"
	"os"
	"slices"
	"time"
)

// syncs is how many writes are timed.
const syncs = 500

// disk notes what one synced write of a log's two pages costs where the servers keep their
// data. Every call waits for two: on a slow disk they are most of its latency.
func (b *bench) disk() (err error) {
	f, err := os.CreateTemp("", "bench-sync-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	page := make([]byte, 8<<10)
	took := make([]time.Duration, 0, syncs)
	for i := range syncs {
		begin := time.Now()
		if _, err := f.WriteAt(page, int64(i%200)*int64(len(page))); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.note("this disk: 8 KiB written and synced (a call waits for two), half of the time within", ms(took[len(took)/2]))
	b.note("this disk: nineteen times of twenty within", ms(took[len(took)*19/20]))
	return nil
}

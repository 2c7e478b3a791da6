package session

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol/strict"
)

// File is the usual name of Config.File, in the data folder.
const File = "sessions.ended"

// kept is what the file holds.
type kept struct {
	FloorUS int64     `json:"floor_us"`
	Ended   []Session `json:"ended"`
}

// load reads the file; a missing one is empty.
func (k *Keeper) load(now time.Time) error {
	text, err := os.ReadFile(k.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var f kept
	if err == nil {
		err = strict.Unmarshal(text, &f, strict.Limits{})
	}
	if err != nil {
		return err
	}
	k.floorUS = f.FloorUS
	k.Ended(f.Ended, now)
	return nil
}

// save writes the file durably, whole or not at all. Several ends at once share one writing.
func (k *Keeper) save(now time.Time) error {
	k.mu.Lock()
	wanted := k.changes
	k.mu.Unlock()
	k.saving.Lock()
	defer k.saving.Unlock()
	if k.saved >= wanted {
		return nil
	}
	k.mu.Lock()
	holds, all := k.changes, kept{k.floorUS, k.all(now)}
	k.mu.Unlock()
	text, err := json.Marshal(all)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(k.cfg.File), "."+filepath.Base(k.cfg.File)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // nothing is there after the renaming
	_, err = f.Write(append(text, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), k.cfg.File); err != nil {
		return err
	}
	k.saved = holds
	return nil
}

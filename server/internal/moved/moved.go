// Package moved keeps account of where the agents of a data folder dial its server, for servers
// whose address may be another one at each start.
package moved

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// Book is the account of one data folder.
type Book struct {
	// File has the account: a JSON object from agent ids to URLs.
	File string
	// LastURL is the file with the URL of the run before, written when that began to serve. No such
	// file: there was none.
	LastURL string
}

// Elsewhere returns the agents that dial another URL than now, by that URL, in order. seen has
// every agent that counts, and when it was seen last (zero: never). Call it once a start, before
// LastURL is written anew: an agent that was seen in the run before dials that run's URL, and so
// does one that's new since.
func (b Book) Elsewhere(now string, seen map[string]time.Time) (map[string][]string, error) {
	last, err := os.ReadFile(b.LastURL)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	began, err := os.Stat(b.LastURL)
	if err != nil {
		return nil, err
	}
	known, err := b.read()
	if err != nil {
		return nil, err
	}
	dials, out := map[string]string{}, map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		url := known[id]
		if url == "" || !seen[id].Before(began.ModTime()) {
			url = strings.TrimSpace(string(last))
		}
		if dials[id] = url; url != now {
			out[url] = append(out[url], id)
		}
	}
	return out, b.write(dials)
}

func (b Book) read() (map[string]string, error) {
	text, err := os.ReadFile(b.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	known := map[string]string{}
	if err == nil {
		_ = json.Unmarshal(text, &known) // what isn't an account is none
	}
	return known, err
}

func (b Book) write(dials map[string]string) error {
	text, err := json.Marshal(dials, json.Deterministic(true))
	if err != nil {
		return err
	}
	next := b.File + ".new"
	if err := os.WriteFile(next, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(next, b.File)
}

// Package spool keeps on the host, for a while and within a quota, what calls printed beyond
// what their answers hold.
package spool

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/shirou/gopsutil/v4/disk"

	"github.com/drover-fleet/drover/agent/internal/share"
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
)

// Stream is one of the two that a call's processes write.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

const (
	metaFile = "meta.json"
	// tidyEvery is how often what is too old is looked for.
	tidyEvery = 10 * time.Minute
	// checkEvery is how many bytes may be written between two looks at the file system's space.
	checkEvery = 8 << 20
)

// ErrNotKept says that nothing is kept of a call, or that it's another principal's.
var ErrNotKept = errors.New("spool: no output is kept")

// Limits bound a spool. A zero member has its default.
type Limits struct {
	// Total is the bytes of all calls; 1 GiB. Of what is too much the oldest of the principal
	// that has the most goes first; calls that run aren't taken from, and one principal's have
	// half of it at most.
	Total   int64
	PerCall int64         // bytes of one call, both streams together; 256 MiB
	Age     time.Duration // 24 h after the call's end
	// MinFree and MinShare are what stays free of the file system, whichever is more: 256 MiB,
	// 0.05.
	MinFree  uint64
	MinShare float64
	// Space tells the free and all bytes of dir's file system; the system's word when nil.
	Space func(dir string) (free, size uint64, err error)
}

func (l Limits) filled() Limits {
	l.Total = cmp.Or(l.Total, 1<<30)
	l.PerCall = cmp.Or(l.PerCall, 256<<20)
	l.Age = cmp.Or(l.Age, 24*time.Hour)
	l.MinFree = cmp.Or(l.MinFree, 256<<20)
	l.MinShare = cmp.Or(l.MinShare, 0.05)
	if l.Space == nil {
		l.Space = space
	}
	return l
}

func space(dir string) (free, size uint64, err error) {
	u, err := disk.Usage(dir)
	if err != nil {
		return 0, 0, err
	}
	return u.Free, u.Total, nil
}

// Spool is a folder with a folder for each call. It's safe for concurrent use; a nil *Spool
// keeps nothing.
type Spool struct {
	dir string
	lim Limits
	log *slog.Logger

	mu        sync.Mutex
	calls     map[string]*Call
	used      int64
	running   map[string]int64 // of used, what calls that run have, by principal
	unchecked int64            // written since the last look at the space
	low       bool             // there was too little space then
	tidy      *time.Timer
	closed    bool
}

// meta is what is kept of a call beside its output.
type meta struct {
	Principal string    `json:"principal"`
	At        time.Time `json:"at"` // its end; its beginning while it runs
	Ended     bool      `json:"ended"`
	Whole     bool      `json:"whole"`
}

// Open opens dir, which is made when it isn't there, for this process alone. What is too old
// or too much, and what isn't the spool's, is removed.
func Open(dir string, lim Limits, log *slog.Logger) (*Spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Spool{dir: dir, lim: lim.filled(), log: log, calls: map[string]*Call{}, running: map[string]int64{}, low: true}
	for _, e := range list {
		c, err := s.load(e.Name())
		if err != nil {
			log.Warn("a kept output can't be read and is removed", "name", e.Name(), "err", err)
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				log.Warn("it can't be removed", "err", err)
			}
			continue
		}
		s.calls[c.id] = c
		s.used += c.size()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune("", 0)
	s.tidy = time.AfterFunc(tidyEvery, s.prunes)
	return s, nil
}

// Close ends the spool's own work; what's kept stays.
func (s *Spool) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.tidy.Stop()
}

func (s *Spool) prunes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.prune("", 0)
		s.tidy.Reset(tidyEvery)
	}
}

// load reads what an earlier process kept of one call.
func (s *Spool) load(id string) (*Call, error) {
	if !named(id) {
		return nil, errors.New("it's no call's id")
	}
	c := &Call{spool: s, id: id, dir: filepath.Join(s.dir, id), files: map[Stream]*file{}, ended: true}
	b, err := os.ReadFile(filepath.Join(c.dir, metaFile))
	if err != nil {
		return nil, err
	}
	if err := strict.Unmarshal(b, &c.meta, strict.Limits{MaxBytes: 64 << 10, Extra: true}); err != nil {
		return nil, err
	}
	c.meta.Whole = c.meta.Whole && c.meta.Ended
	for _, name := range []Stream{Stdout, Stderr} {
		info, err := os.Stat(filepath.Join(c.dir, string(name)))
		if err == nil {
			c.files[name] = &file{size: info.Size()}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return c, nil
}

// named tells whether an id can name a folder.
func named(id string) bool {
	for _, r := range id {
		if r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
			return false
		}
	}
	return id != "" && len(id) <= 64
}

// prune removes what is too old, then ended calls until there's room for more bytes of a
// principal's: the oldest of the one that has the most. It's false when there isn't.
func (s *Spool) prune(who string, more int64) bool {
	now := time.Now()
	held, ended := maps.Clone(s.running), map[string][]*Call{}
	held[who] += more
	for _, c := range s.calls {
		switch age := now.Sub(c.meta.At); {
		case !c.ended:
		case age > s.lim.Age || age < -s.lim.Age:
			s.remove(c)
		default:
			held[c.meta.Principal] += c.size()
			ended[c.meta.Principal] = append(ended[c.meta.Principal], c)
		}
	}
	if s.used+more <= s.lim.Total {
		return true
	}
	for _, list := range ended {
		slices.SortFunc(list, func(a, b *Call) int { return a.meta.At.Compare(b.meta.At) })
	}
	for s.used+more > s.lim.Total {
		most, ok := share.Largest(held, func(who string) bool { return len(ended[who]) > 0 })
		if !ok {
			return false
		}
		held[most] -= ended[most][0].size()
		s.remove(ended[most][0])
		ended[most] = ended[most][1:]
	}
	return true
}

func (s *Spool) remove(c *Call) {
	if err := os.RemoveAll(c.dir); err != nil {
		s.log.Warn("a kept output can't be removed", "call", c.id, "err", err)
		return
	}
	delete(s.calls, c.id)
	s.used -= c.size()
}

// take reserves n bytes of the quota for a principal's call; false when they can't be had.
func (s *Spool) take(who string, n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unchecked += n; s.low || s.unchecked >= checkEvery {
		free, size, err := s.lim.Space(s.dir)
		s.low = err != nil || free < max(s.lim.MinFree, uint64(s.lim.MinShare*float64(size)))
		s.unchecked = n
		if s.low {
			s.log.Warn("an output isn't kept: the file system has too little space", "free", free, "size", size, "err", err)
		}
	}
	if s.low || s.running[who]+n > share.Half(s.lim.Total) || s.used+n > s.lim.Total && !s.prune(who, n) {
		return false
	}
	s.used += n
	s.running[who] += n
	return true
}

func (s *Spool) giveBack(who string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= n
	s.ran(who, n)
}

// ran tells that n bytes don't belong to a call that runs any more. s.mu is held.
func (s *Spool) ran(who string, n int64) {
	if s.running[who] -= n; s.running[who] <= 0 {
		delete(s.running, who)
	}
}

// Kept is what is known of one stream of a call.
type Kept struct {
	Size  int64 // bytes kept
	Ended bool  // no more will come
	Whole bool  // all that the call printed, or has printed so far
}

// Open opens one stream of what is kept of a call for reading, if the principal made that
// call; else the error is ErrNotKept. The file may grow while the call runs: only Size bytes
// of it count.
func (s *Spool) Open(id, principal string, name Stream) (*os.File, Kept, error) {
	none := Kept{}
	if s == nil {
		return nil, none, ErrNotKept
	}
	s.mu.Lock()
	s.prune("", 0)
	c := s.calls[id]
	s.mu.Unlock()
	if c == nil || c.meta.Principal != principal {
		return nil, none, ErrNotKept
	}
	kept := c.kept(name)
	if kept.Size == 0 {
		return nil, kept, nil
	}
	f, err := os.Open(filepath.Join(c.dir, string(name)))
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrNotKept // removed meanwhile
	}
	return f, kept, err
}

// Begin makes a call's place. Nothing touches the disk before its first Write.
func (s *Spool) Begin(id string, caller protocol.Caller) *Call {
	if s == nil || !named(id) {
		return nil
	}
	return &Call{spool: s, id: id, dir: filepath.Join(s.dir, id), files: map[Stream]*file{},
		meta: meta{Principal: caller.Principal, At: time.Now().UTC(), Whole: true}}
}

func (m meta) write(dir string) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	next := filepath.Join(dir, metaFile+".new")
	if err := os.WriteFile(next, b, 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(dir, metaFile))
}

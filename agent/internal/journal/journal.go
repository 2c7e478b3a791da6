// Package journal remembers on a host's disk which calls its agent began and how they
// ended, in a file that never grows: a ring of slots that are overwritten in place. What the
// agent says of a call after a cut or a restart rests on it.
package journal

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// Slots is how many calls a journal holds unless it's told otherwise: a file of 1 MiB.
const Slots = 8192

// State is where an entry stands.
type State uint8

// The states of an entry.
const (
	// Started: it was about to begin, and has not been seen to end.
	Started State = iota + 1
	// Ended: what did the call has returned.
	Ended
	// Lost: the agent was restarted before it ended.
	Lost
	// Withdrawn: it was written down and then not begun.
	Withdrawn
)

// Errors of Start.
var (
	// ErrKnown: an entry of this id is there.
	ErrKnown = errors.New("the journal has this call already")
	// ErrFull: every slot is held by a call that hasn't ended.
	ErrFull = errors.New("the journal is full of calls that haven't ended")
	// ErrVolatile: the journal is only in memory, and a synced entry was asked for.
	ErrVolatile = errors.New("the journal isn't on disk")
)

// Entry is what the journal knows of a call.
type Entry struct {
	Tool  string
	State State
	Began time.Time
	Ended time.Time // zero until it has
	PID   int       // of the process it started, 0 for none
	Exit  *int      // the exit code of a command that ended by itself
	// Left is how many of its processes were ended after a restart of the agent.
	Left int
	// HostRestarted tells that the host was started anew since it began, so that nothing of
	// it can be running.
	HostRestarted bool
}

// Options say where a journal is.
type Options struct {
	Dir   string // the state folder, locked by this process
	Slots int    // Slots when zero
	// HostBoot names the host's present boot; what the system says when "".
	HostBoot string
	// Runtime is a folder in memory for what tells an older journal from the newest; the
	// system's own when "".
	Runtime string
}

// Journal is one agent's journal. Its methods may be called from any goroutine.
type Journal struct {
	id    [16]byte
	boot  boot
	name  string // from the witness
	aside string
	older bool

	unwitnessed error

	mu    sync.Mutex
	f     *os.File // nil: only in memory
	ring  []slot
	index map[[16]byte]int32 // where in the ring a call is
	next  uint64             // the number of the next entry
	sum   uint64             // of the numbers in the ring
	floor Floor              // what was overwritten
	out   [slotSize]byte     // the slot that's being written

	witness witness
}

// boot is the host's boot: its name, and a number for the slots, 0 when the name isn't the
// system's own.
type boot struct {
	name string
	tag  uint64
}

func bootOf(name string) boot {
	if name == "" {
		name = hostBoot()
	}
	if name == "" {
		// Nobody knows: then each process is a boot of its own, so that nothing is concluded.
		return boot{name: rand.Text()}
	}
	h := sha256.Sum256([]byte(name))
	return boot{name: hex.EncodeToString(h[:16]), tag: be64(h[16:]) | 1}
}

func newJournal(slots int, b boot) *Journal {
	j := &Journal{boot: b, ring: make([]slot, slots), index: map[[16]byte]int32{}, next: 1}
	rand.Read(j.id[:])
	return j
}

// Memory is a journal that ends with the process: for a host on which none can be made.
// Since its Boot is new each time, nothing wrong is ever concluded from it.
func Memory() *Journal { return newJournal(Slots, bootOf("")) }

// Boot names this journal, which a copy of it or an older one isn't, and the host's boot:
// that a call is unknown means that it didn't begin only if this is the name that held when
// the call was sent. It stays the same while the journal is open. At most 80 bytes.
func (j *Journal) Boot() string {
	return hex.EncodeToString(j.id[:]) + "." + j.boot.name + "." + j.name
}

// Older tells that the journal was found as it had been at an earlier time: entries are
// missing, and what it says of others may have been true only then.
func (j *Journal) Older() bool { return j.older }

// Unwitnessed tells why nothing outside the state folder can say whether the journal is the
// newest; nil when something can. Without that, each process has a name of its own.
func (j *Journal) Unwitnessed() error { return j.unwitnessed }

// Aside is where Open put a damaged journal, "" if there was none.
func (j *Journal) Aside() string { return j.aside }

// Start writes down that a call is about to begin; only when it returns nil may it. With
// sync the entry is on the disk then, and survives also a crash of the host.
func (j *Journal) Start(id ID, tool string, sync bool) error {
	if sync && j.f == nil {
		return ErrVolatile
	}
	if err := j.start(id, tool); err != nil {
		return err
	}
	if !sync {
		return nil
	}
	if err := j.f.Sync(); err != nil {
		return errors.Join(fmt.Errorf("journal: %w", err), j.Withdraw(id))
	}
	return nil
}

func (j *Journal) start(id ID, tool string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, ok := j.index[id.Hash]; ok {
		return ErrKnown
	}
	s := slot{state: Started, id: id, began: time.Now().UnixMicro(), boot: j.boot.tag, tool: strings.Clone(tool[:min(len(tool), maxTool)])}
	place, err := j.free(&s)
	if err != nil {
		return err
	}
	old := &j.ring[place]
	s.floor = j.floor
	if old.seq != 0 {
		s.floor.Raise(old.id)
	}
	if err := j.write(&s, place); err != nil {
		return err // the old entry stays in memory, and its slot is the next one to be tried
	}
	if old.seq != 0 {
		delete(j.index, old.id.Hash)
	}
	j.floor, j.next, j.sum = s.floor, s.seq+1, j.sum+s.seq-old.seq
	j.ring[place], j.index[id.Hash] = s, int32(place)
	if err := j.witness.put(j.sum); err != nil {
		j.ring[place].state = Withdrawn
		return errors.Join(err, j.write(&j.ring[place], place))
	}
	return nil
}

// free numbers an entry, and with it finds its place: the oldest slot whose call has ended.
func (j *Journal) free(s *slot) (place int, err error) {
	for i := range uint64(len(j.ring)) {
		s.seq = j.next + i
		place = s.place(len(j.ring))
		if j.ring[place].state != Started {
			return place, nil
		}
	}
	return 0, ErrFull
}

// write stores a slot. Nothing is synced: what a crash of the host can lose is of another
// boot then, and another Boot.
func (j *Journal) write(s *slot, place int) error {
	if j.f == nil {
		return nil
	}
	j.out = s.encode(j.id, place)
	if _, err := j.f.WriteAt(j.out[:], int64(place+1)*slotSize); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return nil
}

// update changes an entry, in memory also when it can't be written: an error means that
// the next process won't know of the change. An entry that isn't there is no error.
func (j *Journal) update(id ID, change func(*slot)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	place, ok := j.index[id.Hash]
	if !ok {
		return nil
	}
	s := &j.ring[place]
	change(s)
	return j.write(s, int(place))
}

// Process writes down the process that a call started.
func (j *Journal) Process(id ID, pid int) error {
	return j.update(id, func(s *slot) { s.pid = uint32(pid) })
}

// End writes down that a call ended; exit is the exit code of a command, nil
// where there's none.
func (j *Journal) End(id ID, exit *int) error {
	return j.update(id, func(s *slot) {
		s.state, s.ended = Ended, time.Now().UnixMicro()
		if exit != nil {
			code := uint32(*exit)
			s.exit = &code
		}
	})
}

// Withdraw writes down that a call whose Start succeeded was not begun after all.
func (j *Journal) Withdraw(id ID) error {
	return j.update(id, func(s *slot) { s.state = Withdrawn })
}

// Lose writes down that a call's end was missed, and how many processes of it were ended.
func (j *Journal) Lose(id ID, left int) error {
	return j.update(id, func(s *slot) { s.state, s.left = Lost, uint16(min(left, 1<<16-1)) })
}

// Open lists the calls that have begun and not ended. Of a journal that was just opened
// they're those that an earlier process left.
func (j *Journal) Open() []ID {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []ID
	for i := range j.ring {
		if j.ring[i].state == Started {
			out = append(out, j.ring[i].id)
		}
	}
	return out
}

// Find tells what the journal knows of a call.
func (j *Journal) Find(id ID) (Entry, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	place, ok := j.index[id.Hash]
	if !ok {
		return Entry{}, false
	}
	s := &j.ring[place]
	e := Entry{Tool: s.tool, State: s.state, Began: time.UnixMicro(s.began), PID: int(s.pid), Left: int(s.left),
		HostRestarted: s.boot != 0 && j.boot.tag != 0 && s.boot != j.boot.tag}
	if s.ended != 0 {
		e.Ended = time.UnixMicro(s.ended)
	}
	if s.exit != nil {
		code := int(*s.exit)
		e.Exit = &code
	}
	return e, true
}

// Forgotten tells whether an id that Find doesn't know may be one that was overwritten.
func (j *Journal) Forgotten(id ID) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.floor.Covers(id)
}

// Close syncs and closes the file.
func (j *Journal) Close() error {
	if j.f == nil {
		return nil
	}
	return errors.Join(j.f.Sync(), j.f.Close(), j.witness.close())
}

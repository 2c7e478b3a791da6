package capability

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/drover-fleet/drover/agent/internal/guard"
	"github.com/drover-fleet/drover/protocol/fault"
)

// Names of what uploads have sent until now, in the folder of their target.
const (
	partPrefix = ".drover-upload-"
	partSuffix = ".part"
)

// partLife is how long the part of an interrupted upload is kept.
const partLife = 24 * time.Hour

// maxLooked bounds how many names of a folder are looked at for old parts.
const maxLooked = 10_000

// parts knows which uploads are under way, and removes what interrupted ones left.
type parts struct {
	mu   sync.Mutex
	used map[string]struct{}
}

// claim takes a part for one upload; false when another has it.
func (p *parts) claim(path string) (release func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.used[path]; taken {
		return nil, false
	}
	if p.used == nil {
		p.used = map[string]struct{}{}
	}
	p.used[path] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.used, path)
	}, true
}

// keep has the part removed after its life unless an upload has gone on with it. path is
// the target's, in the caller's spelling: the folder isn't held open so long.
func (p *parts) keep(files *guard.Files, path string, part *guard.Place, log *slog.Logger) {
	left, err := part.Lstat()
	if err != nil {
		return
	}
	name := left.Name()
	time.AfterFunc(partLife, func() {
		defer fault.Catch(func(broke *fault.Panic) {
			log.Error("a fault inside left the part of an upload", "path", path, "panic", broke.What, "stack", broke.Stack)
		})
		place, err := files.Resolve(path)
		if err != nil {
			return
		}
		defer place.Close()
		part := place.Beside(name)
		if now, err := part.Lstat(); err == nil && now.ModTime().Equal(left.ModTime()) {
			p.remove(part)
		}
	})
}

// prune removes old parts beside a target: those of an agent that was restarted since.
func (p *parts) prune(target *guard.Place) {
	folder := target.Beside(".")
	list, err := folder.List()
	if err != nil {
		return // a folder that may be written to and not read
	}
	defer list.Close()
	for looked := 0; looked < maxLooked; {
		names, err := list.Readdirnames(512)
		for _, name := range names {
			if !strings.HasPrefix(name, partPrefix) {
				continue
			}
			part := target.Beside(name)
			if info, err := part.Lstat(); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > partLife {
				p.remove(part)
			}
		}
		looked += len(names)
		if err != nil || len(names) == 0 {
			return
		}
	}
}

// remove removes a part that no upload has.
func (p *parts) remove(part *guard.Place) {
	release, ok := p.claim(part.Path())
	if !ok {
		return
	}
	defer release()
	_ = part.Remove()
}

// Package fault keeps a panic to the one call, or the one connection, that it happened in.
// Whoever begins a goroutine for one of these defers Catch there, and says what becomes of it.
// Goroutines that serve all of them have no Catch: where what they keep can't be trusted any
// more, the end of the process is the honest one (docs/guarantees.md, section 17).
package fault

import (
	"fmt"
	"runtime/debug"

	"github.com/drover-fleet/drover/protocol/text"
)

// Panic is a panic that was caught. As an error it says what it was, in one line.
type Panic struct {
	What  string // any text
	Stack string // of the goroutine, with the place of the panic
}

// Error implements error.
func (p *Panic) Error() string { return "it failed inside: " + text.Line(p.What, 200) }

// Catch is to be deferred itself: it ends a panic of the function that deferred it, and gives it
// to then. What was deferred later has run before, so locks that are released by defer are
// free. With a nil then the panic goes on. Panicking with a *Panic carries one over from another
// goroutine.
func Catch(then func(*Panic)) {
	if then == nil {
		return
	}
	if v := recover(); v != nil {
		then(Of(v))
	}
}

// Of is the panic of which recover has just returned v, which isn't nil: for who lets some pass.
func Of(v any) *Panic {
	if p, ok := v.(*Panic); ok {
		return p
	}
	return &Panic{What: fmt.Sprint(v), Stack: string(debug.Stack())}
}

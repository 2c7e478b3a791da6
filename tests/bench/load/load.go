// Package load makes calls and times them. What is compared is always measured in turns of
// one run, so that a machine that slows down slows all sides down.
package load

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Side is one of the things that are compared.
type Side struct {
	Name string
	Call func(context.Context) error
	// CPU is the processor time that the side's own processes have used; nil where it isn't
	// asked for.
	CPU func() (time.Duration, error)
}

// Rate is what one side did with many calls at a time.
type Rate struct {
	PerSecond []float64     // of each turn
	Calls     int64         // of all turns
	CPU       time.Duration // of the side's processes in all turns
}

// CPUEach is the processor time of one call.
func (r Rate) CPUEach() time.Duration { return r.CPU / time.Duration(max(r.Calls, 1)) }

// Latency is what one side took, one call at a time.
type Latency struct {
	Rounds []time.Duration // the median of each turn
	All    []time.Duration // every call
}

// Median is the median of all calls.
func (l Latency) Median() time.Duration { return Quantile(l.All, 0.5) }

// Latencies calls each side each times in a turn, in as many turns as rounds says, after a
// turn that isn't counted. The order of the sides changes from turn to turn.
func Latencies(ctx context.Context, sides []Side, rounds, each int) ([]Latency, error) {
	out := make([]Latency, len(sides))
	for round := range rounds + 1 {
		for i := range sides {
			k := (i + round) % len(sides)
			took, err := turn(ctx, sides[k], each)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				out[k].Rounds = append(out[k].Rounds, Quantile(took, 0.5))
				out[k].All = append(out[k].All, took...)
			}
		}
	}
	return out, nil
}

func turn(ctx context.Context, s Side, n int) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if err := s.Call(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
		took[i] = time.Since(began)
	}
	return took, nil
}

// Rates lets workers call each side for a turn, in as many turns as rounds says, after a
// turn that isn't counted.
func Rates(ctx context.Context, sides []Side, rounds, workers int, turn time.Duration) ([]Rate, error) {
	out := make([]Rate, len(sides))
	for round := range rounds + 1 {
		for i := range sides {
			k := (i + round) % len(sides)
			var into Rate
			if err := sides[k].storm(ctx, workers, turn, &into); err != nil {
				return nil, fmt.Errorf("%s: %w", sides[k].Name, err)
			}
			if r := &out[k]; round > 0 {
				r.PerSecond = append(r.PerSecond, into.PerSecond...)
				r.Calls += into.Calls
				r.CPU += into.CPU
			}
		}
	}
	return out, nil
}

// storm is one turn.
func (s Side) storm(ctx context.Context, workers int, d time.Duration, into *Rate) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var calls atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	began := time.Now()
	for range workers {
		wg.Go(func() {
			for !over.Load() && ctx.Err() == nil {
				if err := s.Call(ctx); err != nil {
					stop(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	timer := time.AfterFunc(d, func() { over.Store(true) })
	defer timer.Stop()
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	into.Calls = calls.Load()
	into.PerSecond = append(into.PerSecond, float64(into.Calls)/time.Since(began).Seconds())
	after, err := s.cpu()
	into.CPU = after - before
	return err
}

func (s Side) cpu() (time.Duration, error) {
	if s.CPU == nil {
		return 0, nil
	}
	return s.CPU()
}

// Quantile is the q-quantile (0 to 1) of values, which may be in any order; zero for none.
func Quantile[T ~int64 | ~float64](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// Compare applies f to the values of two sides turn by turn and returns the median: turns
// that stand side by side had the same machine.
func Compare[T ~int64 | ~float64](a, b []T, f func(a, b T) float64) float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = f(a[i], b[i])
	}
	return Quantile(out, 0.5)
}

package tracing

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// sampler decides which traces are recorded.
//
// Whoever calls Drover chooses the trace id and the flag of a traceparent, so neither may
// widen what's recorded: for a client's parent the same dice are thrown as for a request
// without one. (Drawing from the trace id, as is usual, would let a client pick ids that are
// always drawn.) A client can only ask for less, where the sampler respects parents. What was
// decided once, here or on the replica that the call came through, counts for all below it.
type sampler struct {
	ratio   float64
	parents bool // a client's "not sampled" counts
}

// newSampler reads the values of OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG.
func newSampler(name, arg string) (*sampler, error) {
	name, parents := strings.CutPrefix(strings.ToLower(strings.TrimSpace(name)), "parentbased_")
	switch name {
	case "":
		if !parents {
			return &sampler{1, true}, nil
		}
	case "always_on":
		return &sampler{1, parents}, nil
	case "always_off":
		return &sampler{0, parents}, nil
	case "traceidratio":
		if arg = strings.TrimSpace(arg); arg == "" {
			return &sampler{1, parents}, nil
		}
		ratio, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return nil, fmt.Errorf("OTEL_TRACES_SAMPLER_ARG must be a number from 0 to 1, not %q", arg)
		}
		return &sampler{ratio, parents}, nil
	}
	return nil, fmt.Errorf("OTEL_TRACES_SAMPLER must be always_on, always_off or traceidratio, or one of these with parentbased_ before it")
}

// ShouldSample implements sdk.Sampler.
func (s *sampler) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	decision := sdk.Drop
	if s.sampled(p) {
		decision = sdk.RecordAndSample
	}
	return sdk.SamplingResult{Decision: decision}
}

func (s *sampler) sampled(p sdk.SamplingParameters) bool {
	parent := trace.SpanContextFromContext(p.ParentContext)
	o, _ := p.ParentContext.Value(originKey{}).(origin)
	switch {
	case !parent.IsValid():
		return s.dice()
	case parent.IsRemote() && !o.replica:
		return (parent.IsSampled() || !s.parents) && s.dice()
	default:
		return parent.IsSampled()
	}
}

func (s *sampler) dice() bool { return rand.Float64() < s.ratio }

// Description implements sdk.Sampler.
func (s *sampler) Description() string { return fmt.Sprintf("drover:%g", s.ratio) }

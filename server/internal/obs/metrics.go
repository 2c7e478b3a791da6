package obs

import (
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/drover-fleet/drover/protocol/fault"
)

// Metrics are a server's numbers, in a registry of their own.
type Metrics struct {
	reg      *prometheus.Registry
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	calls    *prometheus.CounterVec
	callTime *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	joined   prometheus.Counter
	routed   *prometheus.CounterVec
	hops     prometheus.Histogram
	adopted  prometheus.Counter
	resumes  *prometheus.CounterVec
	panics   *prometheus.CounterVec
	replica  *prometheus.GaugeVec
}

// NewMetrics makes the registry with the process's own numbers and Drover's.
func NewMetrics(version string) *Metrics {
	// From a millisecond to the ten minutes of a long command.
	spans := []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	m := &Metrics{
		reg: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_http_requests_total", Help: "HTTP requests by method, route and status."}, []string{"method", "route", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "drover_http_request_seconds", Help: "Time to answer an HTTP request, by route.", Buckets: spans}, []string{"route"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_calls_total", Help: "Calls that ended, by edge, tool and final state."}, []string{"edge", "tool", "state"}),
		callTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "drover_call_seconds", Help: "Time from a call's intent to its outcome, by tool.", Buckets: spans}, []string{"tool"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "drover_refusals_total", Help: "Calls turned away before they had an id, by edge and code."}, []string{"edge", "code"}),
	}
	m.joined = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "drover_calls_joined_total", Help: "Requests that joined an earlier call instead of starting one."})
	m.routed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "drover_calls_routed_total", Help: "Requests that went to an agent, by route: local, or remote for an agent of another replica."}, []string{"route"})
	m.hops = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "drover_hop_seconds", Help: "Time that answered requests to agents of other replicas spent on the way there and back, tunnel included: less what the agent says that it took.",
		Buckets: []float64{0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1, 2, 5, 15}})
	m.adopted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "drover_calls_adopted_total", Help: "Open calls that were taken over from an earlier process or another replica."})
	m.resumes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "drover_resumes_total", Help: "Calls that were cut or taken over and asked for, by what came of it."}, []string{"result"})
	m.panics = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "drover_panics_total", Help: "Faults inside that were kept to one call, one request or one connection, by where; the log has their stacks. Any is worth a report."}, []string{"where"})
	for _, w := range []Where{InCall, InRequest, InTunnel, InPipe} {
		m.panics.WithLabelValues(string(w))
	}
	for _, route := range []string{"local", "remote"} {
		m.routed.WithLabelValues(route)
	}
	for _, r := range []Resumed{ResumeAnswered, ResumeNotStarted, ResumeUnknown, ResumeLeft} {
		m.resumes.WithLabelValues(string(r))
	}
	m.reg.MustRegister(m.routed, m.hops, m.adopted, m.resumes, m.panics)
	m.replica = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_replica_info", Help: "Always 1; the label is this server's name in logs, its own and other replicas'."}, []string{"replica"})
	m.reg.MustRegister(m.replica)
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "drover_build_info", Help: "Always 1; the version is a label.", ConstLabels: prometheus.Labels{"version": version}}, func() float64 { return 1 })
	m.reg.MustRegister(m.requests, m.latency, m.calls, m.callTime, m.refusals, m.joined, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Named tells the name of this server in logs, its own and other replicas'.
func (m *Metrics) Named(replica string) {
	m.replica.Reset()
	m.replica.WithLabelValues(replica).Set(1)
}

// Gauge adds a number that is asked for when it's scraped, such as the agents online.
func (m *Metrics) Gauge(name, help string, value func() float64) {
	m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
}

// Counter adds a count that is kept elsewhere and asked for when it's scraped. labels may be
// nil; counters of one name have the same labels with other values.
func (m *Metrics) Counter(name, help string, labels map[string]string, value func() float64) {
	m.reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, value))
}

// Routed counts a request to an agent. A nil Metrics counts nothing.
func (m *Metrics) Routed(remote bool) {
	if m == nil {
		return
	}
	route := "local"
	if remote {
		route = "remote"
	}
	m.routed.WithLabelValues(route).Inc()
}

// Hop notes how long an answered request to an agent of another replica was on the way.
func (m *Metrics) Hop(took time.Duration) {
	if m != nil {
		m.hops.Observe(max(0, took).Seconds())
	}
}

// Adopted counts calls that were taken over.
func (m *Metrics) Adopted(n int) {
	if m != nil {
		m.adopted.Add(float64(n))
	}
}

// Resumed is what came of asking for a call.
type Resumed string

// What may come of it.
const (
	ResumeAnswered   Resumed = "answered"    // its response came
	ResumeNotStarted Resumed = "not_started" // it never began
	ResumeUnknown    Resumed = "unknown"     // nobody can say
	ResumeLeft       Resumed = "left"        // it was left to the next process or another replica
)

// Resumed counts a call that was asked for. A nil Metrics counts nothing.
func (m *Metrics) Resumed(r Resumed) {
	if m != nil {
		m.resumes.WithLabelValues(string(r)).Inc()
	}
}

// Where a panic was caught, which says what it was kept to.
type Where string

// Where panics are caught.
const (
	InCall    Where = "call"    // one call, or what is done beside it
	InRequest Where = "request" // one HTTP request
	InTunnel  Where = "tunnel"  // one agent's connection
	InPipe    Where = "pipe"    // one pipe to another replica, or one message
)

// Caught tells of a panic that was caught: in the log, with its stack, and in a count. A nil
// Metrics counts nothing.
func (m *Metrics) Caught(log *slog.Logger, where Where, p *fault.Panic, attrs ...any) {
	if m != nil {
		m.panics.WithLabelValues(string(where)).Inc()
	}
	log.Error("a fault inside was kept to one "+string(where), append(attrs, "panic", p.What, "stack", p.Stack)...)
}

// Call counts a call that ended. tool must be the name of a tool that exists: text of a
// client never becomes a label. A nil Metrics counts nothing.
func (m *Metrics) Call(edge, tool, state string, took time.Duration) {
	if m == nil {
		return
	}
	m.calls.WithLabelValues(edge, tool, state).Inc()
	m.callTime.WithLabelValues(tool).Observe(took.Seconds())
}

// Joined counts a request that joined an earlier call.
func (m *Metrics) Joined() {
	if m != nil {
		m.joined.Inc()
	}
}

// Refusal counts a call that was turned away. A nil Metrics counts nothing.
func (m *Metrics) Refusal(edge, code string) {
	if m == nil {
		return
	}
	m.refusals.WithLabelValues(edge, code).Inc()
}

// Handler serves the numbers in Prometheus' text format. It lets everybody in: restapi
// decides who may ask.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{})
}

func (m *Metrics) request(method, route string, status int, took time.Duration) {
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Inc()
	m.latency.WithLabelValues(route).Observe(took.Seconds())
}

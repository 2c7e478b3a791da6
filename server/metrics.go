package server

import "github.com/drover-fleet/drover/server/internal/cluster"

// measure adds the numbers that this server's parts keep. docs/deploy.md lists all there are.
func (s *Server) measure() {
	s.metrics.Gauge("drover_agents_online", "Agents with a live tunnel to this server.", func() float64 { return float64(s.presence.Len()) })
	s.metrics.Gauge("drover_calls_open", "Calls under way on this server.", func() float64 { return float64(s.dispatch.Open()) })
	s.metrics.Gauge("drover_body_bytes", "Bytes that the bodies of open requests may take, those of more than 8 KiB.", func() float64 { return float64(s.bodies.Held()) })
	s.metrics.Gauge("drover_waits_open", "Requests that wait for the end of a call which another request has made, or for an agent that may be there in a moment.", func() float64 { return float64(s.dispatch.Waits()) })
	const spans = "Spans that were sent to the collector of traces, by whether it took them; those apart that found the queue full."
	s.metrics.Counter("drover_trace_spans_total", spans, map[string]string{"fate": "sent"}, func() float64 { return float64(s.trace.Stats().Sent) })
	s.metrics.Counter("drover_trace_spans_total", spans, map[string]string{"fate": "lost"}, func() float64 { return float64(s.trace.Stats().Lost) })
}

// measureCluster adds the numbers of the way to other replicas.
func (s *Server) measureCluster(bus *cluster.Bus) {
	gauge := func(name, help string, value func(cluster.Stats) float64) {
		s.metrics.Gauge(name, help, func() float64 { return value(bus.Stats()) })
	}
	count := func(name, help string, labels map[string]string, value func(cluster.Stats) int64) {
		s.metrics.Counter(name, help, labels, func() float64 { return float64(value(bus.Stats())) })
	}
	s.metrics.Gauge("drover_cluster_connected", "Whether NATS is there: 1 or 0.", func() float64 {
		if bus.Connected() {
			return 1
		}
		return 0
	})
	gauge("drover_cluster_replicas", "Other replicas that are known.", func(c cluster.Stats) float64 { return float64(c.Replicas) })
	gauge("drover_cluster_agents", "Agents whose newest known connection is on another replica.", func(c cluster.Stats) float64 { return float64(c.Agents) })
	gauge("drover_cluster_pipes", "Pipes between this replica and others that are open, both ways.", func(c cluster.Stats) float64 { return float64(c.Pipes) })
	gauge("drover_cluster_calls_out", "Calls from here that are under way on other replicas.", func(c cluster.Stats) float64 { return float64(c.Out) })
	gauge("drover_cluster_calls_in", "Calls of other replicas that are under way here.", func(c cluster.Stats) float64 { return float64(c.In) })
	count("drover_cluster_hops_total", "Calls that went to an agent of another replica.", nil, func(c cluster.Stats) int64 { return c.Hops })
	count("drover_cluster_served_total", "Calls that came from another replica.", nil, func(c cluster.Stats) int64 { return c.Served })
	count("drover_cluster_disconnects_total", "Times that the connection to NATS was lost.", nil, func(c cluster.Stats) int64 { return c.Disconnects })
	count("drover_cluster_epochs_lost_total", "Connections of agents that ended here because another replica had a newer one.", nil, func(c cluster.Stats) int64 { return c.Overtaken })
	const refused = "Messages on NATS that weren't acted on: forged or changed, another version's that isn't understood, sent twice, or too late."
	count("drover_cluster_refused_total", refused, map[string]string{"why": "forged"}, func(c cluster.Stats) int64 { return c.Forged })
	count("drover_cluster_refused_total", refused, map[string]string{"why": "unreadable"}, func(c cluster.Stats) int64 { return c.Unreadable })
	count("drover_cluster_refused_total", refused, map[string]string{"why": "replayed"}, func(c cluster.Stats) int64 { return c.Replayed })
	count("drover_cluster_refused_total", refused, map[string]string{"why": "stale"}, func(c cluster.Stats) int64 { return c.Stale })
}

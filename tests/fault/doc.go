// Package fault breaks the ways between servers, agents and clients: connections that are
// cut, stalled, half open, slow or said twice, and processes that are killed or stopped at
// chosen points of a call. Its tests hold Drover to docs/guarantees.md meanwhile.
package fault

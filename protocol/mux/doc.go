// Package mux is the session that both ends of a tunnel run over a Pipe after the
// handshake: calls, oversized frames as streams under hard credit, keep-alive, one writer.
// The side that has a Handler is the agent; the other one calls. It knows no WebSocket.
package mux

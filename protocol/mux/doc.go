// Package mux is the session that both ends of a tunnel run over a Pipe after the
// handshake: calls, those of earlier connections included, long frames and files as streams
// under hard credit, keep-alive, one writer and a reader that waits for nobody. The side that has a Handler is the agent; the other one calls. It knows no WebSocket.
package mux

package protocol

// Version is the newest protocol version this build speaks.
//
// History:
//
//	1  2026-11-30  first: handshake, calls, message streams, credit, keep-alive
//	2  2026-11-30  calls survive a cut: resume answers with evidence and the response follows;
//	               streams of kind file under a call; not_after is honoured; the agent tells
//	               its clock
//	3  2026-11-30  a request may say to which trace it belongs, and that its caller is an
//	               administrator
const Version = 3

// MinVersion is the oldest version this build still speaks. It stays at least one
// behind Version once there are two, so that agents and servers update in any order.
const MinVersion = 1

// Supported lists the versions this build speaks, newest first: what a hello carries.
func Supported() []int {
	var out []int
	for v := Version; v >= MinVersion; v-- {
		out = append(out, v)
	}
	return out
}

// Negotiate picks the highest version that both this build and the peer speak.
// ok is false when there is none.
func Negotiate(peer []int) (version int, ok bool) {
	for _, v := range peer {
		if v >= MinVersion && v <= Version && v > version {
			version, ok = v, true
		}
	}
	return version, ok
}

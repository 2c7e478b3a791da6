//go:build !linux && !darwin

package wsconn

import "net"

// keepShort does nothing: the system has no TCP_NOTSENT_LOWAT.
func keepShort(net.Conn) {}

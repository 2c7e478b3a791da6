//go:build linux || darwin

package wsconn

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// keepShort has the system take little more than it can send: what waits in a socket can't
// be overtaken any more, what waits in the session can. It's a help, not a need: a
// connection on which it fails works, too.
func keepShort(c net.Conn) {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentLimit)
	})
}

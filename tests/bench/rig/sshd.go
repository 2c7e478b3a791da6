package rig

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// ErrNoSSHD says that this machine has no OpenSSH server to compare with.
var ErrNoSSHD = errors.New("no sshd here (install openssh-server)")

// SSH starts an sshd of its own on loopback, with keys made for this run, and connects.
func (r *Rig) SSH() (*ssh.Client, error) {
	bin, err := exec.LookPath("sshd")
	if err != nil {
		if bin = "/usr/sbin/sshd"; !exists(bin) {
			return nil, ErrNoSSHD
		}
	}
	if os.Geteuid() == 0 { // the folder that a service would have made
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(r.Dir, "sshd")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	host, err := writeKey(filepath.Join(dir, "host"))
	if err != nil {
		return nil, err
	}
	mine, err := writeKey(filepath.Join(dir, "mine"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "authorized"), ssh.MarshalAuthorizedKey(mine.PublicKey()), 0o600); err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "config")
	if err := os.WriteFile(conf, []byte(sshdConfig(addr, dir)), 0o600); err != nil {
		return nil, err
	}
	p, err := r.Start("sshd", bin, "-D", "-e", "-f", conf)
	if err != nil {
		return nil, err
	}
	if _, err := p.Await(10*time.Second, func(log string) string {
		if strings.Contains(log, "Server listening") {
			return "yes"
		}
		return ""
	}); err != nil {
		return nil, err
	}
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	return ssh.Dial("tcp", addr, &ssh.ClientConfig{
		User: me.Username, Auth: []ssh.AuthMethod{ssh.PublicKeys(mine)},
		HostKeyCallback: ssh.FixedHostKey(host.PublicKey()), Timeout: 10 * time.Second,
	})
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// sshdConfig leaves out what would only slow sshd down: PAM, motd, DNS, and, by the shell's
// level, the start-up file that bash reads under sshd, though not under Drover's agent. The
// locale is the one that commands get from Drover's agent here.
func sshdConfig(addr, dir string) string {
	host, port, _ := net.SplitHostPort(addr)
	return fmt.Sprintf(`ListenAddress %s
Port %s
HostKey %s/host
AuthorizedKeysFile %s/authorized
PidFile none
StrictModes no
UsePAM no
UseDNS no
PrintMotd no
SetEnv SHLVL=1 LC_CTYPE=C.UTF-8
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
`, host, port, dir, dir)
}

func writeKey(path string) (ssh.Signer, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewSignerFromKey(key)
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

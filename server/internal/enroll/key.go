package enroll

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/drover-fleet/drover/protocol"
)

// KeyFile is the server key's file in the data folder. Replicas of one deployment share it.
const KeyFile = "server.key"

// LoadServerKey reads the server's key from a file, or makes it, once, with mode 0600. Agents
// pin it at enrolment: whoever loses it must enrol every agent again, and whoever copies it
// can pass for the server. A file that others may read is refused.
func LoadServerKey(path string) (ed25519.PrivateKey, error) {
	key, err := readServerKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := makeServerKey(filepath.Dir(path), path); err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return readServerKey(path)
}

// Derive makes a secret of n bytes for one purpose from the server's key: the same on every
// replica, and nothing can be learned from it of the key or of another purpose's.
func Derive(key ed25519.PrivateKey, purpose string, n int) ([]byte, error) {
	return hkdf.Key(sha256.New, key.Seed(), nil, purpose, n)
}

// Fingerprint names a server's key.
func Fingerprint(key ed25519.PrivateKey) string {
	return hex.EncodeToString(protocol.Fingerprint(key.Public().(ed25519.PublicKey)))
}

func readServerKey(path string) (ed25519.PrivateKey, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if runtime.GOOS != "windows" && fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s may be read by others (mode %04o); if it wasn't, chmod 600 it", path, fi.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	seed, err := protocol.UnB64(strings.TrimSpace(string(b)), ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("%s is damaged; restore it from a backup, or remove it and enrol every agent again", path)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// makeServerKey writes a new key durably. The link makes it appear whole or not at all; when
// another process was faster, its key stays.
func makeServerKey(dir, path string) error {
	f, err := os.CreateTemp(dir, ".server-key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	if _, err = f.WriteString(protocol.B64(seed) + "\n"); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

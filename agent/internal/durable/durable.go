// Package durable replaces files so that a crash leaves the old or the new one, whole.
package durable

import (
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile replaces the file at path by content, with mode 0600. When it returns nil, the
// new file outlasts a power cut.
func WriteFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // does nothing once it's renamed
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Rename puts the file from in the place of to, in the same folder. When it returns nil, that
// outlasts a power cut.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

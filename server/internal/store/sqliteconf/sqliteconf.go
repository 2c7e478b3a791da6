// Package sqliteconf makes the file of a SQLite database and the connections to it.
package sqliteconf

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"modernc.org/sqlite"

	"github.com/drover-fleet/drover/server/internal/store/prepared"
)

// File makes the data folder and the database's file, for their owner alone, if they aren't
// there, and returns the file's path.
func File(dir string) (path string, err error) {
	if dir == "" {
		return "", errors.New("store: neither a data folder nor a database URL was given")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the data folder can't be made: %w", err)
	}
	if path, err = filepath.Abs(filepath.Join(dir, "drover.db")); err != nil {
		return "", fmt.Errorf("the data folder: %w", err)
	}
	// SQLite would make the file readable for everyone; its side files copy its mode.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", fmt.Errorf("the database file can't be opened (does it belong to another user?): %w", err)
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("the database file: %w", err)
	}
	return path, nil
}

// Pools makes one connection that writes and a few that read. Each commit is synced
// (synchronous FULL); fdatasync where there is one, as SQLite's own builds do. What is deleted
// is overwritten (secure_delete).
func Pools(path string, rebind func(string) string) (read, write *sql.DB, err error) {
	if _, err := sqlite.Fdatasync(true); err != nil && !errors.Is(err, sqlite.ErrFdatasyncUnavailable) {
		return nil, nil, err
	}
	path = filepath.ToSlash(path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // file:///C:/…
	}
	dsn := (&url.URL{Scheme: "file", Path: path}).String() +
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)&_pragma=secure_delete(ON)&_pragma=journal_size_limit(67108864)&_dqs=0"
	connector, err := prepared.Connector(dsn+"&_txlock=immediate", rebind)
	if err != nil {
		return nil, nil, err
	}
	write = sql.OpenDB(connector)
	write.SetMaxOpenConns(1)
	if read, err = sql.Open("sqlite", dsn+"&_query_only=1"); err != nil {
		return nil, nil, errors.Join(err, write.Close())
	}
	read.SetMaxOpenConns(4)
	read.SetMaxIdleConns(4)
	return read, write, nil
}

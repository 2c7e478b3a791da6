package rig

import (
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // to make a schema for the run
)

// Postgres makes an empty schema in the database that DROVER_TEST_POSTGRES names and
// returns the URL that uses it; drop removes it again.
func Postgres() (dbURL string, drop func() error, err error) {
	base := os.Getenv("DROVER_TEST_POSTGRES")
	if base == "" {
		base = "postgres://postgres@127.0.0.1:5432/test"
	}
	u, err := url.Parse(base)
	if err != nil {
		return "", nil, err
	}
	db, err := sql.Open("pgx", base)
	if err != nil {
		return "", nil, err
	}
	if err := db.Ping(); err != nil {
		return "", nil, fmt.Errorf("no Postgres at %s: %w", u.Redacted(), err)
	}
	name := fmt.Sprintf("bench_%d_%d", os.Getpid(), time.Now().UnixNano())
	if _, err := db.Exec("CREATE SCHEMA " + name); err != nil {
		return "", nil, err
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String(), func() error {
		_, err := db.Exec("DROP SCHEMA " + name + " CASCADE")
		return err
	}, nil
}

package prepared_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-fleet/drover/server/internal/store/prepared"
)

func open(t *testing.T) *sql.DB {
	t.Helper()
	c, err := prepared.Connector("file:"+filepath.ToSlash(filepath.Join(t.TempDir(), "a.db"))+"?_pragma=journal_mode(WAL)", func(q string) string { return strings.ReplaceAll(q, "$", "?") })
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := db.Exec(`CREATE TABLE a (id TEXT PRIMARY KEY, n BIGINT, b BYTEA)`); err != nil {
		t.Fatal(err)
	}
	return db
}

func on(t *testing.T, db *sql.DB, fn func(*prepared.Conn) error) error {
	t.Helper()
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	return conn.Raw(func(dc any) error { return fn(dc.(*prepared.Conn)) })
}

type names string

// TestStatements: what's written is what's read, by the types that the store uses, also when a
// statement is run again, after a change of the schema, and beside database/sql.
func TestStatements(t *testing.T) {
	db := open(t)
	put := func(c *prepared.Conn, id string, n any, b []byte) error {
		changed, err := c.Exec(`INSERT INTO a (id, n, b) VALUES ($1, $2, $3)`, names(id), n, b)
		if err == nil && changed != 1 {
			t.Errorf("%s: %d rows changed", id, changed)
		}
		return err
	}
	get := func(c *prepared.Conn, id string) (name string, n sql.NullInt64, b []byte, rows int) {
		t.Helper()
		if err := c.Query(`SELECT id, n, b FROM a WHERE id = $1`, []any{id}, func(r prepared.Row) error { rows++; return r.Scan(&name, &n, &b) }); err != nil {
			t.Fatal(err)
		}
		return name, n, b, rows
	}
	err := on(t, db, func(c *prepared.Conn) error {
		if err := put(c, "x", int64(7), []byte{0, 255}); err != nil {
			return err
		}
		return put(c, "y", nil, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`ALTER TABLE a ADD COLUMN more TEXT`); err != nil {
		t.Fatal(err)
	}
	err = on(t, db, func(c *prepared.Conn) error {
		if err := put(c, "x", int64(8), nil); err == nil || !strings.Contains(err.Error(), "UNIQUE") {
			t.Errorf("the same key twice: %v", err)
		}
		if name, n, b, rows := get(c, "x"); name != "x" || n.Int64 != 7 || string(b) != "\x00\xff" || rows != 1 {
			t.Errorf("x is %q %v %q, %d rows", name, n, b, rows)
		}
		if _, n, b, rows := get(c, "y"); n.Valid || b != nil || rows != 1 {
			t.Errorf("y is %v %q, %d rows", n, b, rows)
		}
		if _, _, _, rows := get(c, "z"); rows != 0 {
			t.Errorf("z has %d rows", rows)
		}
		return put(c, "z", 9, []byte("later")) // a statement that has failed goes on working
	})
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := db.QueryRow(`SELECT COUNT(*) FROM a`).Scan(&n); err != nil || n != 3 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// TestScanSaysNo: a NULL, or a column too many, isn't taken for a value.
func TestScanSaysNo(t *testing.T) {
	var s string
	var n int64
	if err := (prepared.Row{nil}).Scan(&s); err == nil {
		t.Error("NULL became a string")
	}
	if err := (prepared.Row{"seven"}).Scan(&n); err == nil {
		t.Error("a word became a number")
	}
	if err := (prepared.Row{int64(1), int64(2)}).Scan(&n); err == nil {
		t.Error("two columns went into one")
	}
	if err := (prepared.Row{int64(1)}).Scan(new(float64)); err == nil {
		t.Error("a type that isn't known was scanned into")
	}
}

// TestClosedWithItsStatements: nothing of a closed connection is left that would keep the file,
// so that its log is gone with it.
func TestClosedWithItsStatements(t *testing.T) {
	db := open(t)
	if err := on(t, db, func(c *prepared.Conn) error { _, err := c.Exec(`INSERT INTO a (id) VALUES ($1)`, "x"); return err }); err != nil {
		t.Fatal(err)
	}
	var path string
	if err := db.QueryRow(`SELECT file FROM pragma_database_list WHERE name = 'main'`).Scan(&path); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(path + "-*"); err != nil || len(left) != 0 {
		t.Errorf("left beside the closed database: %v, %v", left, err)
	}
}

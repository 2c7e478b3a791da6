// Package prepared keeps the statements of the store's writer prepared on its SQLite
// connection, and runs them without what database/sql puts between: a pool's lock, a copy of
// the statement and a look at the context for each, and a BEGIN and COMMIT that are parsed
// anew, which together cost a short transaction about as much as its statements.
package prepared

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"modernc.org/sqlite"
)

// driverConn is what every connection of the driver is, says its NewConnector.
type driverConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// Conn is a connection with the statements that were run on it. It's what the Raw method of
// a database/sql connection hands out, and must not be used beyond that.
type Conn struct {
	driverConn
	rebind func(string) string
	stmts  map[string]stmt
}

type stmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type connector struct {
	driver.Connector
	rebind func(string) string
}

// Connector opens connections to a data source as the driver names them, each a *Conn.
// rebind turns a statement of Exec or Query, once, into one of SQLite's.
func Connector(dsn string, rebind func(string) string) (driver.Connector, error) {
	c, err := sqlite.NewConnector(dsn)
	return connector{c, rebind}, err
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	raw, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	conn, ok := raw.(driverConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("prepared: the driver's %T lacks a method that it had", raw), raw.Close())
	}
	return &Conn{driverConn: conn, rebind: c.rebind, stmts: map[string]stmt{}}, nil
}

// Unwrap returns the driver's connection.
func (c *Conn) Unwrap() driver.Conn { return c.driverConn }

// Close ends the statements and the connection.
func (c *Conn) Close() error {
	var err error
	for _, s := range c.stmts {
		err = errors.Join(err, s.Close())
	}
	c.stmts = nil
	return errors.Join(err, c.driverConn.Close())
}

// background has no end: SQLite's busy timeout bounds each statement, and for a context that
// can end the driver starts a goroutine to watch it.
var background = context.Background()

func (c *Conn) prepare(query string) (stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	raw, err := c.PrepareContext(background, c.rebind(query))
	if err != nil {
		return nil, err
	}
	s, ok := raw.(stmt)
	if !ok {
		return nil, errors.Join(fmt.Errorf("prepared: the driver's %T lacks a method that it had", raw), raw.Close())
	}
	c.stmts[query] = s
	return s, nil
}

// Exec runs a statement that is kept for the next time, and returns how many rows it changed.
func (c *Conn) Exec(query string, args ...any) (int64, error) {
	s, err := c.prepare(query)
	if err != nil {
		return 0, err
	}
	values, err := bind(args)
	if err != nil {
		return 0, err
	}
	res, err := s.ExecContext(background, values)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Query runs a statement that is kept for the next time, and hands each row to scan.
func (c *Conn) Query(query string, args []any, scan func(Row) error) (err error) {
	s, err := c.prepare(query)
	if err != nil {
		return err
	}
	values, err := bind(args)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(background, values)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	row := make(Row, len(rows.Columns()))
	for {
		if err := rows.Next(row); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := scan(row); err != nil {
			return err
		}
	}
}

func bind(args []any) ([]driver.NamedValue, error) {
	values := make([]driver.NamedValue, len(args))
	for i, a := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(a)
		if err != nil {
			return nil, fmt.Errorf("prepared: argument %d: %w", i+1, err)
		}
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return values, nil
}

// Row is one row of a result.
type Row []driver.Value

// Scan copies the row's columns, as sql.Row does, into strings, integers, bytes and whatever
// is a sql.Scanner.
func (r Row) Scan(dest ...any) error {
	if len(dest) != len(r) {
		return fmt.Errorf("prepared: %d columns for %d destinations", len(r), len(dest))
	}
	for i, d := range dest {
		if err := scan(r[i], d); err != nil {
			return fmt.Errorf("prepared: column %d: %w", i+1, err)
		}
	}
	return nil
}

func scan(v driver.Value, dest any) error {
	switch d := dest.(type) {
	case sql.Scanner:
		return d.Scan(v)
	case *string:
		return set(v, d)
	case *int64:
		return set(v, d)
	case *bool:
		return set(v, d)
	case *[]byte:
		if v == nil {
			*d = nil
			return nil
		}
		return set(v, d)
	default:
		return fmt.Errorf("a %T can't be scanned into", dest)
	}
}

// set converts with database/sql's own rules; NULL is an error.
func set[T any](v driver.Value, dest *T) error {
	var n sql.Null[T]
	if err := n.Scan(v); err != nil {
		return err
	}
	if !n.Valid {
		return fmt.Errorf("NULL can't be a %T", *dest)
	}
	*dest = n.V
	return nil
}

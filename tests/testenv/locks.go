package testenv

import (
	"database/sql"
	"testing"
)

// LockSession is the Postgres session of that application name which has an advisory lock; 0
// if none.
func LockSession(t testing.TB, admin *sql.DB, name string) (pid int64) {
	t.Helper()
	err := admin.QueryRow(`SELECT COALESCE(MAX(l.pid), 0) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND a.application_name = $1`, name).Scan(&pid)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TriesLock tells that a session of that application name has asked for an advisory lock.
func TriesLock(t testing.TB, admin *sql.DB, name string) (is bool) {
	t.Helper()
	if err := admin.QueryRow(`SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = $1 AND query LIKE '%advisory_lock%')`, name).Scan(&is); err != nil {
		t.Fatal(err)
	}
	return is
}

// Package migrations holds the database schema: numbered SQL files that both engines run
// as they are. They're append-only; a released file is never edited.
package migrations

import "embed"

// FS holds the files NNNNN_name.sql at its root.
//
//go:embed *.sql
var FS embed.FS

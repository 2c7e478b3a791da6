// Package where builds the condition of a list, whose values are bound.
package where

import (
	"fmt"
	"strings"

	"github.com/drover-fleet/drover/server/internal/store/body"
)

// maxValue bounds a value, in bytes: the longest that is stored.
const maxValue = 256

// Where is a condition of parts that all have to be true; the empty one is.
type Where struct {
	Parts []string
	Args  []any
}

// Compare adds that left, a column and an operator, holds for a value; nothing for an empty one.
func (w *Where) Compare(left, value string) {
	if value != "" {
		w.Args = append(w.Args, body.Clean(value, maxValue))
		w.Parts = append(w.Parts, fmt.Sprintf("%s $%d", left, len(w.Args)))
	}
}

// Equal is Compare with =.
func (w *Where) Equal(column, value string) { w.Compare(column+" =", value) }

// SQL is the clause, "" for none.
func (w *Where) SQL() string {
	if len(w.Parts) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(w.Parts, " AND ")
}

package arch

import (
	"go/ast"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestAbsentIsAbsent: the JSON library leaves a member with omitempty out where its value is
// null, "", [] or {}, and writes 0 and false. Who is told that a member is absent takes a 0 for
// what it says: a next_offset of 0 has him begin again. Numbers and booleans have omitzero.
func TestAbsentIsAbsent(t *testing.T) {
	all, set := sources(t)
	scalars := []string{"bool", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "float32", "float64"}
	for _, src := range all {
		ast.Inspect(src.file, func(n ast.Node) bool {
			f, ok := n.(*ast.Field)
			if !ok || f.Tag == nil {
				return true
			}
			kind, ok := f.Type.(*ast.Ident)
			tag, err := strconv.Unquote(f.Tag.Value)
			if ok && err == nil && slices.Contains(scalars, kind.Name) && slices.Contains(strings.Split(reflect.StructTag(tag).Get("json"), ","), "omitempty") {
				t.Errorf("%s: omitempty omits no %s: use omitzero", set.Position(f.Pos()), kind.Name)
			}
			return true
		})
	}
}

package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// The guides. What exceeds one is named in exceptions, and never exceeds the wall.
const (
	funcGuide, funcWall       = 60, 100
	fileGuide, fileWall       = 400, 800
	packageGuide, packageWall = 2500, 4000
	methodGuide, methodWall   = 5, 15
	paramGuide, paramWall     = 5, 7
)

// exceptions name what is larger than its guide, and why that reads better than in parts.
func exceptions() map[string]string {
	return map[string]string{
		"agent/internal/capability":                 "one file a capability, with what differs between systems beside it",
		"agent/internal/link/Identity":              "one identity, read and written during one handshake",
		"protocol/mux":                              "one session: calls, streams and windows share its one reader, its one writer and their locks",
		"server/cmd/drover":                         "one file a command; they share the flags, the client and the printing",
		"server/internal/dispatch":                  "the one path of a call: its steps share the flight, and nobody else may touch it",
		"server/internal/enroll/Store":              "the life of a token and of the key that it registers, in shared transactions",
		"server/internal/mcpapi":                    "both eras meet here; in parts, each would show its inside to the other",
		"server/internal/store":                     "all SQL is here: its aggregates share transactions",
		"server/internal/store/dialect":             "the whole difference between the two engines, in one place",
		"server/internal/store/prepared/driverConn": "what every connection of the driver is: without one of these database/sql would do without it",
		"server/internal/tunnel/Store":              "what one connection asks of the store, from its hello to its end",
	}
}

func TestSizes(t *testing.T) {
	all, set := sources(t)
	m := &measured{named: exceptions(), over: map[string]string{}, lines: func(n ast.Node) int {
		return set.Position(n.End()).Line - set.Position(n.Pos()).Line + 1
	}}
	built := oneBuild(t)
	packages := map[string]int{}
	for _, src := range all {
		if !src.own {
			continue
		}
		// A table test is long, not deep: tests have the wall alone.
		guide := fileGuide
		if src.test {
			guide = fileWall
		}
		if built[src.path] {
			packages[src.dir] += src.lines
		}
		m.check(t, src.path, "file's length", src.lines, limit{guide, fileWall})
		ast.Inspect(src.file, func(n ast.Node) bool {
			m.node(t, src, n)
			return true
		})
	}
	for dir, lines := range packages {
		m.check(t, dir, "package's length", lines, limit{packageGuide, packageWall})
	}
	for name := range m.named {
		if _, ok := m.over[name]; !ok {
			t.Errorf("the exception %q isn't needed any more: remove it", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.over)) {
		if m.named[name] == "" {
			t.Errorf("%s: split it, or name it in exceptions with the reason", m.over[name])
		}
	}
}

// measured collects what is over its guide.
type measured struct {
	named map[string]string
	over  map[string]string
	lines func(ast.Node) int
}

// limit is a guide, and the wall behind it that no reason opens.
type limit struct{ guide, wall int }

func (m *measured) check(t *testing.T, name, what string, size int, l limit) {
	if size <= l.guide {
		return
	}
	m.over[name] = fmt.Sprintf("%s: this %s is %d, more than %d", name, what, size, l.guide)
	if size > l.wall {
		t.Errorf("%s: this %s is %d, more than the wall of %d", name, what, size, l.wall)
	}
}

// oneBuild are the files of one build, tests aside: variants for other systems and tags
// don't add up in a reader's head.
func oneBuild(t *testing.T) map[string]bool {
	t.Helper()
	out, dir := map[string]bool{}, ""
	for _, f := range golang(t, "list", "-f", `{{$p := .ImportPath}}{{range .GoFiles}}{{println $p}}{{println .}}{{end}}`, "./...") {
		if pkg, ok := strings.CutPrefix(f, module+"/"); ok {
			dir = pkg
			continue
		}
		out[path.Join(dir, f)] = true
	}
	return out
}

func (m *measured) node(t *testing.T, src source, n ast.Node) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		name := path.Join(src.dir, funcName(n))
		if n.Body != nil {
			guide := funcGuide
			if src.test {
				guide = funcWall
			}
			m.check(t, name, "function's length", m.lines(n), limit{guide, funcWall})
		}
		if !src.test {
			m.check(t, name+"()", "function's number of parameters", n.Type.Params.NumFields(), limit{paramGuide, paramWall})
		}
	case *ast.TypeSpec:
		if i, ok := n.Type.(*ast.InterfaceType); ok {
			m.check(t, path.Join(src.dir, n.Name.Name), "interface's number of methods", i.Methods.NumFields(), limit{methodGuide, methodWall})
		}
	}
}

// funcName is Name, or Receiver.Name.
func funcName(f *ast.FuncDecl) string {
	if f.Recv == nil || len(f.Recv.List) == 0 {
		return f.Name.Name
	}
	recv := f.Recv.List[0].Type
	for {
		switch x := recv.(type) {
		case *ast.StarExpr:
			recv = x.X
		case *ast.IndexExpr:
			recv = x.X
		case *ast.IndexListExpr:
			recv = x.X
		case *ast.Ident:
			return x.Name + "." + f.Name.Name
		default:
			return f.Name.Name
		}
	}
}

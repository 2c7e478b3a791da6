package arch

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// TestNoInit: what exists is wired in New, where a reader sees it.
func TestNoInit(t *testing.T) {
	all, _ := sources(t)
	for _, src := range all {
		for _, d := range src.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s has an init function", src.path)
			}
		}
	}
}

// derived are package variables that change and may: what they hold follows from constants
// alone, so that no two uses can differ.
func derived() map[string]string {
	return map[string]string{
		"protocol/strict.plans": "remembers how a type's members are named; computed from the type",
	}
}

// TestNoPackageState: a package variable is set once, where it's declared. Only a build's
// stamp (main.version) has no such place.
func TestNoPackageState(t *testing.T) {
	all, set := sources(t)
	vars := map[string]map[string]*ast.ValueSpec{} // by folder and name
	for _, src := range all {
		if src.test {
			continue
		}
		for _, spec := range packageVars(src.file) {
			for _, name := range spec.Names {
				if vars[src.dir] == nil {
					vars[src.dir] = map[string]*ast.ValueSpec{}
				}
				vars[src.dir][name.Name] = spec
				if bad := holdsState(spec); bad != "" && derived()[src.dir+"."+name.Name] == "" {
					t.Errorf("%s: the package variable %s %s", set.Position(name.Pos()), name.Name, bad)
				}
			}
		}
	}
	for _, src := range all {
		ast.Inspect(src.file, func(n ast.Node) bool {
			for _, target := range written(n) {
				id := base(target)
				if id == nil || !refersTo(id, vars[src.dir][id.Name]) {
					continue
				}
				t.Errorf("%s: the package variable %s is written to", set.Position(id.Pos()), id.Name)
			}
			return true
		})
	}
}

func packageVars(f *ast.File) []*ast.ValueSpec {
	var out []*ast.ValueSpec
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			if g.Doc != nil && strings.Contains(comments(g.Doc), "//go:embed") || v.Doc != nil && strings.Contains(comments(v.Doc), "//go:embed") {
				continue
			}
			out = append(out, v)
		}
	}
	return out
}

func comments(g *ast.CommentGroup) string {
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(c.Text + "\n")
	}
	return b.String()
}

// holdsState tells why a declaration can only be for something that changes; "" if it needn't.
func holdsState(v *ast.ValueSpec) string {
	if sel, ok := v.Type.(*ast.SelectorExpr); ok {
		if pkg, ok := sel.X.(*ast.Ident); ok && (pkg.Name == "sync" || pkg.Name == "atomic") {
			return "is a " + pkg.Name + "." + sel.Sel.Name
		}
	}
	for _, value := range v.Values {
		if call, ok := value.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.Ident); ok && (f.Name == "make" || f.Name == "new") {
				return "begins empty"
			}
		}
	}
	return ""
}

// written lists what a statement assigns to, takes the address of to change, or counts up.
func written(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			return n.Lhs
		}
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "delete" || f.Name == "clear") && len(n.Args) > 0 {
			return n.Args[:1]
		}
	}
	return nil
}

// base finds the variable at the root of x.f[i].
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.IndexExpr:
			e = x.X
		case *ast.SelectorExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// refersTo tells whether a name means this package variable: the parser resolves what is in
// the same file, and leaves what another file of the package declares unresolved.
func refersTo(id *ast.Ident, spec *ast.ValueSpec) bool {
	return spec != nil && id.Name != "_" && (id.Obj == nil || id.Obj.Decl == spec)
}

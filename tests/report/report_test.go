package main

import (
	"strings"
	"testing"
)

// TestReport feeds lines as `go test -json` prints them.
func TestReport(t *testing.T) {
	const pass = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}
`
	const end = `{"Action":"pass","Package":"p","Elapsed":0.1}
`
	for _, tc := range []struct {
		name, in string
		noSkips  bool
		ok       bool
		want     []string
	}{
		{"passes", pass + end, true, true, []string{"ok  \tp", "\n1 passed, 0 failed, 0 skipped\n"}},
		{"nothing ran", "", false, false, []string{"0 passed, 0 failed, 0 skipped"}},
		{"a failure shows its output once", pass + `{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"run","Package":"p","Test":"TestB/sub"}
{"Action":"output","Package":"p","Test":"TestB/sub","Output":"    b_test.go:3: broken\n"}
{"Action":"fail","Package":"p","Test":"TestB/sub"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`, false, false, []string{"b_test.go:3: broken", "Failed:\n  p TestB/sub\n", "1 passed, 1 failed, 0 skipped"}},
		{"a package that doesn't build", `{"ImportPath":"q","Action":"build-output","Output":"q.go:1: syntax error\n"}
{"ImportPath":"q","Action":"build-fail"}
{"Action":"fail","Package":"q","FailedBuild":"q"}
` + pass + end, false, false, []string{"q.go:1: syntax error", "q (the package as a whole)", "1 passed, 1 failed"}},
		{"a panic", pass + `{"Action":"run","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Test":"TestC","Output":"panic: no\n"}
{"Action":"fail","Package":"p"}
`, false, false, []string{"panic: no", "p TestC (never ended)", "1 passed, 1 failed"}},
		{"a skip", pass + `{"Action":"output","Package":"p","Test":"TestD","Output":"    d_test.go:9: no chromium\n"}
{"Action":"skip","Package":"p","Test":"TestD"}
` + end, false, true, []string{"Skipped:\n  p TestD: no chromium\n", "1 passed, 0 failed, 1 skipped"}},
		{"a skip that's not allowed", pass + `{"Action":"skip","Package":"p","Test":"TestD"}
` + end, true, false, []string{"p TestD: no reason given", "1 passed, 1 failed, 0 skipped"}},
		{"what took longest, without its parts", `{"Action":"run","Package":"p","Test":"TestE"}
{"Action":"run","Package":"p","Test":"TestE/sub"}
{"Action":"pass","Package":"p","Test":"TestE/sub","Elapsed":9}
{"Action":"pass","Package":"p","Test":"TestE","Elapsed":9.5}
{"Action":"run","Package":"p","Test":"TestF"}
{"Action":"pass","Package":"p","Test":"TestF","Elapsed":12.25}
` + pass + `{"Action":"pass","Package":"p","Elapsed":22}
`, false, true, []string{"Slowest packages:\n    22.0s  p\n\nSlowest tests:\n    12.2s  p TestF\n     9.5s  p TestE\n\n3 passed"}},
		{"a line that is no event", "warning\n" + pass + end, false, true, []string{"warning\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			r := newReport(&out)
			if err := r.read(strings.NewReader(tc.in)); err != nil {
				t.Fatal(err)
			}
			if ok := r.finish(nil, tc.noSkips); ok != tc.ok {
				t.Errorf("ok = %v, want %v", ok, tc.ok)
			}
			for _, want := range tc.want {
				if strings.Count(out.String(), want) != 1 {
					t.Errorf("%q isn't there once in:\n%s", want, &out)
				}
			}
		})
	}
}

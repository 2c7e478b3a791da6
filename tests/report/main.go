// Command report reads `go test -json` on its standard input and prints what a person
// needs: a line for each package, the output of what failed, what took longest, what was
// skipped and why, and the counts. It exits with 1 when anything failed or nothing ran.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	var also list
	flag.Var(&also, "also", "a check that was skipped before the tests; repeatable")
	noSkips := flag.Bool("no-skips", false, "a skipped test counts as failed")
	flag.Parse()

	r := newReport(os.Stdout)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
	if !r.finish(also, *noSkips) {
		os.Exit(1)
	}
}

type list []string

// String implements flag.Value.
func (l *list) String() string { return fmt.Sprint(*l) }

// Set implements flag.Value.
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

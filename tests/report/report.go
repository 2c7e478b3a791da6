package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is one line of go test -json; `go doc test2json` describes it.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

type key struct{ pkg, test string }

type report struct {
	out     io.Writer
	outputs map[key][]string
	// parents have subtests: they're not counted by themselves.
	parents                 map[key]bool
	passed, failed, skipped int
	failures, skips         []string
	slowPackages, slowTests []took
}

// took is how long a package, or a test with its subtests, ran: without the time that a
// parallel test waited for its turn.
type took struct {
	name    string
	seconds float64
}

func newReport(out io.Writer) *report {
	return &report{out: out, outputs: map[key][]string{}, parents: map[key]bool{}}
}

// read takes events until the input ends. A line that is no event is shown as it is.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(r.out, lines.Text())
			continue
		}
		r.take(e)
	}
	return lines.Err()
}

func (r *report) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		r.outputs[k] = append(r.outputs[k], e.Output)
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			r.parents[key{e.Package, e.Test[:i]}] = true
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e, k)
		}
	}
}

func (r *report) endTest(e event, k key) {
	text := strings.Join(r.outputs[k], "")
	delete(r.outputs, k)
	name := e.Package + " " + e.Test
	if !strings.Contains(e.Test, "/") {
		r.slowTests = append(r.slowTests, took{name, e.Elapsed})
	}
	switch {
	case e.Action == "fail":
		fmt.Fprint(r.out, text)
		if !r.parents[k] {
			r.failed++
			r.failures = append(r.failures, name)
		}
	case e.Action == "skip":
		r.skipped++
		r.skips = append(r.skips, name+": "+reason(text))
	case !r.parents[k]:
		r.passed++
	}
}

func (r *report) endPackage(e event) {
	r.slowPackages = append(r.slowPackages, took{e.Package, e.Elapsed})
	whole := key{e.Package, ""}
	switch e.Action {
	case "fail":
		// Tests that never ended (a panic, a timeout, os.Exit) have their output here still.
		before := r.failed
		for k, lines := range r.outputs {
			if k.pkg == e.Package && k.test != "" {
				fmt.Fprint(r.out, strings.Join(lines, ""))
				r.failed++
				r.failures = append(r.failures, k.pkg+" "+k.test+" (never ended)")
			}
		}
		fmt.Fprint(r.out, strings.Join(r.outputs[whole], ""))
		if before == r.failed && !slices.ContainsFunc(r.failures, func(f string) bool { return strings.HasPrefix(f, e.Package+" ") }) {
			r.failed++
			r.failures = append(r.failures, e.Package+" (the package as a whole)")
		}
		fmt.Fprintf(r.out, "FAIL\t%s\t%.1fs\n", e.Package, e.Elapsed)
	case "pass":
		fmt.Fprintf(r.out, "ok  \t%s\t%.1fs\n", e.Package, e.Elapsed)
	}
	for k := range r.outputs {
		if k.pkg == e.Package {
			delete(r.outputs, k)
		}
	}
}

// place is what t.Skip puts before its reason.
var place = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// reason finds why a test was skipped in what it printed.
func reason(output string) string {
	for line := range strings.Lines(output) {
		if place.MatchString(line) {
			return strings.TrimSpace(place.ReplaceAllString(line, ""))
		}
	}
	return "no reason given"
}

// slowest are the lines of those that took longest, at most so many; what took less than a
// second is none of them.
func slowest(all []took, most int) (lines []string) {
	slices.SortStableFunc(all, func(a, b took) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, one := range all[:min(most, len(all))] {
		if one.seconds >= 1 {
			lines = append(lines, fmt.Sprintf("%6.1fs  %s", one.seconds, one.name))
		}
	}
	return lines
}

// finish prints the end of the report and tells whether all is well.
func (r *report) finish(also []string, noSkips bool) bool {
	section := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(r.out, "\n%s:\n", title)
		for _, l := range lines {
			fmt.Fprintln(r.out, "  "+l)
		}
	}
	section("Slowest packages", slowest(r.slowPackages, 6))
	section("Slowest tests", slowest(r.slowTests, 15))
	slices.Sort(r.skips)
	section("Skipped", append(slices.Clone(also), r.skips...))
	section("Failed", r.failures)
	if noSkips && r.skipped > 0 {
		fmt.Fprintln(r.out, "\nDROVER_TEST_REQUIRE=all: a skipped test counts as failed")
		r.failed, r.skipped = r.failed+r.skipped, 0
	}
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	return r.failed == 0 && r.passed > 0
}

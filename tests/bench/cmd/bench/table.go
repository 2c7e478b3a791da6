package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/drover-fleet/drover/tests/bench/load"
)

// row is one number with what it's compared with.
type row struct {
	what, value, ratio string
	bar                string // "" where nothing is promised
	met                bool
}

func (b *bench) add(r row) {
	b.row = append(b.row, r)
	b.say("%s: %s %s", r.what, r.value, r.ratio)
}

func (b *bench) note(what, value string) { b.add(row{what: what, value: value}) }

func (r row) verdict() string {
	switch {
	case r.bar == "":
		return ""
	case r.met:
		return "met"
	default:
		return "MISSED"
	}
}

// table writes the rows for people, or as Markdown.
func table(rows []row, markdown bool) string {
	var out bytes.Buffer
	if markdown {
		fmt.Fprintln(&out, "| what | measured | compared | bar | |\n| --- | --- | --- | --- | --- |")
		for _, r := range rows {
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n", r.what, r.value, r.ratio, r.bar, r.verdict())
		}
		return out.String()
	}
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.what, r.value, r.ratio, r.bar, r.verdict())
	}
	_ = w.Flush() // a buffer takes everything
	return out.String()
}

// The lines of the page between which the table stands.
const (
	tableBegins = "<!-- the table below is written by make bench -->\n"
	tableEnds   = "<!-- end of the table -->\n"
)

// writePage replaces the table of a page.
func writePage(path string, b *bench) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), tableBegins)
	_, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no place for the table: the lines %q and %q", path, tableBegins, tableEnds)
	}
	head := fmt.Sprintf("\n%s, %d cores, %s/%s, %s; GOGC=%s on all sides while calls were timed. Load average of the minute before the run: %s.\n\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), b.gogc, b.before)
	return os.WriteFile(path, []byte(before+tableBegins+head+table(b.row, true)+"\n"+tableEnds+after), 0o644)
}

// loadNow is the load average of the last minute: much above zero, something else was running.
func loadNow() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	now, _, _ := strings.Cut(string(b), " ")
	return now
}

func ms(d time.Duration) string { return number(d.Seconds()*1000, 2) + " ms" }

func mib(n int64) string { return number(float64(n)/(1<<20), 1) + " MiB" }

func number(f float64, digits int) string { return strconv.FormatFloat(f, 'f', digits, 64) }

func perSecond(r load.Rate) string { return number(load.Quantile(r.PerSecond, 0.5), 0) + "/s" }

func us(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) + " µs" }

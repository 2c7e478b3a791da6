package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/drover-fleet/drover/protocol/text"
)

// cell bounds a text in a table, in bytes.
const cell = 60

// table writes rows under a head. Every cell is one visible line: hosts put text here.
func table(w io.Writer, head []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(head, "\t"))
	for _, r := range rows {
		for i := range r {
			if r[i] = text.Line(r[i], cell); r[i] == "" {
				r[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// printJSON writes v as indented JSON in which nothing moves a cursor or hides.
func printJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, visibleJSON(string(b)))
	return err
}

// visibleJSON escapes what text.Visible would, in JSON's own way: the value is the same.
func visibleJSON(s string) string {
	if text.Visible(s) == s {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		one := string(r)
		switch {
		case text.Visible(one) == one:
			b.WriteString(one)
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// when writes a time for people, in their own time zone.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

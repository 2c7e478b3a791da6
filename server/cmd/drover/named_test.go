package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheCommandsThatTheDocsName: a command line that a page shows as code begins with a
// command that there is.
func TestTheCommandsThatTheDocsName(t *testing.T) {
	root := (&app{}).root()
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")
	line := regexp.MustCompile(`(?:^|[\s;|&(])(?:bin/)?drover ((?:[a-z][a-z-]*[ \t]*)+)`)
	named := 0
	check := func(file string) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, span := range code.FindAllString(string(b), -1) {
			for _, m := range line.FindAllStringSubmatch(strings.Trim(span, "`"), -1) {
				words := strings.Fields(m[1])
				cmd, _, err := root.Find(words[:1])
				if words[0] == "drover" { // a user and its group
					continue
				}
				if err != nil || cmd == root {
					t.Errorf("%s: there's no command drover %s", file, words[0])
					continue
				}
				if named++; len(words) > 1 && cmd.HasSubCommands() {
					if sub, _, err := cmd.Find(words[1:2]); err != nil || sub == cmd {
						t.Errorf("%s: there's no command drover %s %s", file, words[0], words[1])
					}
				}
			}
		}
	}
	for _, at := range []string{"../../../README.md", "../../../docs"} {
		err := filepath.WalkDir(at, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".md") {
				check(path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if named < 30 {
		t.Errorf("only %d commands were found: the test reads too little", named)
	}
}

package text

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestVisible(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain", "total 4\n\tdrwx 1\n", "total 4\n\tdrwx 1\n"},
		{"accents", "Grüße, Привет, 你好", "Grüße, Привет, 你好"},
		{"carriage return", "rm -rf /\rls", `rm -rf /\x0dls`},
		{"escape sequences", "\x1b[2J\x1b]52;c;AAAA\a", `\x1b[2J\x1b]52;c;AAAA\x07`},
		{"delete and C1", "a\x7fb\u009bc\u0085d", `a\x7fb\xc2\x9bc\xc2\x85d`},
		{"NUL", "a\x00b", `a\x00b`},
		{"invalid UTF-8", "a\xf0\x9fb\xff", `a\xf0\x9fb\xff`},
		{"bidi override", "abc\u202edef\u2066g", `abc\xe2\x80\xaedef\xe2\x81\xa6g`},
		{"tag characters", "hi\U000e0041\U000e007f", `hi\xf3\xa0\x81\x81\xf3\xa0\x81\xbf`},
		{"zero width", "pass\u200bword\ufeff\u2060", `pass\xe2\x80\x8bword\xef\xbb\xbf\xe2\x81\xa0`},
		{"line separator", "a\u2028b\u2029c", `a\xe2\x80\xa8b\xe2\x80\xa9c`},
		{"joiner between Latin letters", "a\u200db\u200cc", `a\xe2\x80\x8db\xe2\x80\x8cc`},
		{"joined emoji", "👩‍💻 👨‍👩‍👧 ❤️ 1️⃣", "👩‍💻 👨‍👩‍👧 ❤️ 1️⃣"},
		{"Persian", "می‌خواهم", "می‌خواهم"},
		{"Devanagari", "क्‍ष", "क्‍ष"},
		{"variation selectors that hide data", "a\ufe0f\U000e0101", `a\xef\xb8\x8f\xf3\xa0\x84\x81`},
		{"selectors in a row", "❤\ufe0f\ufe0f", "❤\ufe0f" + `\xef\xb8\x8f`},
		{"soft hyphen and filler", "a\u00adb\u3164c", `a\xc2\xadb\xe3\x85\xa4c`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Visible(c.in)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLine(t *testing.T) {
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{
		{"x\n{\"level\":\"info\"}", 80, `x {"level":"info"}`},
		{"  web\t01\r\n", 80, "web 01"},
		{"ééééé", 8, "éé…"},
		{strings.Repeat("a", 20), 10, "aaaaaaa…"},
		{"abc", 2, ""},
	} {
		if got := Line(c.in, c.max); got != c.want || len(got) > c.max {
			t.Errorf("Line(%q, %d) = %q, want %q", c.in, c.max, got, c.want)
		}
	}
}

func FuzzVisible(f *testing.F) {
	for _, s := range []string{"", "a\x1b[0m", "👩‍💻", "\xff\x00", "می‌خواهم", "\U000e0041"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := Visible(s)
		if !utf8.ValidString(v) {
			t.Fatalf("%q became invalid: %q", s, v)
		}
		if again := Visible(v); again != v {
			t.Fatalf("%q is not stable: %q, then %q", s, v, again)
		}
		if strings.ContainsAny(v, "\x00\x1b\r\u202e\u2028\u0085\ufeff") {
			t.Fatalf("%q leaves something in %q", s, v)
		}
		if plain(s) && v != s {
			t.Fatalf("%q changed to %q", s, v)
		}
	})
}

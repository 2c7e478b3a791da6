//go:build linux

package capability_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol/mux"
)

func TestF10_LargeAndBinaryFilesComeInWindows(t *testing.T) {
	dir := t.TempDir()
	sparse := writeFile(t, dir+"/sparse", "")
	if err := os.Truncate(sparse, 10<<30); err != nil {
		t.Fatal(err)
	}
	png := writeFile(t, dir+"/p.png", "\x89PNG\r\n\x1a\n"+strings.Repeat("\x00\xff", 10_000))
	bigPNG := writeFile(t, dir+"/big.png", "\x89PNG\r\n\x1a\n"+strings.Repeat("\x00\xff", 500_000))
	one := writeFile(t, dir+"/one.json", `["`+strings.Repeat("é", 2_500_000)+`"]`)
	r := newRig(t)
	for _, a := range []args{{"path": sparse}, {"path": sparse, "offset": -10}, {"path": sparse, "unit": "bytes", "offset": -5}, {"path": png}, {"path": one},
		{"path": one, "unit": "bytes", "offset": 3}, {"path": bigPNG}, {"path": png, "unit": "bytes"}} {
		within(t, 2*time.Second, fmt.Sprint(a), func() {
			req := r.request(t, "fs_read", a)
			resp := r.Handle(t.Context(), req, mux.Detached(func(string) {}))
			if len(resp.Result) > 42_000 {
				t.Errorf("%v: an answer of %d bytes", a, len(resp.Result))
			}
		})
	}
	out, fault := read(t, r, args{"path": sparse})
	if fault != nil || out.Kind != "binary" || out.Size != 10<<30 || out.NextOffset != 30_000 || out.Unit != "bytes" || !out.Truncated {
		t.Errorf("sparse: %+.200v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": sparse, "unit": "bytes", "offset": -5})
	if fault != nil || out.Data != base64.StdEncoding.EncodeToString(make([]byte, 5)) || out.Offset != 10<<30-5 || out.NextOffset != 0 {
		t.Errorf("sparse's end: %+v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": png})
	if b, _ := base64.StdEncoding.DecodeString(out.Data); fault != nil || out.Kind != "image" || out.MIME != "image/png" || string(b) != readFile(t, png) {
		t.Errorf("image: %+.200v, %v", out, fault)
	}
	if out, fault = read(t, r, args{"path": bigPNG}); fault != nil || out.Kind != "binary" || out.MIME != "image/png" || out.Size != 1_000_008 {
		t.Errorf("large image: %+.200v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": one})
	if fault != nil || out.Kind != "text" || !out.Truncated || out.NextByteOffset == 0 || out.Size != 5_000_004 {
		t.Errorf("one line: %d bytes, next %d, %v", len(out.Text), out.NextByteOffset, fault)
	}
	next, fault := read(t, r, args{"path": one, "unit": "bytes", "offset": out.NextByteOffset})
	if fault != nil || next.Kind != "text" || !strings.HasPrefix(readFile(t, one), out.Text+next.Text) {
		t.Errorf("it doesn't go on where it ended: %v", fault)
	}
}

func TestReadingByLinesAndBytesGoesOnWithoutGapOrOverlap(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t)
	for name, content := range map[string]string{
		"text":        strings.Repeat("line of text é😀\n", 20_000),
		"no break":    strings.Repeat("short\n", 3000) + "last",
		"controls":    strings.Repeat("\x01\x02\x1b[2J\"\\\n", 10_000),
		"empty lines": strings.Repeat("\n", 50_000),
		"long lines":  strings.Repeat(strings.Repeat("x", 30_000)+"\n", 100),
		"empty":       "",
	} {
		path := writeFile(t, dir+"/"+name, content)
		for _, unit := range []string{"lines", "bytes"} {
			got, a := "", args{"path": path, "unit": unit}
			for rounds := 0; ; rounds++ {
				resp := r.Handle(t.Context(), r.request(t, "fs_read", a), mux.Detached(func(string) {}))
				if len(resp.Result) > 41_000 || rounds > 1000 {
					t.Fatalf("%s by %s: an answer of %d bytes in round %d", name, unit, len(resp.Result), rounds)
				}
				out, fault := read(t, r, a)
				if fault != nil || out.Kind != "text" || out.ByteOffset != int64(len(got)) || out.SHA256 != sum(content) {
					t.Fatalf("%s by %s at %v: %+.300v, %v", name, unit, a["offset"], out, fault)
				}
				got += out.Text
				if out.NextOffset == 0 {
					break
				}
				a["offset"] = out.NextOffset
			}
			if got != content {
				t.Errorf("%s by %s: %d bytes, want %d", name, unit, len(got), len(content))
			}
		}
	}
}

func TestReadingFromTheEnd(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "log")
	for content, c := range map[string]struct {
		offset int
		want   string
	}{"a\nb\nc\n": {-2, "b\nc\n"}, "a\nb\nc": {-2, "b\nc"}, "a\n\n": {-1, "\n"}, "a": {-5, "a"}, "\n": {-1, "\n"}, "": {-3, ""},
		strings.Repeat("0123456789\n", 100_000) + "end\n": {-2, "0123456789\nend\n"}} {
		writeFile(t, path, content)
		if out, fault := read(t, r, args{"path": path, "offset": c.offset}); fault != nil || out.Text != c.want || out.NextOffset != 0 {
			t.Errorf("%.20q from %d: got %q, %+v, %v", content, c.offset, out.Text, out, fault)
		}
	}
	writeFile(t, path, strings.Repeat("x\n", 10))
	out, fault := read(t, r, args{"path": path, "offset": -4, "limit": 3})
	if fault != nil || out.Text != "x\nx\nx\n" || out.Offset != -4 || out.NextOffset != -1 || !out.Truncated {
		t.Errorf("got %+v, %v", out, fault)
	}
	out, fault = read(t, r, args{"path": path, "offset": 100})
	if fault != nil || out.Text != "" || out.ByteOffset != 20 || out.NextOffset != 0 {
		t.Errorf("beyond the end: %+v, %v", out, fault)
	}
}

func TestTextThatIsNotUTF8IsBinary(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "f")
	for content, mime := range map[string]string{"caf\xe9\n": "text/plain; charset=utf-8", "\xff\xfea\x00\n\x00": "text/plain; charset=utf-16le", "a\x00b": "application/octet-stream"} {
		writeFile(t, path, content)
		out, fault := read(t, r, args{"path": path})
		if b, err := base64.StdEncoding.DecodeString(out.Data); fault != nil || err != nil || out.Kind != "binary" || string(b) != content || out.Text != "" || out.MIME != mime {
			t.Errorf("%q: %+v, %v", content, out, fault)
		}
	}
}

func TestAWindowOfBytesDoesNotCutARune(t *testing.T) {
	r := newRig(t)
	content := strings.Repeat("é😀x", 5)
	path := writeFile(t, filepath.Join(t.TempDir(), "f"), content)
	for limit := 4; limit < 12; limit++ {
		got, a := "", args{"path": path, "unit": "bytes", "limit": limit}
		for rounds := 0; rounds < 20; rounds++ {
			out, fault := read(t, r, a)
			if fault != nil || out.Kind != "text" || len(out.Text) > limit {
				t.Fatalf("limit %d at %v: %+v, %v", limit, a["offset"], out, fault)
			}
			got += out.Text
			if out.NextOffset == 0 {
				break
			}
			a["offset"] = out.NextOffset
		}
		if got != content {
			t.Errorf("limit %d: %q", limit, got)
		}
	}
}

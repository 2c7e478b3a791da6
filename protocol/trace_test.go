package protocol_test

import (
	"strings"
	"testing"

	"github.com/drover-fleet/drover/protocol"
)

func TestValidTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if len(good) != protocol.TraceparentLen {
		t.Fatal(len(good))
	}
	for _, s := range []string{good, good[:53] + "00", good[:53] + "ff"} {
		if !protocol.ValidTraceparent(s) {
			t.Errorf("%q is refused", s)
		}
	}
	for _, s := range []string{
		"", "00", "01" + good[2:], "ff" + good[2:], strings.ToUpper(good), good + "-extra", " " + good, good + "\n", good[:54], good + "," + good,
		"00-" + strings.Repeat("0", 32) + good[35:], good[:36] + strings.Repeat("0", 16) + good[52:], good[:40] + "g" + good[41:], good[:53] + "0x",
		strings.Replace(good, "-", "_", 1), good[:35] + "0" + good[36:], strings.Repeat("a", 1<<20), "00-0af7651916cd43dd8448eb211c80319\u00e9-b7ad6b7169203331-01",
	} {
		if protocol.ValidTraceparent(s) {
			t.Errorf("%.80q is taken", s)
		}
	}
}

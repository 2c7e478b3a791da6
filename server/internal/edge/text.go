package edge

import "github.com/drover-fleet/drover/protocol/text"

// Line returns foreign text as one visible line of at most max bytes (text.Line).
func Line(s string, max int) string { return text.Line(s, max) }

// Quote returns foreign text in quotes, as one visible line of at most max bytes
// (text.Quote).
func Quote(s string, max int) string { return text.Quote(s, max) }

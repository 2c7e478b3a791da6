// Package web holds the built page: what `npm run build` left in dist. It's empty but for
// a placeholder when the page wasn't built; server/internal/ui then says how to.
package web

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// Dist returns the built page's files, index.html at the root.
func Dist() fs.FS {
	sub, err := fs.Sub(dist, "dist")
	if err != nil {
		// fs.Sub fails for an invalid path alone, and this one is a constant.
		panic(err)
	}
	return sub
}

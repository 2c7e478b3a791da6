package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// docsCmd writes the manual pages that packages ship.
func (a *app) docsCmd() *cobra.Command {
	man := &cobra.Command{
		Use: "man DIR", Short: "Write manual pages", Args: oneArg("a folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("the folder: %w", err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same pages from the same source
			return doc.GenManTree(root, &doc.GenManHeader{Title: "DROVER", Section: "1", Source: "drover", Manual: "Drover"}, args[0])
		},
	}
	d := group("docs", "Write documentation", "", man)
	d.Hidden = true
	return d
}

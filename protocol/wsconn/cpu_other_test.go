//go:build !unix

package wsconn_test

import "time"

// cpu isn't known here.
func cpu() time.Duration { return 0 }

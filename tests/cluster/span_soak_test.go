//go:build soak

package cluster

import "time"

// stormFor is how long the storm goes on.
const stormFor = 10 * time.Minute

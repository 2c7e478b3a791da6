//go:build soak

package cluster

import "time"

// stormFor is how long the storm goes on; many is how many agents two replicas have.
const (
	stormFor = 10 * time.Minute
	many     = 6000
)

//go:build !soak

package cluster

import "time"

// stormFor is how long the storm goes on; many is how many agents two replicas have.
const (
	stormFor = 45 * time.Second
	many     = 600
)

//go:build !soak

package capability_test

// hugeMiB is how much the largest output of a test is: more would take too long.
const hugeMiB = 300

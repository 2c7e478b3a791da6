//go:build soak

package capability_test

// hugeMiB is how much the largest output of a test is: here as large as it's promised.
const hugeMiB = 2048

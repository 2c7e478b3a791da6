// Package netns runs real agent processes on hosts of their own names and networks: Linux
// namespaces stand for machines.
package netns

//go:build !linux

package proctree

import (
	"errors"
	"log/slog"
)

// Groups gives each command a cgroup of its own, where the system has them.
type Groups struct{}

// FindGroups finds none here.
func FindGroups(*slog.Logger) (*Groups, error) { return nil, errors.New("this system has no cgroups") }

// Close has nothing to do.
func (g *Groups) Close() {}

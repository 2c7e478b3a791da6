package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-fleet/drover/agent/internal/identity"
)

// Config says how an agent runs.
type Config struct {
	// Server is the base URL; "" takes the one of the enrolment in State.
	Server string
	// State is the folder with this host's key and enrolment; only the agent's user may
	// read it. It's made when it isn't there.
	State string
	// Token enrols when State holds no enrolment yet; TokenFile names a file with it.
	Token, TokenFile string
	// Replace makes Enrol give up an enrolment that's there already.
	Replace bool
	// Plaintext allows http beyond loopback.
	Plaintext bool
	// Roots confine the file tools to these folders; none: not confined. They don't
	// confine commands.
	Roots []string
	// CAFile names a PEM file with the only certificate authorities to trust.
	CAFile string
	// Supervisor is the command line that runs SuperviseJob; none: background jobs aren't
	// offered.
	Supervisor []string
	// Version is the build's version, as facts and diag_system tell it.
	Version string
}

// Check refuses what can't work, whatever the host has, before anything is done.
func (c *Config) Check() error {
	if c.State == "" {
		return errors.New("no state folder: give --state DIR")
	}
	if !filepath.IsAbs(c.State) {
		abs, err := filepath.Abs(c.State)
		if err != nil {
			return err
		}
		c.State = abs
	}
	if c.Token != "" && c.TokenFile != "" {
		return errors.New("give --token or --token-file, not both")
	}
	for _, root := range c.Roots {
		if !filepath.IsAbs(root) {
			return fmt.Errorf("--root %q must be an absolute path", root)
		}
	}
	if c.Server == "" {
		return nil
	}
	return identity.CheckURL(c.Server, c.Plaintext)
}

func (c *Config) tokenGiven() bool { return c.Token != "" || c.TokenFile != "" }

// token reads the enrolment token; "" when none was given.
func (c *Config) token() (string, error) {
	if c.TokenFile == "" {
		return c.Token, nil
	}
	b, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("the token file: %w", err)
	}
	if token := strings.TrimSpace(string(b)); token != "" {
		return token, nil
	}
	return "", fmt.Errorf("the token file %s is empty", c.TokenFile)
}

// anew is the command that enrols this host anew, with the server it's enrolled with; FILE is
// to be filled in.
func (c *Config) anew() string {
	args := []string{"drover-agent enroll --replace --state", quoted(c.State)}
	if c.Plaintext {
		args = append(args, "--plaintext")
	}
	if c.CAFile != "" {
		args = append(args, "--ca-file", quoted(c.CAFile))
	}
	file := "FILE"
	if c.TokenFile != "" {
		file = quoted(c.TokenFile)
	}
	return strings.Join(append(args, "--token-file", file), " ")
}

// quoted is a path as a shell takes it for one word.
func quoted(path string) string {
	if strings.ContainsFunc(path, func(r rune) bool {
		return !strings.ContainsRune("/\\:._-+@%,=", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}

package capability

import (
	"os/user"
	"runtime"
	"slices"
	"strings"

	"github.com/drover-fleet/drover/agent/internal/run"
	"github.com/drover-fleet/drover/protocol"
)

// inherited picks what commands get of the agent's own environment: what programs need to
// find their way, nothing that could hold a secret.
func inherited(environ []string) map[string]string {
	allowed := []string{"PATH", "HOME", "LANG", "LANGUAGE", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ"}
	if runtime.GOOS == "windows" {
		allowed = append(allowed, "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "USERNAME",
			"USERDOMAIN", "COMPUTERNAME", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "ALLUSERSPROFILE", "PUBLIC",
			"PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "COMMONPROGRAMFILES", "COMMONPROGRAMFILES(X86)", "COMMONPROGRAMW6432",
			"PSMODULEPATH", "OS", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE")
	}
	env := map[string]string{}
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" {
			continue
		}
		known := name
		if runtime.GOOS == "windows" {
			known = strings.ToUpper(name)
		}
		if slices.Contains(allowed, known) || strings.HasPrefix(name, "LC_") {
			env[name] = value
		}
	}
	complete(env)
	return env
}

// complete adds what a service manager may have left out, and what makes programs behave
// without a terminal.
func complete(env map[string]string) {
	set := func(name, value string) {
		if env[name] == "" && value != "" {
			env[name] = value
		}
	}
	if runtime.GOOS != "windows" {
		set("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
		if u, err := user.Current(); err == nil {
			set("HOME", u.HomeDir)
			set("USER", u.Username)
			set("LOGNAME", u.Username)
		}
		if runtime.GOOS == "darwin" {
			set("LANG", "en_US.UTF-8")
		}
		env["TERM"] = "dumb"
	}
	env["PAGER"] = "cat"
}

// environment is what one command sees: what's inherited, what the call adds, and who it
// acts for.
func (h *Host) environment(c *run.Call, add map[string]string) ([]string, error) {
	env := make(map[string]string, len(h.env)+len(add)+4)
	for name, value := range h.env {
		env[name] = value
	}
	if c.Traceparent != "" { // what the call itself sets counts more
		put(env, "TRACEPARENT", c.Traceparent)
	}
	for name, value := range add {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, protocol.Errorf(protocol.CodeBadArgs, "a name in env is empty or holds = or NUL")
		}
		if strings.ContainsRune(value, 0) {
			return nil, protocol.Errorf(protocol.CodeBadArgs, "a value in env holds a NUL byte")
		}
		if len(name) >= 7 && strings.EqualFold(name[:7], "DROVER_") {
			return nil, protocol.Errorf(protocol.CodeBadArgs, "names in env that begin with DROVER_ are Drover's own and can't be set")
		}
		put(env, name, value)
	}
	speakUTF8(env)
	env["DROVER_AGENT_ID"] = h.AgentID
	env["DROVER_CALL_ID"] = c.ID
	env["DROVER_CALLER"] = callerName(c.Caller)
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	slices.Sort(out)
	return out, nil
}

// speakUTF8 makes text UTF-8 where neither the host nor the call says what it is. In all else
// C.UTF-8 is C itself, and a program that needn't load the rest of it starts sooner.
func speakUTF8(env map[string]string) {
	for _, name := range []string{"LANG", "LC_ALL", "LC_CTYPE"} {
		if _, said := env[name]; said || runtime.GOOS == "windows" {
			return
		}
	}
	env["LC_CTYPE"] = "C.UTF-8"
}

// put sets a variable; on Windows, where names have no case, in the place of the one there.
func put(env map[string]string, name, value string) {
	if runtime.GOOS == "windows" {
		for have := range env {
			if strings.EqualFold(have, name) {
				delete(env, have)
			}
		}
	}
	env[name] = value
}

// callerName writes a caller as kind:ID:NAME in characters that mean nothing to any shell.
func callerName(c protocol.Caller) string {
	safe := func(s string) string {
		return strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == ':', r == '-':
				return r
			}
			return '-'
		}, s)
	}
	out := safe(c.Principal)
	if c.User != "" {
		out += ":" + safe(c.User)
	}
	return out[:min(len(out), 256)]
}

package main

import (
	"context"
	"errors"
	"time"

	"github.com/drover-fleet/drover/tests/bench/load"
	"github.com/drover-fleet/drover/tests/bench/rig"
)

// shell compares a command over MCP with the same one over SSH.
func (b *bench) shell(ctx context.Context) error {
	conn, err := b.rig.SSH()
	if errors.Is(err, rig.ErrNoSSHD) {
		b.note("shell_exec beside SSH", "not measured: "+err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // sshd is ended anyway
	srv, err := b.rig.Serve("shell", "")
	if err != nil {
		return err
	}
	if _, err := srv.Agent(agentID); err != nil {
		return err
	}
	tool := load.Tool{Name: "shell_exec", Args: map[string]any{"agent_id": agentID, "command": "echo hi"}}
	call, _, err := load.MCP(ctx, srv.URL, srv.Token, load.Modern, tool)
	if err != nil {
		return err
	}
	sides := []load.Side{{Name: "ssh", Call: load.SSH(conn, "echo hi", "hi\n")}, {Name: "drover", Call: call}}
	took, err := load.Latencies(ctx, sides, b.rounds, max(b.each/4, 1))
	if err != nil {
		return err
	}
	share := load.Compare(took[1].Rounds, took[0].Rounds, func(a, b time.Duration) float64 { return float64(a) / float64(b) })
	b.note("echo hi: Go's SSH client over sshd, a session per command", ms(took[0].Median()))
	b.add(row{what: "echo hi: shell_exec over MCP on sqlite", value: ms(took[1].Median()), ratio: number(share, 2) + " of SSH",
		bar: "at most 1.00", met: share <= 1})
	return nil
}

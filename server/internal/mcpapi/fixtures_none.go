//go:build !fixtures

package mcpapi

import "github.com/modelcontextprotocol/go-sdk/mcp"

// fixtureOptions leaves the options of a server alone: only a build with the
// tag "fixtures" carries the tools, prompts and resources that MCP's
// conformance suite asks for.
func fixtureOptions(*mcp.ServerOptions) {}

// addFixtures adds nothing: see fixtureOptions.
func addFixtures(*mcp.Server) {}

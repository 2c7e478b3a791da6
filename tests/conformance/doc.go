// Package conformance runs what others wrote for MCP against the real drover
// serve: MCP's public conformance suite, the inspector's command line,
// mcp-remote and (with the build tag "clients") Claude Code, driven by a
// scripted stand-in for the Messages API.
//
// The programs come from npm, at the versions that package-lock.json and
// claude/package-lock.json pin; what isn't installed is skipped, or fails with
// DROVER_TEST_REQUIRE=all. All of it runs on loopback.
package conformance

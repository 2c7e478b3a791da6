package main

import (
	"encoding/base64"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/restapi"
)

// fileResult is the part of fs_read's result that the CLI shows.
type fileResult struct {
	Kind           string  `json:"kind"`
	Text           string  `json:"text"`
	Data           *string `json:"data"`
	MIME           string  `json:"mime"`
	Size           int64   `json:"size"`
	Unit           string  `json:"unit"`
	NextOffset     int64   `json:"next_offset"`
	NextByteOffset int64   `json:"next_byte_offset"`
}

// showResult prints a result that isn't a process's: a file as itself, all else as JSON.
func (a *app) showResult(o *callFlags, c *restapi.Call) error {
	var f fileResult
	if c.Tool != "fs_read" || json.Unmarshal(c.Result, &f) != nil || f.Kind == "" {
		return printJSON(a.out, c.Result)
	}
	body := []byte(o.text(f.Text, a.outTTY))
	if f.Kind != "text" {
		if f.Data == nil {
			return printJSON(a.out, c.Result)
		}
		b, err := base64.StdEncoding.DecodeString(*f.Data)
		if err != nil {
			return fleet.Wrap(protocol.CodeInternal, err, "the agent's base64 is damaged")
		}
		if a.outTTY && !o.raw {
			a.say("drover: %d bytes of %s; redirect standard output to a file to get them", len(b), text.Line(f.MIME, 60))
			return nil
		}
		body = b
	}
	if _, err := a.out.Write(body); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	switch {
	case f.NextOffset > 0:
		a.say("drover: the file has %d bytes and goes on: offset=%d%s", f.Size, f.NextOffset, map[bool]string{true: " unit=bytes"}[f.Unit == "bytes"])
	case f.NextByteOffset > 0:
		a.say("drover: the file has %d bytes and goes on: unit=bytes offset=%d", f.Size, f.NextByteOffset)
	}
	return nil
}

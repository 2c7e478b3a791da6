package enroll

import (
	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Limits of an agent's labels.
const (
	maxLabels     = 64
	maxLabelKey   = 63
	maxLabelValue = 128
)

// CheckLabels tells what is wrong with an operator's labels: at most 64; keys of 1 to 63
// characters [A-Za-z0-9._/-]; values of one line without control characters, at most 128
// bytes.
func CheckLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fleet.Errorf(protocol.CodeBadArgs, "an agent has at most %d labels", maxLabels)
	}
	for k, v := range labels {
		if !labelKey(k) {
			return fleet.Errorf(protocol.CodeBadArgs, "a label's key has 1 to %d of the characters A-Z a-z 0-9 . _ / -", maxLabelKey)
		}
		if len(v) > maxLabelValue || protocol.Line(v, maxLabelValue) != v {
			return fleet.Errorf(protocol.CodeBadArgs, "the value of label %s must be one line of at most %d bytes", k, maxLabelValue)
		}
	}
	return nil
}

func labelKey(k string) bool {
	if k == "" || len(k) > maxLabelKey {
		return false
	}
	for i := range len(k) {
		c := k[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '/' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}

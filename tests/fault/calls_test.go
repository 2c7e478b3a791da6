package fault_test

import (
	"encoding/json"

	"github.com/drover-fleet/drover/tests/harness"
)

// parse reads an answer about a call; ended tells that it's its end, or the refusal of an
// offline agent, which is one too.
func parse(status int, body []byte) (res harness.CallResult, ended bool) {
	if status == 0 || json.Unmarshal(body, &res) != nil {
		return res, false
	}
	return res, status == 200 && res.CallID != ""
}

package edge

import (
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/text"
	"github.com/drover-fleet/drover/server/internal/fleet"
)

// Query reads a request's query, strictly. The HTTP libraries take the first of two equal
// parameters, drop what they can't read, and take an empty one for absent: who asks for a part
// would get everything. Its error is a *fleet.Error.
func Query(r *http.Request, known []string) (url.Values, error) {
	if r.URL.RawQuery == "" {
		return nil, nil
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fleet.Errorf(protocol.CodeBadArgs, "the query is malformed: in a value %%, ; and & are written as %%25, %%3B and %%26")
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		switch values := q[name]; {
		case !slices.Contains(known, name):
			return nil, fleet.Errorf(protocol.CodeBadArgs, "there's no query parameter %s here", text.Quote(name, 64))
		case len(values) > 1:
			return nil, fleet.Errorf(protocol.CodeBadArgs, "the query parameter %s is given twice", name)
		case values[0] == "": // it isn't absent: an empty condition would be none
			return nil, fleet.Errorf(protocol.CodeBadArgs, "the query parameter %s is empty: give a value, or leave it out", name)
		}
	}
	return q, nil
}

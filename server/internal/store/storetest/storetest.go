// Package storetest is the conformance suite of the store: what every engine has to do.
package storetest

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/server/internal/enroll"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/store"
)

// Run runs the suite. fresh returns the configuration of a new, empty database; the suite
// opens it, sometimes more than once.
func Run(t *testing.T, fresh func(t *testing.T) store.Config) {
	cases := []struct {
		name string
		run  func(*testing.T, store.Config)
	}{
		{"Call", testCall}, {"CallRefuses", testCallRefuses}, {"OneOutcome", testOneOutcome}, {"Calls", testCalls},
		{"KeyJoins", testKeyJoins}, {"ToolUseJoins", testToolUseJoins}, {"JoinsWithinGroup", testJoinsWithinGroup},
		{"KeyOfWhatNeverRan", testKeyOfWhatNeverRan}, {"KeyRace", testKeyRace}, {"Cancel", testCancel},
		{"HostileText", testHostileText}, {"WithdrawnIntent", testWithdrawnIntent}, {"Grouping", testGrouping},
		{"PolicyVersion", testPolicyVersion}, {"PruneResults", testPruneResults},
		{"Refusals", testRefusals}, {"RefusalsCoalesce", testRefusalsCoalesce}, {"RefusalsBounded", testRefusalsBounded}, {"RefusalsOfNobody", testRefusalsOfNobody},
		{"Records", testRecords}, {"Admin", testAdmin}, {"Rebuild", testRebuild}, {"ClosedStore", testClosedStore},
		{"PATs", testPATs}, {"OtherProcess", testOtherProcess}, {"Touches", testTouches},
		{"EnrolTokens", testEnrolTokens}, {"Enrol", testEnrol}, {"EnrolRace", testEnrolRace}, {"Replace", testReplace}, {"Remove", testRemove},
		{"SetAgent", testSetAgent}, {"Epochs", testEpochs}, {"EpochsRace", testEpochsRace}, {"Copies", testCopies},
		{"Facts", testFacts}, {"Quarantine", testQuarantine},
		{"Queued", testQueued}, {"QueuedRefuses", testQueuedRefuses}, {"SentRace", testSentRace}, {"CrossedGroups", testCrossedGroups}, {"MarkAgain", testMarkAgain}, {"Adopt", testAdopt},
		{"Evidence", testEvidence}, {"Unsettled", testUnsettled}, {"RebuildSurvive", testRebuildSurvive}, {"Replicas", testReplicas},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t)) })
	}
}

// open opens the database for the length of the test.
func open(t *testing.T, cfg store.Config) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// now is the present as the store keeps it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantCode fails unless err is a *fleet.Error with this code and a message.
func wantCode(t *testing.T, err error, code protocol.Code) {
	t.Helper()
	var fe *fleet.Error
	if !errors.As(err, &fe) || fe.Code != code || fe.Message == "" {
		t.Fatalf("got error %v, want code %s", err, code)
	}
}

// intent is a plain intent of a new call.
func intent() fleet.Intent {
	at := now()
	return fleet.Intent{
		CallID: fleet.CallID(newID()), Principal: fleet.Principal{ID: "pat:p1", Kind: fleet.KindPAT, Name: "laptop"},
		Client: "claude-code/2.1", Edge: "mcp", Agent: "web-01", Generation: 3, Tool: "shell_exec", Effect: "normal_change",
		Args: []byte(`{"command":"uptime"}`), Salt: []byte("salt"), Commitment: []byte("commitment"),
		Deadline: at.Add(time.Minute), At: at, Match: "m1",
	}
}

func outcome(id fleet.CallID) fleet.Outcome {
	exit := 3
	return fleet.Outcome{
		CallID: id, State: fleet.Failed, Code: protocol.CodeToolFailed, Reason: "signal", Message: "the command was killed",
		Result: []byte(`{"stdout":"hi"}`), Salt: []byte("s2"), Commitment: []byte("c2"), ExitCode: &exit, At: now(), TookUS: 1234,
	}
}

// begin records a plain intent, changed by the given function.
func begin(t *testing.T, db *store.DB, change func(*fleet.Intent)) fleet.Intent {
	t.Helper()
	in := intent()
	if change != nil {
		change(&in)
	}
	got, err := db.RecordIntent(context.Background(), in)
	check(t, err)
	if got.Joined != nil {
		t.Fatalf("joined %s, want a new call", got.Joined.ID)
	}
	return in
}

// event is an administrative event about something.
func event(action, object string) fleet.AdminEvent {
	return fleet.AdminEvent{Principal: "system:test", Action: action, Object: object, Detail: map[string]string{"why": "test"}, At: now()}
}

func records(t *testing.T, db *store.DB, f store.RecordFilter) []store.Record {
	t.Helper()
	rows, _, err := db.Records(context.Background(), f)
	check(t, err)
	return rows
}

func newKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	return pub
}

func newToken(t *testing.T, agent fleet.AgentID, replace bool) enroll.Token {
	t.Helper()
	at := now()
	return enroll.Token{
		ID: newID(), Key: newKey(t), Agent: agent, Labels: map[string]string{"env": "prod"}, Replace: replace,
		CreatedBy: "system:test", CreatedAt: at, ExpiresAt: at.Add(time.Hour),
	}
}

// addAgent enrols an agent with a new key.
func addAgent(t *testing.T, db *store.DB, id fleet.AgentID) ed25519.PublicKey {
	t.Helper()
	tok, key := newToken(t, id, false), newKey(t)
	check(t, db.CreateEnrolToken(context.Background(), tok, event("enroll.create", string(id))))
	_, gen, err := db.Enrol(context.Background(), enroll.Enrolment{TokenID: tok.ID, Key: key, Hostname: "host", At: now()}, event("enroll.use", string(id)))
	check(t, err)
	if gen != 1 {
		t.Fatalf("generation %d, want 1", gen)
	}
	return key
}

func newPAT(name string) store.PAT {
	at := now()
	return store.PAT{
		ID: newID(), Name: name, Hash: sha256.Sum256([]byte(name + newID())), CreatedAt: at, ExpiresAt: at.Add(time.Hour), CreatedBy: "system:test",
		Grant: fleet.Grant{Agents: fleet.AgentSet{Selector: map[string]string{"env": "prod"}}, Tools: fleet.ToolSet{Names: []string{"fs", "shell_exec"}}},
	}
}

package cluster

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/protocol/strict"
	"github.com/drover-fleet/drover/server/internal/fleet"
	"github.com/drover-fleet/drover/server/internal/presence"
	"github.com/drover-fleet/drover/server/internal/session"
)

// said are the messages as each version's builds have said them: testdata/v1 was written by
// builds of version 1. Files are added, never changed.
func said() map[string]any {
	const from, pipe = "2KJHGFDSAQWERTYUIOPLMNBVCX", "drover.37c1fade346b4f74.pipe."
	web := entry{Agent: "web-01", Generation: 2, Epoch: 42, Instance: "Zm9vYmFyYmF6cXV4MTIzNA", Boot: "journal-7.boot-1", Version: 3, SinceUS: 1796000000000000}
	db := web
	db.Agent, db.Epoch = "db-01", 7
	all := map[string]any{
		"v1/opening":        &opening{From: from, Pipe: pipe + from + ".WORD", Nonce: "NONCEA", AtUS: 1796000000000000, Agent: "web-01", Epoch: 42},
		"v1/opening-ping":   &opening{From: from, Nonce: "NONCEA", AtUS: 1796000000000000, Agent: "web-01", Epoch: 42, Ping: true},
		"v1/opened":         &opened{Nonce: "NONCEA", Own: "NONCEB", Pipe: pipe + "3KJHGFDSAQWERTYUIOPLMNBVCX.WORD"},
		"v1/opened-refused": &opened{Nonce: "NONCEA", Refused: "the connection of web-01 isn't here any more"},
	}
	for i, n := range []*news{{Kind: newsHello}, {Kind: newsAll, Part: 1, Parts: 2, Agents: []entry{web, db}}, {Kind: newsUp, Agents: []entry{web}}, {Kind: newsDown, Agents: []entry{web}}, {Kind: newsBeat, Count: 2},
		{Kind: newsBye}, {Kind: newsCancel, Call: "019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60"}, {Kind: newsRenew, Agents: []entry{{Agent: "web-01", Epoch: 42}}},
		{Kind: newsBroke, Agents: []entry{web}},
		{Kind: newsEnded, Call: `{"ended":[{"pat":"k3v9","id":"IDIDIDIDIDIDIDIDIDIDIDIDID","issued_us":1796000000000000,"expires_us":1796043200000000},{"pat":"k3v9","issued_us":1796000000000000,"expires_us":1796043200000000}]}`}} {
		n.From, n.Seq, n.AtUS = from, int64(i+1), 1796000000000000+int64(i)
		version := "v1"
		if n.Kind == newsBroke || n.Kind == newsEnded {
			version = "v2"
		}
		all[version+"/news-"+n.Kind] = n
	}
	return all
}

// TestEarlierMessages: each version's messages are read as what they were, and are still said
// in the same bytes.
func TestEarlierMessages(t *testing.T) {
	all := said()
	files, _ := filepath.Glob("testdata/v*/*.json")
	if len(files) != len(all) {
		t.Errorf("%d files, %d messages", len(files), len(all))
	}
	for name, want := range all {
		b, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.TrimSuffix(b, []byte("\n"))
		var got any
		switch want.(type) {
		case *news:
			got, err = readNews(b)
		case *opening:
			got = new(opening)
			err = strict.Unmarshal(b, got.(*opening), openingLimits)
		case *opened:
			got = new(opened)
			err = strict.Unmarshal(b, got.(*opened), openingLimits)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if again, err := json.Marshal(want); err != nil || string(again) != string(b) {
			t.Errorf("%s is said as %s %v", name, again, err)
		}
	}
}

// TestEarlierSeals: what a build of version 1 has sealed is opened, with its keys and numbers.
func TestEarlierSeals(t *testing.T) {
	b, err := os.ReadFile("testdata/v1/sealed.txt")
	if err != nil {
		t.Fatal(err)
	}
	k, err := newKeys(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	there, back, err := k.sequences("NONCEA", "NONCEB")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		sealed, err := base64.StdEncoding.DecodeString(f[3])
		if err != nil {
			t.Fatal(err)
		}
		open := map[string]func(string, []byte) ([]byte, error){"alone": k.unseal, "there": there.unseal, "back": back.unseal}[f[0]]
		if plain, err := open(f[1], sealed); err != nil || string(plain) != f[2] {
			t.Errorf("%s: %q %v", line, plain, err)
		}
		n++
	}
	if n != 4 {
		t.Errorf("%d messages", n)
	}
}

// news1 is how builds of version 1 read news: they refuse any other member. It stays as it is
// for as long as such builds may be beside this one.
type news1 struct {
	Kind   string   `json:"kind"`
	From   string   `json:"from"`
	Seq    int64    `json:"seq"`
	AtUS   int64    `json:"at_us"`
	Agents []entry1 `json:"agents,omitempty"`
	Part   int      `json:"part,omitzero"`
	Parts  int      `json:"parts,omitzero"`
	Count  int      `json:"count,omitzero"`
	Call   string   `json:"call,omitempty"`
}

type entry1 struct {
	Agent      string `json:"agent"`
	Generation int64  `json:"generation"`
	Epoch      int64  `json:"epoch"`
	Instance   string `json:"instance"`
	Boot       string `json:"boot"`
	Version    int    `json:"version"`
	SinceUS    int64  `json:"since_us"`
}

// keeper keeps ended sessions for a bus.
func keeper(t *testing.T, key ed25519.PrivateKey) *session.Keeper {
	t.Helper()
	k, err := session.New(session.Config{Key: key, File: filepath.Join(t.TempDir(), session.File), Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestWhatEarlierVersionsHear: whatever this version says of what happens is read by builds of
// version 1, in a series without a gap.
func TestWhatEarlierVersionsHear(t *testing.T) {
	key, url := serverKey(t), natsURL(t)
	k, err := newKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	subject := "drover." + k.name + ".news"
	heard := make(chan []byte, 1024)
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) { heard <- m.Data }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	say := func(n news1) {
		n.AtUS = time.Now().UnixMicro()
		plain, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish(subject, k.seal(subject, plain)); err != nil {
			t.Fatal(err)
		}
	}

	sessions := keeper(t, key)
	r := &replica{t: t}
	r.local = presence.New(func(id fleet.AgentID, _ bool) { r.Changed(id) })
	r.run(Config{URL: url, ServerKey: key, Local: r.local, Sessions: sessions, Log: slog.New(slog.DiscardHandler)})
	last, kinds := int64(0), map[string]bool{}
	until := func(kind string) {
		t.Helper()
		late := time.After(20 * time.Second)
		for !kinds[kind] {
			select {
			case <-late:
				t.Fatalf("it never said %q", kind)
			case sealed := <-heard:
				plain, err := k.unseal(subject, sealed)
				if err != nil {
					t.Fatal(err)
				}
				var n news1
				if err := strict.Unmarshal(plain, &n, strict.Limits{MaxBytes: 1 << 20, MaxDepth: 8}); err != nil {
					t.Fatalf("%s: %v", plain, err)
				}
				if n.From == r.replica && n.Seq != last+1 {
					t.Errorf("number %d after %d", n.Seq, last)
				}
				if n.From == r.replica {
					last, kinds[n.Kind] = n.Seq, true
				}
			}
		}
	}
	until(newsAll)
	say(news1{Kind: newsAll, From: "old", Seq: 1, Part: 1, Parts: 1, Agents: []entry1{{Agent: "web-01", Generation: 1, Epoch: 5}}})
	eventually(t, "the old one's agent", func() bool { return r.sees("web-01") })
	s := r.agent("db-01", 1, echo)
	until(newsUp)
	s.Close(0, "") // the line broke
	until(newsDown)
	r.CancelElsewhere("019aa5c2-7d5e-7c11-8f0e-2b1d3c4e5f60")
	r.Renew("web-01")
	now := time.Now()
	cookie, _ := sessions.Open("k3v9", time.Time{}, now)
	sessions.End(cookie, now)
	r.EndedSession(sessions.All(now)[0])
	until(newsEnded)
	delete(kinds, newsEnded)
	say(news1{Kind: newsHello, From: "old", Seq: 2})
	until(newsEnded) // it's told to whoever asks
	until(newsBeat)
	r.stop()
	until(newsBye)
	want := []string{newsHello, newsAll, newsUp, newsDown, newsBeat, newsBye, newsCancel, newsRenew, newsBroke, newsEnded}
	slices.Sort(want)
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(kinds))); d != "" {
		t.Errorf("not every kind was said: %s", d)
	}
}

// TestNewsOfALaterVersion: kinds and members that aren't known here are passed over and nothing
// is asked for; what can't be read is asked for once, and then rarely; what may be a revocation
// ends every session.
func TestNewsOfALaterVersion(t *testing.T) {
	b, key := listener(), serverKey(t)
	b.cfg.Sessions = keeper(t, key)
	began := time.Now()
	cookie, _ := b.cfg.Sessions.Open("k3v9", time.Time{}, began)
	in := func() bool { _, ok := b.cfg.Sessions.Find(cookie, time.Now()); return ok }
	later := func(text string, readable bool) {
		t.Helper()
		n, err := readNews([]byte(text))
		if n == nil || (err == nil) != readable {
			t.Fatalf("%s: %+v %v", text, n, err)
		}
		b.hear(n)
	}
	later(`{"kind":"all","from":"a","seq":1,"at_us":1,"part":1,"parts":1,"agents":[{"agent":"web","generation":1,"epoch":3,"instance":"i","boot":"b","version":9,"since_us":3,"more":[1]}],"more":{"x":null}}`, true)
	later(`{"kind":"later","from":"a","seq":2,"at_us":1,"call":"x"}`, true)
	later(`{"kind":"beat","from":"a","seq":3,"at_us":1,"count":1}`, true)
	if online, _ := b.Online("web"); !online || b.asks() != 0 || !in() {
		t.Error("what is new wasn't passed over")
	}
	// It can't be read, and neither can the whole that it's asked for.
	asked, seq := 0, int64(3)
	for range 100 {
		b.asked = b.asked.Add(-time.Minute)
		later(`{"kind":"up","from":"a","seq":`+itoa(seq+1)+`,"at_us":1,"agents":"others"}`, false)
		later(`{"kind":"all","from":"a","seq":`+itoa(seq+2)+`,"at_us":1,"part":"one"}`, false)
		later(`{"kind":"beat","from":"a","seq":`+itoa(seq+3)+`,"at_us":1,"count":1}`, true)
		seq += 3
		asked += b.asks()
	}
	if online, _ := b.Online("web"); asked != 1 || !online || !in() {
		t.Errorf("asked %d times, the agent is online: %t", asked, online)
	}
	b.hear(&news{Kind: newsAll, From: "a", Seq: seq + 1, Part: 1, Parts: 1})
	if o := b.others["a"]; o.missed || o.asks != 0 {
		t.Errorf("after all of it: %+v", o)
	}
	for i, text := range []string{`"kind":"ended","call":"{\"ended\":[],\"all_of\":\"k3v9\"}"`, `"kind":"ended","call":7`, `"kind":"ended"`} {
		cookie, _ = b.cfg.Sessions.Open("k3v9", time.Time{}, time.Now())
		later(`{"from":"a","seq":`+itoa(seq+2+int64(i))+`,"at_us":1,`+text+`}`, i != 1)
		if in() {
			t.Errorf("%s: a session goes on that may have been ended", text)
		}
	}
	if n, err := readNews([]byte(`{"kind":"beat"}`)); n != nil || err == nil {
		t.Error("news of nobody")
	}
}

// TestACallThatTheHolderDoesNotUnderstand ends at once as not started, and its caller is told why:
// whether the holder says so, or answers in a way that isn't understood here.
func TestACallThatTheHolderDoesNotUnderstand(t *testing.T) {
	key := serverKey(t)
	r := newReplica(t, key, natsURL(t))
	nc, err := nats.Connect(natsURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	answers := make(chan string, 1)
	subject := r.prefix + "open.later"
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
		plain, err := r.keys.unseal(subject, m.Data)
		var o opening
		if err == nil {
			err = strict.Unmarshal(plain, &o, openingLimits)
		}
		if err != nil {
			t.Error(err)
		}
		_ = m.Respond(r.keys.seal(o.Nonce, []byte(strings.ReplaceAll(<-answers, "NONCE", o.Nonce))))
	}); err != nil {
		t.Fatal(err)
	}
	up := news{Kind: newsAll, From: "later", Seq: 1, AtUS: time.Now().UnixMicro(), Part: 1, Parts: 1, Agents: []entry{at("web-01", 5)}}
	plain, err := json.Marshal(up)
	if err == nil {
		err = nc.Publish(r.prefix+"news", r.keys.seal(r.prefix+"news", plain))
	}
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent", func() bool { return r.sees("web-01") })
	for i, answer := range []string{`{"nonce":"NONCE","refused":"` + notUnderstood + `"}`, `{"nonce":"NONCE","own":"o","pipe":"p","mode":2}`} {
		answers <- answer
		began := time.Now()
		_, err := r.call(t.Context(), "web-01", itoa(int64(i)), "{}")
		fe, ok := errors.AsType[*fleet.Error](err)
		if !ok || fe.Code != protocol.CodeNotStarted || !strings.Contains(fe.Message, notUnderstood) || !errors.Is(err, protocol.ErrNotSent) || time.Since(began) > openWait/2 {
			t.Errorf("%s: after %s: %v", answer, time.Since(began), err)
		}
	}
}

func itoa(n int64) string { b, _ := json.Marshal(n); return string(b) }

// TestAnOpeningOfALaterVersion is refused at once, in words; it starts nothing. So is an answer.
func TestAnOpeningOfALaterVersion(t *testing.T) {
	key := serverKey(t)
	r := newReplica(t, key, natsURL(t))
	r.agent("web-01", 1, echo)
	k, err := newKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(natsURL(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	o := opening{From: "later", Nonce: token(), AtUS: time.Now().UnixMicro(), Agent: "web-01", Epoch: 1}
	plain, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	plain = append(plain[:len(plain)-1], `,"on_behalf_of":"x"}`...)
	subject := r.prefix + "open." + r.replica
	m, err := nc.Request(subject, k.seal(subject, plain), openWait/2)
	if err != nil {
		t.Fatal(err)
	}
	if a := r.answered(o.Nonce, m.Data); a == nil || a.Refused != notUnderstood || a.Own != "" {
		t.Errorf("the answer is %+v", a)
	}
	if st := r.Stats(); st.Unreadable != 1 || st.Forged != 0 || st.Pipes != 0 {
		t.Errorf("%+v", st)
	}
	if a := r.answered("N", k.seal("N", []byte(`{"nonce":"N","own":"o","pipe":"p","mode":2}`))); a == nil || a.Refused != notUnderstood {
		t.Errorf("a later version's answer: %+v", a)
	}
	if err := (&opened{Refused: notUnderstood}).refusal(); !strings.Contains(err.Error(), notUnderstood) {
		t.Errorf("the caller is told %v", err)
	}
	if a := r.answered("N", k.seal("M", []byte(`{"nonce":"N","own":"o","pipe":"p"}`))); a != nil || r.Stats().Forged != 1 {
		t.Errorf("an answer to another question: %+v", a)
	}
}

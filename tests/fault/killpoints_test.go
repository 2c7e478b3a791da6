//go:build linux

package fault_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-fleet/drover/protocol"
	"github.com/drover-fleet/drover/tests/fault"
	"github.com/drover-fleet/drover/tests/harness"
)

const patience = 60 * time.Second

// blow is what happens at a point of a call's path.
type blow string

const (
	byCut    blow = "cut"    // the connection, and it comes back
	byServer blow = "server" // kill -9, and it's started again
	byAgent  blow = "agent"  // kill -9, and it's started again
)

// States that calls end in.
const (
	succeeded  = "succeeded"
	notStarted = "not_started"
	unknown    = "outcome_unknown"
)

// point is a place on a call's path. reach makes the call, gets it there and strikes.
type point struct {
	name  string
	reach func(k *killed)
	// ends are the states that the call may end in, for each blow; a blow that isn't there
	// has no meaning at this point.
	ends map[blow][]string
	// dies tells that the command waits: an agent that is started anew ends it.
	dies bool
}

// points are all of them, in a call's order. At each the effect is a line in a file.
func points() []point {
	on := func(cutEnds, serverEnds, agentEnds string) map[blow][]string {
		m := map[blow][]string{}
		for b, s := range map[blow]string{byCut: cutEnds, byServer: serverEnds, byAgent: agentEnds} {
			if s != "" {
				m[b] = strings.Split(s, "|")
			}
		}
		return m
	}
	return []point{
		{name: "before the intent is durable", reach: beforeIntent, ends: on(notStarted+"|"+succeeded, notStarted+"|"+succeeded, notStarted+"|"+succeeded)},
		{name: "request not arrived", reach: onRequest(fault.Drop, fault.CutBefore), ends: on(notStarted, notStarted, notStarted)},
		{name: "request half written", reach: onRequest(fault.CutHalf, fault.CutHalf), ends: on(notStarted, notStarted, notStarted)},
		{name: "request arrived, not read", reach: arrived, ends: on(notStarted+"|"+succeeded, notStarted+"|"+succeeded, notStarted)},
		{name: "started, before the effect", reach: running("", "echo $DROVER_CALL_ID >> effect"), dies: true, ends: on(succeeded, succeeded, unknown)},
		{name: "during the run", reach: running("echo $DROVER_CALL_ID >> effect", ""), dies: true, ends: on(succeeded, succeeded, unknown)},
		{name: "after the run, before the reply", reach: afterRun, ends: on(succeeded, succeeded, unknown)},
		{name: "reply not arrived", reach: onReply(fault.Drop, fault.CutBefore), ends: on(succeeded, succeeded, succeeded+"|"+unknown)},
		{name: "reply half written", reach: onReply(fault.CutHalf, fault.CutHalf), ends: on(succeeded, succeeded, succeeded+"|"+unknown)},
		{name: "reply arrived, before its record", reach: beforeRecord, ends: on(succeeded, succeeded, succeeded)},
		{name: "recorded, before the answer", reach: beforeAnswer, ends: on(succeeded, succeeded, succeeded)},
	}
}

// TestKillPoints cuts the connection, kills the server and kills the agent at each point of a
// call's path, on both engines. The effect happens at most once, the call ends in a state that
// is true, the record has one intent and one outcome for it, and says the same later.
func TestKillPoints(t *testing.T) {
	programs := harness.Build(t, "")
	for _, engine := range harness.Engines() {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			r := newKillRig(t, programs, engine)
			for _, p := range points() {
				for _, b := range []blow{byCut, byServer, byAgent} {
					if p.ends[b] != nil {
						t.Run(p.name+"/"+string(b), func(t *testing.T) { r.strike(t, p, b) })
					}
				}
			}
		})
	}
}

// killRig is one deployment with one agent behind a wire, and a client behind a proxy.
type killRig struct {
	*harness.Deployment
	wire  *fault.Wire
	front *fault.Proxy
	agent *harness.Process
	state string
	token string
	addr  string
	calls int
}

const host = "web-01"

func newKillRig(t *testing.T, programs harness.Programs, engine harness.Engine) *killRig {
	d := harness.Launch(t, programs, harness.LaunchOptions{Engine: engine})
	r := &killRig{Deployment: d, addr: strings.TrimPrefix(d.URL, "http://"), state: filepath.Join(t.TempDir(), "state")}
	r.wire, r.front = fault.NewWire(t, r.addr), fault.NewProxy(t, r.addr)
	r.token = d.EnrolToken(host, nil, false)
	return r
}

// host starts the agent, as a process of its own. It ends with t; the server doesn't.
func (r *killRig) host(t *testing.T) {
	r.agent = harness.Start(t, []string{"DROVER_ENROLL_TOKEN=" + r.token}, r.Programs.Path("drover-agent"), "run", "--server", r.wire.URL(), "--state", r.state)
}

// killed is one call that is struck.
type killed struct {
	*killRig
	t      *testing.T
	blow   blow
	dir    string
	gate   *os.File // what the command waits for
	key    string
	before int // rows of the record
	answer chan harness.CallResult
	stop   chan struct{} // ends the client
	heal   []func()
}

// strike makes one call and checks what became of it.
func (r *killRig) strike(t *testing.T, p point, b blow) {
	r.calls++
	k := &killed{killRig: r, t: t, blow: b, dir: t.TempDir(), key: fmt.Sprint("key-", r.calls), answer: make(chan harness.CallResult, 1), stop: make(chan struct{})}
	defer close(k.stop)
	fifo := filepath.Join(k.dir, "gate")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if k.gate, err = os.OpenFile(fifo, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k.gate.Close() }()
	r.host(t) // a new process for each call: its back-off begins anew
	defer func() { r.agent.Kill() }()
	k.well() // and its journal is known
	k.before = len(k.AllRecords())
	defer k.recover() // also when the point wasn't reached
	p.reach(k)
	k.recover()
	k.check(p)
}

// call has the client make the call, again and again with one key until it has an end.
func (k *killed) call(command string) {
	body := fmt.Sprintf(`{"agent_id":%q,"tool":"shell_exec","args":{"command":%q},"idempotency_key":%q}`, host, "cd "+k.dir+"\n"+command, k.key)
	client := harness.Client{T: k.t, URL: k.front.URL()}
	admin := client.REST(k.Admin)
	go func() {
		again := time.NewTicker(20 * time.Millisecond)
		defer again.Stop()
		for {
			if res, ended := parse(admin.Do("POST", "/api/v1/calls", body)); ended {
				k.answer <- res
				return
			}
			select {
			case <-again.C:
			case <-k.stop:
				return
			}
		}
	}()
}

// effect is a command with the one effect; done is there when it has ended.
const effect = "echo $DROVER_CALL_ID >> effect; echo > done"

// hit strikes, unless the wire has cut already.
func (k *killed) hit() {
	switch k.blow {
	case byCut:
		k.wire.Cut()
	case byServer:
		k.Server.Kill()
	case byAgent:
		k.agent.Kill()
	}
}

// recover brings everything back.
func (k *killed) recover() {
	for _, f := range slices.Backward(k.heal) {
		f()
	}
	k.heal = nil
	k.wire.Judge(nil)
	k.wire.Refuse(false)
	select {
	case <-k.Server.Gone:
		k.Serve(k.addr)
	default:
	}
	k.front.Cut() // an answer that got stuck is asked for again
	select {
	case <-k.agent.Gone:
		k.host(k.t)
	default:
	}
}

// open lets the command go on.
func (k *killed) open() {
	if _, err := k.gate.WriteString("go\n"); err != nil {
		k.t.Error(err)
	}
}

func (k *killed) read(name string) string {
	b, err := os.ReadFile(filepath.Join(k.dir, name))
	if err != nil && !os.IsNotExist(err) {
		k.t.Error(err)
	}
	return string(b)
}

func (k *killed) await(what string, ok func() bool) {
	k.t.Helper()
	harness.Eventually(k.t, patience, what, ok)
}

// beforeIntent: the call was admitted, and its intent isn't durable. When it becomes so, the
// agent is away.
func beforeIntent(k *killed) {
	release := k.Lock()
	k.heal = append(k.heal, release)
	before, _ := k.front.Passed()
	k.call(effect)
	k.await("the call is sent", func() bool { up, _ := k.front.Passed(); return up > before })
	for range 20 { // by then the server has admitted it, or refuses it as offline and is asked again
		k.REST(k.Admin).Do("GET", "/api/v1/agents", "")
	}
	k.wire.Refuse(true)
	k.hit()
	if k.blow != byServer {
		k.WaitState(host, "offline")
	}
}

func (k *killed) metric(name string) string {
	_, b := k.REST(k.Admin).Do("GET", "/metrics", "")
	_, after, _ := strings.Cut(string(b), "\n"+name+" ")
	value, _, _ := strings.Cut(after, "\n")
	return value
}

// first returns a judge that gives this verdict once, to the first frame of a type, and a
// channel that is closed when it did.
func first(from fault.Side, typ protocol.Type, v func() fault.Verdict) (judge func(fault.Frame) fault.Verdict, met chan struct{}) {
	met = make(chan struct{})
	var once sync.Once
	return func(f fault.Frame) fault.Verdict {
		verdict := fault.Pass
		if f.From == from && f.Type == typ {
			once.Do(func() {
				verdict = v()
				close(met)
			})
		}
		return verdict
	}, met
}

func (k *killed) meets(what string, met <-chan struct{}) {
	k.t.Helper()
	select {
	case <-met:
	case <-time.After(patience):
		k.t.Fatalf("not within %s: %s", patience, what)
	}
}

// verdictOf is the one for the kind of blow: a connection that is cut is cut by the wire.
func (k *killed) verdictOf(kill, cutting fault.Verdict) func() fault.Verdict {
	if k.blow == byCut {
		return func() fault.Verdict { return cutting }
	}
	return func() fault.Verdict { return kill }
}

func onRequest(kill, cutting fault.Verdict) func(*killed) {
	return func(k *killed) {
		judge, met := first(fault.Server, protocol.TypeRequest, k.verdictOf(kill, cutting))
		k.wire.Judge(judge)
		k.call(effect)
		k.meets("the request", met)
		if k.blow != byCut {
			k.hit()
		}
	}
}

// arrived: the request is in the agent's buffers, and the agent is frozen.
func arrived(k *killed) {
	k.agent.Freeze()
	k.heal = append(k.heal, k.agent.Thaw)
	had := k.wire.Delivered(fault.Server, protocol.TypeRequest)
	k.call(effect)
	k.await("the request is delivered", func() bool { return k.wire.Delivered(fault.Server, protocol.TypeRequest) > had })
	if k.blow == byCut {
		k.Server.Freeze() // so that it can't be the one who ends it
		k.heal = append(k.heal, k.Server.Thaw)
	}
	k.hit()
}

// running: the command has begun, with or without its effect, and waits.
func running(before, after string) func(*killed) {
	return func(k *killed) {
		k.call(before + "\necho $$ > began\nread x < gate\n" + after + "\necho > done")
		k.await("the command runs", func() bool { return strings.HasSuffix(k.read("began"), "\n") })
		k.hit()
		k.heal = append(k.heal, func() {
			if k.blow != byAgent {
				k.open()
			}
		})
	}
}

// afterRun: the command has ended while nobody could be told.
func afterRun(k *killed) {
	k.call("echo $$ > began\nread x < gate\n" + effect)
	k.await("the command runs", func() bool { return strings.HasSuffix(k.read("began"), "\n") })
	k.wire.Refuse(true)
	if k.blow == byAgent {
		k.agent.Freeze()
	} else {
		k.hit()
	}
	k.open()
	k.await("the command has ended", func() bool { return k.read("done") != "" && !processAlive(k.pid()) })
	if k.blow == byAgent {
		k.hit()
	}
}

// pid is the process that ran the command.
func (k *killed) pid() string { return strings.TrimSpace(k.read("began")) }

func onReply(kill, cutting fault.Verdict) func(*killed) {
	return func(k *killed) {
		judge, met := first(fault.Agent, protocol.TypeResponse, k.verdictOf(kill, cutting))
		k.wire.Judge(judge)
		k.call(effect)
		k.meets("the reply", met)
		if k.blow != byCut {
			k.hit()
		}
	}
}

// beforeRecord: the server has the reply and can't write it down.
func beforeRecord(k *killed) {
	judge, met := first(fault.Agent, protocol.TypeResponse, func() fault.Verdict {
		k.heal = append(k.heal, k.Lock())
		return fault.Pass
	})
	had := k.wire.Delivered(fault.Agent, protocol.TypeResponse)
	k.wire.Judge(judge)
	k.call(effect)
	k.meets("the reply", met)
	k.await("the reply is delivered", func() bool { return k.wire.Delivered(fault.Agent, protocol.TypeResponse) > had })
	k.hit()
}

// beforeAnswer: the outcome is on record, and the client's connection hangs.
func beforeAnswer(k *killed) {
	judge, met := first(fault.Agent, protocol.TypeResponse, func() fault.Verdict {
		k.front.Freeze()
		return fault.Pass
	})
	k.wire.Judge(judge)
	k.call(effect)
	k.meets("the reply", met)
	k.await("the outcome is on record", func() bool { return k.metric("drover_calls_open") == "0" })
	select {
	case res := <-k.answer:
		k.t.Errorf("answered over a connection that hangs: %+v", res)
	default:
	}
	k.hit()
}

// check: the end is a true one, and the only one.
func (k *killed) check(p point) {
	var res harness.CallResult
	select {
	case res = <-k.answer:
	case <-time.After(patience):
		k.t.Fatalf("no answer within %s", patience)
	}
	if want := p.ends[k.blow]; !slices.Contains(want, res.State) && !(res.State == succeeded && slices.Contains(want, notStarted) && k.freed(res.CallID)) {
		k.t.Errorf("the call ended as %s (%+v), want %v", res.State, res.Error, p.ends[k.blow])
	}
	k.WaitState(host, "online")
	if p.dies && k.blow == byAgent {
		k.await("what the dead agent had started is dead", func() bool { return !processAlive(k.pid()) })
		k.open()
	}
	lines := strings.Fields(k.read("effect"))
	switch {
	case len(lines) > 1, len(lines) == 1 && lines[0] != res.CallID:
		k.t.Errorf("the effect of call %s happened as %q", res.CallID, lines)
	case res.State == succeeded && len(lines) != 1:
		k.t.Error("it succeeded without its effect")
	case res.State == notStarted && len(lines) != 0:
		k.t.Error("it was said not to have started, and had its effect")
	}
	k.checkRecord(res)
	k.well()
}

// freed tells that an earlier call of this strike certainly never began: then the client, which
// asks again with its key, has begun another one.
func (k *killed) freed(now string) bool {
	rows := k.AllRecords()
	return slices.ContainsFunc(rows[:len(rows)-k.before], func(r harness.Record) bool {
		return r.Kind == "outcome" && r.CallID != now && r.Body.State == notStarted
	})
}

// well waits until a plain call runs.
func (k *killed) well() {
	k.t.Helper()
	k.await("a plain call runs", func() bool {
		_, res := k.REST(k.Admin).Call(host, "shell_exec", map[string]any{"command": "true"})
		return res.State == succeeded
	})
}

// checkRecord: one intent, one outcome, and the same word later.
func (k *killed) checkRecord(res harness.CallResult) {
	rows := map[string]int{}
	for _, r := range k.AllRecords() {
		if r.CallID == res.CallID {
			rows[r.Kind]++
		}
	}
	if rows["intent"] != 1 || rows["outcome"] != 1 {
		k.t.Errorf("the record has %v", rows)
	}
	later, ended := parse(k.REST(k.Admin).Do("GET", "/api/v1/calls/"+res.CallID, ""))
	if !ended || later.State != res.State || string(later.Result) != string(res.Result) {
		k.t.Errorf("answered %+v, and later %+v", res, later)
	}
}

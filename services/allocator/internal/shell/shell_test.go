package shell

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/libs/run"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/allocator/plan"
)

// callTimeout is longer than any answer may take.
const callTimeout = 10 * time.Second

var plans, asks = bus.SubjectRPC("allocator", "plan"), bus.SubjectRPC("allocator", "explain")

// fabric is a ledger with a leader, a bus, and as many allocators as a test starts. Tests run in a bubble of virtual
// time, which also fails if a goroutine is left behind.
type fabric struct {
	t      *testing.T
	core   *counter
	log    *memledger.Log
	leader *ledger.Writer[*cell.State]
	proj   *ledger.Projection[*cell.State] // the allocators'
}

func newFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{t: t, core: &counter{Caller: membus.New().Caller()}, log: memledger.New()}
	f.leader = ledger.NewWriter(f.log, ledger.NewProjection(f.log, cellfold.Fold(), nil), "scheduler", "s1")
	if err := f.leader.Lead(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	f.proj = ledger.NewProjection(f.log, cellfold.Fold(), nil)
	return f
}

// commit stores facts and returns the sequence of their record.
func (f *fabric) commit(facts ...weftv1.Fact_builder) uint64 {
	f.t.Helper()
	var all []*weftv1.Fact
	for _, b := range facts {
		all = append(all, b.Build())
	}
	at, err := f.leader.Commit(f.t.Context(), time.Now(), ledger.FactEntries(all), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return at.Seq
}

// node is a machine of two cards.
func (f *fabric) node(name string) uint64 {
	var devices []*weftv1.Device
	for range 2 {
		devices = append(devices, weftv1.Device_builder{Model: new("A100")}.Build())
	}
	return f.commit(weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: &name, BootId: new("b")}.Build()},
		weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{Node: &name, Generation: new(uint64(1)), Inventory: weftv1.Inventory_builder{
			CpuMilli: new(int64(8000)), MemoryBytes: new(int64(8 << 30)), PortBase: new(uint32(20000)), PortCount: new(uint32(10)), Devices: devices,
		}.Build()}.Build()})
}

func (f *fabric) job(id string) uint64 {
	return f.commit(weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{Job: &id, Tenant: new("q"), Spec: weftv1.JobSpec_builder{
		Name: &id, Queue: new("q"), Groups: []*weftv1.Group{weftv1.Group_builder{Min: new(uint32(1)), Max: new(uint32(1)), GpuMilli: new(int64(1000))}.Build()},
	}.Build()}.Build()})
}

func (f *fabric) answerer() *Answerer {
	f.t.Helper()
	a, err := New(f.proj, f.core, plan.DefaultPolicy())
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// start runs allocators as the service does, with the projection unless it is to lag; stop ends them.
func (f *fabric) start(shells ...run.Shell) (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = run.Loop(ctx, nil, shells...)
		for _, s := range shells {
			if a, ok := s.(*Answerer); ok {
				a.Close()
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (f *fabric) call(subject string, m proto.Message) bus.Pending {
	f.t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.core.Call(subject, b, callTimeout)
}

func (f *fabric) askPlan(at uint64) bus.Pending {
	return f.call(plans, weftv1.PlanRequest_builder{At: &at}.Build())
}

// wantPlan waits for a plan and checks what it is based on and starts.
func (f *fabric) wantPlan(p bus.Pending, seq uint64, starts ...string) {
	f.t.Helper()
	r := p.Wait(f.t.Context())
	var got weftv1.Plan
	if r.Err != nil || proto.Unmarshal(r.Data, &got) != nil {
		f.t.Fatalf("no plan: %v", r.Err)
	}
	var ids []string
	for _, st := range got.GetSteps() {
		ids = append(ids, st.GetStart().GetJob())
	}
	if got.GetBasedOn() != seq || fmt.Sprint(ids) != fmt.Sprint(starts) {
		f.t.Fatalf("plan on record %d starts %v, want %d %v", got.GetBasedOn(), ids, seq, starts)
	}
}

func (f *fabric) wantRefusal(p bus.Pending, code, says string) {
	f.t.Helper()
	r := p.Wait(f.t.Context())
	var no *bus.Refusal
	if !errors.As(r.Err, &no) || no.Code != code || !strings.Contains(no.Message, says) || strings.Contains(no.Message, "\n") {
		f.t.Fatalf("got %v, want %s: …%s…", r.Err, code, says)
	}
}

// counter counts the answers to every call: each call must have one, and never two.
type counter struct {
	bus.Caller
	mu      sync.Mutex
	answers int
}

func (c *counter) Serve(subject, queue string) (bus.Server, error) {
	s, err := c.Caller.Serve(subject, queue)
	return counted{s, c}, err
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers
}

type counted struct {
	bus.Server
	c *counter
}

func (s counted) Next(limit int) []bus.Request {
	out := s.Server.Next(limit)
	for i := range out {
		respond := out[i].Respond
		out[i].Respond = func(b []byte, r *bus.Refusal) {
			s.c.mu.Lock()
			s.c.answers++
			s.c.mu.Unlock()
			respond(b, r)
		}
	}
	return out
}

// inBubble runs a test in virtual time and checks, at its end, that each call had exactly one answer.
func inBubble(t *testing.T, calls int, test func(t *testing.T, f *fabric)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t)
		test(t, f)
		if n := f.core.count(); n != calls {
			t.Errorf("%d answers to %d calls", n, calls)
		}
	})
}

func TestPlanRequestIsAnswered(t *testing.T) {
	inBubble(t, 2, func(_ *testing.T, f *fabric) {
		defer f.start(f.proj, f.answerer())()
		f.node("n0")
		seq := f.job("a")
		f.wantPlan(f.askPlan(seq), seq, "a")
		seq = f.job("b")
		synctest.Wait()
		f.wantPlan(f.askPlan(1), seq, "a", "b") // an older position is no reason for an older plan
	})
}

func TestPlanWaitsForTheRecordItNames(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, f *fabric) {
		defer f.start(f.proj, f.answerer())()
		seq := f.node("n0")
		p := f.askPlan(seq + 1)
		time.Sleep(patience / 2)
		synctest.Wait()
		if _, done := p.Poll(); done {
			t.Fatal("answered before the record was there")
		}
		start := time.Now()
		f.wantPlan(p, f.job("a"), "a")
		if d := time.Since(start); d != 0 {
			t.Errorf("answered %v after the record", d)
		}
	})
}

// Who names a record that does not come is told so in time, and not answered a second time when it does.
func TestPlanOfARecordThatDoesNotComeIsRefused(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, f *fabric) {
		defer f.start(f.proj, f.answerer())()
		seq, start := f.node("n0"), time.Now()
		f.wantRefusal(f.askPlan(seq+1), bus.CodeBehind, fmt.Sprintf("record %d was not read", seq+1))
		if d := time.Since(start); d != patience {
			t.Errorf("refused after %v", d)
		}
		seq = f.job("a")
		synctest.Wait()
		f.wantPlan(f.askPlan(seq), seq, "a")
	})
}

// An allocator that was stopped for a while does not plan for callers that asked before: they ask again.
func TestPlanForAnOldQuestionIsNotMade(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, f *fabric) {
		a := f.answerer()
		p := f.askPlan(2)
		step(t, a)
		f.job("a")
		if _, err := f.proj.CatchUp(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(patience)
		step(t, a)
		f.wantRefusal(p, bus.CodeBehind, "is at 2")
	})
}

// step steps a shell as the loop does: until there is nothing to do.
func step(t *testing.T, a *Answerer) (next time.Time) {
	t.Helper()
	for did := true; did; {
		var err error
		if did, next, err = a.Step(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return next
}

// A shell that waits says until when, and only then.
func TestDeadlineIsThatOfTheOldestQuestion(t *testing.T) {
	inBubble(t, 0, func(t *testing.T, f *fabric) {
		a, start := f.answerer(), time.Now()
		if next := step(t, a); !next.IsZero() {
			t.Fatalf("wants a step at %v", next)
		}
		f.askPlan(10)
		step(t, a)
		time.Sleep(patience / 4)
		f.askPlan(10)
		if next := step(t, a); !next.Equal(start.Add(patience)) {
			t.Fatalf("wants a step at %v", next.Sub(start))
		}
	})
}

func TestPoisonIsRefusedOnceAndHarmsNobody(t *testing.T) {
	inBubble(t, 4, func(_ *testing.T, f *fabric) {
		defer f.start(f.proj, f.answerer())()
		f.node("n0")
		seq := f.job("a")
		poison := []byte{0xff, 0xff, 0xff}
		p, e := f.core.Call(plans, poison, callTimeout), f.core.Call(asks, poison, callTimeout)
		good := f.askPlan(seq)
		f.wantRefusal(p, bus.CodeInvalid, "not a plan request")
		f.wantRefusal(e, bus.CodeInvalid, "not an explain request")
		f.wantPlan(good, seq, "a")
		f.wantPlan(f.askPlan(seq), seq, "a")
	})
}

func TestExplain(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, f *fabric) {
		defer f.start(f.proj, f.answerer())()
		f.node("n0")
		seq := f.job("a")
		synctest.Wait()
		r := f.call(asks, weftv1.ExplainRequest_builder{Job: new("a")}.Build()).Wait(t.Context())
		var e weftv1.Explanation
		if r.Err != nil || proto.Unmarshal(r.Data, &e) != nil || e.GetToken() != string(plan.WaitingForPlan) || e.GetBasedOn() != seq {
			t.Fatalf("got %v %v", &e, r.Err)
		}
		f.wantRefusal(f.call(asks, weftv1.ExplainRequest_builder{Job: new("z")}.Build()), bus.CodeNotFound, "no job z")
	})
}

// Every one of a burst is answered; plans do not wait behind a row of explanations.
func TestBurst(t *testing.T) {
	inBubble(t, 100, func(t *testing.T, f *fabric) {
		f.node("n0")
		seq := f.job("a")
		if _, err := f.proj.CatchUp(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		a := f.answerer()
		var all []bus.Pending
		for range 50 {
			all = append(all, f.call(asks, weftv1.ExplainRequest_builder{Job: new("a")}.Build()))
		}
		for range 50 {
			p := f.askPlan(seq)
			all = append(all, p)
			if len(all) == 51 {
				if _, _, err := a.Step(t.Context(), time.Now()); err != nil {
					t.Fatal(err)
				}
				f.wantPlan(p, seq, "a")
				if n := f.core.count(); n > 2 {
					t.Errorf("%d answers in the step of the plan", n)
				}
			}
		}
		step(t, a)
		for _, p := range all {
			if r, done := p.Poll(); !done || r.Err != nil {
				t.Fatalf("answered %v: %v", done, r.Err)
			}
		}
	})
}

// Replicas share the questions: each is answered by one.
func TestReplicasShareTheQuestions(t *testing.T) {
	inBubble(t, 20, func(_ *testing.T, f *fabric) {
		defer f.start(f.proj, f.answerer(), f.answerer(), f.answerer())()
		f.node("n0")
		seq := f.job("a")
		var all []bus.Pending
		for range 20 {
			all = append(all, f.askPlan(seq))
		}
		for _, p := range all {
			f.wantPlan(p, seq, "a")
		}
	})
}

// Who waits here is told when the allocator stops, and who asks later reaches another one, or nobody at once.
func TestStop(t *testing.T) {
	inBubble(t, 3, func(t *testing.T, f *fabric) {
		a := f.answerer()
		stop := f.start(f.proj, a)
		seq := f.node("n0")
		waits := f.askPlan(seq + 1)
		synctest.Wait()
		stop()
		f.wantRefusal(waits, bus.CodeUnavailable, "stopping")

		b := f.answerer()
		untaken := []bus.Pending{f.askPlan(seq), f.call(asks, weftv1.ExplainRequest_builder{Job: new("a")}.Build())}
		b.Close()
		for _, p := range untaken {
			f.wantRefusal(p, bus.CodeUnavailable, "stopping")
		}
		start := time.Now()
		if r := f.askPlan(seq).Wait(t.Context()); !errors.Is(r.Err, bus.ErrNoAnswer) || time.Since(start) != 0 {
			t.Fatalf("after the stop: %v in %v", r.Err, time.Since(start))
		}
	})
}

package shell

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/faultbus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/libs/run"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// fataler is what *testing.T and *rapid.T share.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// rig is a cell around one or more replicas of the scheduler's shells. The test is the only goroutine: it steps
// whoever it wants, on its own clock.
type rig struct {
	t       fataler
	now     time.Time
	bus     *membus.Bus
	log     *memledger.Log
	planner func(s *cell.State) []*weftv1.PlanStep
	plans   bus.Server
	asked   int
	policy  lifecycle.Policy
	agents  map[string]*fakeAgent
}

// replica is one scheduler.
type replica struct {
	*rig
	name      string
	ledger    *faultledger.Log   // what this replica appends to
	outs      []*faultbus.Outbox // what it writes: ASSIGNMENTS, EVENTS
	ins       []*faultbus.Inbox  // what it reads: REQUESTS, REPORTS, CHECKPOINTS
	proj      *Projection
	writer    *Writer
	decider   *Decider
	assigner  *Assigner
	announcer *Announcer
	trimmer   *Trimmer
	logged    *bytes.Buffer
	failures  []error
}

func newRig(t fataler) *rig {
	r := &rig{t: t, now: time.Unix(1_800_000_000, 0), bus: membus.New(), log: memledger.New(), agents: map[string]*fakeAgent{}, policy: lifecycle.DefaultPolicy()}
	r.bus.SetClock(func() time.Time { return r.now })
	r.planner = r.firstFit
	var err error
	if r.plans, err = r.bus.Caller().Serve(bus.SubjectRPC("allocator", "plan"), "allocator"); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) replica(name string) *replica {
	p := &replica{rig: r, name: name, ledger: faultledger.Wrap(r.log), logged: &bytes.Buffer{}}
	log := slog.New(slog.NewTextHandler(p.logged, nil))
	p.proj = ledger.NewProjection(p.ledger, cellfold.Fold(), nil)
	p.writer = ledger.NewWriter(p.ledger, p.proj, "scheduler", name)
	commits := 0
	p.writer.NewID = func(time.Time) string { commits++; return fmt.Sprintf("%s-%d", name, commits) }
	out := func(stream string) bus.Outbox {
		o := faultbus.WrapOutbox(r.bus.Outbox(stream))
		p.outs = append(p.outs, o)
		return o
	}
	in := func(stream string) bus.Inbox {
		i := faultbus.WrapInbox(r.bus.Inbox(stream, ""))
		p.ins = append(p.ins, i)
		return i
	}
	var err error
	p.decider, err = NewDecider(Options{
		Proj: p.proj, Writer: p.writer, Ledger: p.ledger, Log: log, Policy: r.policy,
		Requests: in(bus.StreamRequests), Reports: in(bus.StreamReports), Checkpoints: in(bus.StreamCheckpoints), Core: r.bus.Caller(), Nodes: r.bus.Caller(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	p.assigner = NewAssigner(p.proj, p.writer, out(bus.StreamAssignments), log)
	p.announcer = NewAnnouncer(p.proj, p.writer, p.ledger, out(bus.StreamEvents))
	p.trimmer = NewTrimmer(p.proj, p.writer, r.bus.Inbox(bus.StreamRequests, ""), r.bus.Inbox(bus.StreamReports, ""))
	return p
}

// leader is a replica that leads.
func (r *rig) leader(name string) *replica {
	r.t.Helper()
	p := r.replica(name)
	p.lead()
	return p
}

func (p *replica) lead() {
	p.t.Helper()
	if err := p.writer.Lead(context.Background(), p.now); err != nil {
		p.t.Fatal(err)
	}
}

func (p *replica) shells() []run.Shell {
	return []run.Shell{p.proj, p.decider, p.assigner, p.announcer}
}

// step steps one shell once.
func (p *replica) step(s run.Shell) bool {
	did, _, err := s.Step(context.Background(), p.now)
	if err != nil {
		p.failures = append(p.failures, err)
	}
	return did
}

// settle steps everything until nothing happens any more at this moment. A loop that never rests is a fault.
func (p *replica) settle() {
	p.t.Helper()
	for range 1000 {
		did := false
		for _, s := range p.shells() {
			did = p.step(s) || did
		}
		for _, name := range p.nodes() {
			did = p.agents[name].work() || did
		}
		if did = p.answerPlans(p) || did; !did {
			return
		}
	}
	p.t.Fatalf("%s does not come to rest; last failures: %v", p.name, p.failures)
}

// pass lets time go by, with beats of the agents, and everybody working.
func (p *replica) pass(d time.Duration) {
	p.t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(min(time.Second, end.Sub(p.now)))
		for _, name := range p.nodes() {
			p.agents[name].beat()
		}
		p.settle()
	}
}

func (r *rig) nodes() (out []string) {
	for n := range r.agents {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (p *replica) state() *cell.State { return p.decider.state() }

func (p *replica) job(id string) *cell.Job {
	p.t.Helper()
	j := p.state().Job(id)
	if j == nil {
		p.t.Fatalf("no job %s", id)
	}
	return j
}

// answerPlans is an allocator that reads the same projection.
func (r *rig) answerPlans(p *replica) bool {
	reqs := r.plans.Next(10)
	for _, q := range reqs {
		r.asked++
		plan := weftv1.Plan_builder{Id: new(fmt.Sprintf("plan-%d", r.asked)), Steps: r.planner(p.state())}
		data, err := proto.Marshal(plan.Build())
		if err != nil {
			r.t.Fatal(err)
		}
		q.Respond(data, nil)
	}
	return len(reqs) > 0
}

// firstFit starts every queued job, one rank, on the first node with a free device.
func (r *rig) firstFit(s *cell.State) (out []*weftv1.PlanStep) {
	for j := range s.WaitingJobs() {
		if j.Phase != cell.Queued {
			continue
		}
		for n := range s.Nodes() {
			if cell.Usable(s, n, j.ID) != nil {
				continue
			}
			if d := slices.Index(cell.Free(s, n).DeviceMilli, 1000); d >= 0 {
				st := startOf(j.ID, n, uint32(d))
				if cell.CheckPlacement(s, j, st) == nil {
					out = append(out, weftv1.PlanStep_builder{Start: st}.Build())
					return out // one start a plan: the next one is asked for at once
				}
			}
		}
	}
	return out
}

func startOf(job string, n *cell.Node, device uint32) *weftv1.Start {
	return weftv1.Start_builder{Job: &job, Placements: []*weftv1.Placement{weftv1.Placement_builder{
		Node: &n.Name, Generation: &n.Generation, Group: new(uint32(0)), FirstRank: new(uint32(0)), Count: new(uint32(1)),
		Devices: []uint32{device}, Milli: new(int64(1000)),
	}.Build()}}.Build()
}

func jobID(n int) string { return fmt.Sprintf("01j%023d", n) }

func (r *rig) publish(stream, subject string, data []byte) uint64 {
	r.t.Helper()
	seq, err := r.bus.Outbox(stream).Publish(context.Background(), bus.Message{Subject: subject, Data: data})
	if err != nil {
		r.t.Fatal(err)
	}
	return seq
}

func (r *rig) request(verb string, b weftv1.Request_builder) uint64 {
	r.t.Helper()
	b.Tenant, b.By = new("demo"), new("ann")
	data, err := proto.Marshal(b.Build())
	if err != nil {
		r.t.Fatal(err)
	}
	return r.publish(bus.StreamRequests, bus.SubjectRequest("demo", verb), data)
}

func (r *rig) queue(path string) {
	r.t.Helper()
	r.request("queues", weftv1.Request_builder{ApplyQueues: weftv1.ApplyQueues_builder{Queues: []*weftv1.QueueSet{
		weftv1.QueueSet_builder{Queue: &path, Weight: new(int64(1))}.Build(),
	}}.Build()})
}

func (r *rig) submit(n int) string { return r.submitTo("demo", n) }

func (r *rig) submitTo(queue string, n int) string {
	r.t.Helper()
	id := jobID(n)
	spec := weftv1.JobSpec_builder{
		Name: new(fmt.Sprintf("j%d", n)), Queue: &queue,
		Groups: []*weftv1.Group{weftv1.Group_builder{
			Name: new("worker"), Min: new(uint32(1)), Max: new(uint32(1)), GpuMilli: new(int64(1000)), CpuMilli: new(int64(1000)),
			MemoryBytes: new(int64(1 << 30)), Command: []string{"true"},
		}.Build()},
	}
	r.request("submit", weftv1.Request_builder{Submit: weftv1.SubmitJob_builder{Job: &id, Spec: spec.Build(), SpecHash: new("b3-" + id)}.Build()})
	return id
}

// facts are what the ledger holds, by kind and job, read by a reader that trusts nobody.
func (r *rig) facts() (out []*weftv1.Fact) {
	r.t.Helper()
	p := ledger.NewProjection(r.log, cellfold.Fold(), nil)
	p.OnCommit(func(at ledger.Position, c *weftv1.Commit) {
		for _, e := range c.GetEntries() {
			if e.GetKind() == ledger.KindLeaderElected {
				continue
			}
			f, err := cell.Fact(e, at.Seq)
			if err != nil {
				r.t.Fatal(err)
			}
			if f != nil {
				out = append(out, f)
			}
		}
	})
	if _, err := p.CatchUp(context.Background(), r.now); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// kinds are the facts of some kinds, in order, as one line.
func (r *rig) kinds(want ...string) string {
	r.t.Helper()
	var out []string
	for _, f := range r.facts() {
		m := f.ProtoReflect()
		k := string(m.WhichOneof(m.Descriptor().Oneofs().Get(0)).Name())
		if len(want) == 0 || slices.Contains(want, k) {
			out = append(out, k)
		}
	}
	return strings.Join(out, " ")
}

// messages are what a stream holds.
func (r *rig) messages(stream string) []bus.Input {
	r.t.Helper()
	in, err := r.bus.Inbox(stream, "").Next(context.Background(), 1_000_000)
	if err != nil {
		r.t.Fatal(err)
	}
	return in
}

// checkEvents says that EVENTS is exactly what the ledger says: each fact once, in order.
func (p *replica) checkEvents() {
	p.t.Helper()
	var want []string
	reader := ledger.NewProjection(p.log, cellfold.Fold(), nil)
	reader.OnCommit(func(at ledger.Position, c *weftv1.Commit) {
		for _, e := range lifecycle.CloudEvents(at.Seq, c, p.state()) {
			want = append(want, string(e.JSON))
		}
	})
	if _, err := reader.CatchUp(context.Background(), p.now); err != nil {
		p.t.Fatal(err)
	}
	got := p.messages(bus.StreamEvents)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || string(got[i].Data) != want[i] {
			p.t.Fatalf("event %d of %d differs from the ledger's %d", i, len(got), len(want))
		}
	}
}

// checkAssignments says that what stands in ASSIGNMENTS for each node is what it should do.
func (p *replica) checkAssignments() {
	p.t.Helper()
	out := p.bus.Outbox(bus.StreamAssignments)
	s := p.state()
	for n := range s.Nodes() {
		m, _, ok, err := out.Get(context.Background(), bus.SubjectAssign(n.Name))
		var got weftv1.Assignment
		if err != nil || !ok || proto.Unmarshal(m.Data, &got) != nil {
			p.t.Fatalf("nothing stands for %s: %v", n.Name, err)
		}
		if !proto.Equal(&got, lifecycle.Assignment(s, n.Name, got.GetLedgerSeq())) {
			p.t.Fatalf("%s is told %v", n.Name, &got)
		}
	}
}

package plan

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

const (
	clique = weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE
	node   = weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE
	rack   = weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK
	block  = weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK
	whole  = weftv1.TopologyLevel_TOPOLOGY_LEVEL_CELL
)

// world builds a cell fact by fact, as the ledger would; each fact is one second later than the one before.
type world struct {
	*cell.State
	at int64
}

func newWorld() *world { return &world{State: cell.NewState()} }

func (w *world) fact(b weftv1.Fact_builder) {
	w.at += 1e9
	cell.Evolve(w.State, b.Build(), w.at)
}

// machine is one node of a test; what it leaves out is generous.
type machine struct {
	model       string
	cards       int
	cliques     int // the cards are split evenly over so many; 0 = the cards know none
	cpu, memory int64
	ports       uint32
	rack, block string
	spot        bool
}

func (w *world) node(name string, m machine) {
	if m.model == "" {
		m.model = "A100"
	}
	if m.cpu == 0 {
		m.cpu = 64_000
	}
	if m.memory == 0 {
		m.memory = 1 << 40
	}
	if m.ports == 0 {
		m.ports = 100
	}
	inv := weftv1.Inventory_builder{
		Address: new("10.0.0.1"), CpuMilli: &m.cpu, MemoryBytes: &m.memory, PortBase: new(uint32(20000)), PortCount: &m.ports,
		Rack: &m.rack, Block: &m.block, Spot: &m.spot,
	}
	for i := range m.cards {
		d := weftv1.Device_builder{Model: &m.model}
		if m.cliques > 0 {
			d.Clique = new(uint32(1 + i*m.cliques/m.cards))
		}
		inv.Devices = append(inv.Devices, d.Build())
	}
	w.fact(weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: &name, BootId: new("b")}.Build()})
	w.fact(weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{Node: &name, Generation: new(uint64(1)), Inventory: inv.Build()}.Build()})
}

func (w *world) nodes(n int, prefix string, m machine) {
	for i := range n {
		w.node(fmt.Sprintf("%s%d", prefix, i), m)
	}
}

func (w *world) cordon(name string) {
	w.fact(weftv1.Fact_builder{NodeCordoned: weftv1.NodeCordoned_builder{Node: &name, Reason: new("service")}.Build()})
}

func (w *world) claim(job string, nodes ...string) {
	w.fact(weftv1.Fact_builder{ClaimMade: weftv1.ClaimMade_builder{Job: &job, Nodes: nodes, ExpiresNs: new(int64(1 << 60))}.Build()})
}

func (w *world) queue(path string, change ...func(*weftv1.QueueSet_builder)) {
	b := weftv1.QueueSet_builder{Queue: &path}
	for _, f := range change {
		f(&b)
	}
	w.fact(weftv1.Fact_builder{QueueSet: b.Build()})
}

func weighs(n int64) func(*weftv1.QueueSet_builder) {
	return func(b *weftv1.QueueSet_builder) { b.Weight = &n }
}

func limited(cards int64) func(*weftv1.QueueSet_builder) {
	return func(b *weftv1.QueueSet_builder) { b.Limit = weftv1.Limits_builder{GpuMilli: new(1000 * cards)}.Build() }
}

func guaranteed(cards int64) func(*weftv1.QueueSet_builder) {
	return func(b *weftv1.QueueSet_builder) {
		b.Quota = weftv1.Amounts_builder{GpuMilli: new(1000 * cards)}.Build()
	}
}

func ranked(priority int32) func(*weftv1.QueueSet_builder) {
	return func(b *weftv1.QueueSet_builder) { b.Priority = &priority }
}

// workers is a group of least to most workers with whole cards each.
func workers(least, most uint32, cards int64) *weftv1.Group {
	return weftv1.Group_builder{
		Name: new("worker"), Min: &least, Max: &most, GpuMilli: new(1000 * cards), CpuMilli: new(int64(1000)), MemoryBytes: new(int64(1 << 30)),
	}.Build()
}

// gang is a group of exactly n workers with whole cards each.
func gang(n uint32, cards int64) *weftv1.Group { return workers(n, n, cards) }

// spec is a job of a test.
type spec struct {
	queue    string
	groups   []*weftv1.Group
	models   []string
	required weftv1.TopologyLevel
	priority int32
	spot     bool
	mixed    bool
}

func (w *world) submit(id string, sp spec) *cell.Job {
	if sp.queue == "" {
		sp.queue = "q"
	}
	b := weftv1.JobSpec_builder{
		Name: &id, Queue: &sp.queue, Groups: sp.groups, Models: sp.models, Priority: &sp.priority, Spot: &sp.spot, Mixed: &sp.mixed,
	}
	if sp.required != 0 {
		b.Topology = weftv1.TopologyConstraint_builder{Required: &sp.required}.Build()
	}
	w.fact(weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{Job: &id, Tenant: new(cell.Tenant(sp.queue)), Spec: b.Build()}.Build()})
	return w.Job(id)
}

// plan asks for a plan of the world as it is.
func (w *world) plan() *weftv1.Plan { return New(w.State, 7, w.at, DefaultPolicy()).Plan() }

// apply commits a plan as the scheduler does: each step is checked against the state that the steps before it made, and
// gets the ports that it leaves open.
func (w *world) apply(p *weftv1.Plan) error {
	for _, st := range p.GetSteps() {
		if err := w.start(st.GetStart()); err != nil {
			return fmt.Errorf("job %s: %w", st.GetStart().GetJob(), err)
		}
	}
	return nil
}

func (w *world) start(start *weftv1.Start) error {
	j := w.Job(start.GetJob())
	if err := cell.CheckPlacement(w.State, j, start); err != nil {
		return err
	}
	free := map[string]cell.NodeFree{}
	var ps []*weftv1.Placement
	size := uint32(0)
	for _, p := range start.GetPlacements() {
		n := w.Node(p.GetNode())
		f, ok := free[n.Name]
		if !ok {
			f = cell.Free(w.State, n)
		}
		need := cell.PortsFor(p)
		base, ok := f.FindPorts(cell.PortRange{Base: n.Inventory.GetPortBase(), Count: n.Inventory.GetPortCount()}, need, j.Attempts)
		if !ok {
			return fmt.Errorf("%s has no %d ports in a row", n.Name, need)
		}
		f.Ports = cell.WithoutPorts(f.Ports, base, need)
		free[n.Name] = f
		p = proto.CloneOf(p)
		p.SetPortBase(base)
		p.SetPortCount(need)
		ps = append(ps, p)
		size += p.GetCount()
	}
	w.fact(weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{Job: &j.ID, Attempt: new(j.Attempts + 1), Placements: ps, Size: &size}.Build()})
	return nil
}

// run plans and applies, which must succeed.
func (w *world) run(t testing.TB) *weftv1.Plan {
	t.Helper()
	p := w.plan()
	if err := w.apply(p); err != nil {
		t.Fatal(err)
	}
	return p
}

// runs lets every rank of a placed job start.
func (w *world) runs(id string) {
	a := w.Job(id).Attempt
	for _, n := range a.Nodes() {
		w.fact(weftv1.Fact_builder{NodeStarted: weftv1.NodeStarted_builder{Job: &id, Attempt: &a.Number, Node: &n}.Build()})
	}
	w.fact(weftv1.Fact_builder{AttemptRunning: weftv1.AttemptRunning_builder{Job: &id, Attempt: &a.Number}.Build()})
}

// end lets a placed job run, release its place and succeed.
func (w *world) end(id string) {
	w.runs(id)
	a := w.Job(id).Attempt
	for _, n := range a.Nodes() {
		w.fact(weftv1.Fact_builder{Released: weftv1.Released_builder{Job: &id, Attempt: &a.Number, Node: &n, Completed: new(true)}.Build()})
	}
	w.fact(weftv1.Fact_builder{AttemptEnded: weftv1.AttemptEnded_builder{Job: &id, Attempt: &a.Number}.Build()})
	w.fact(weftv1.Fact_builder{JobSucceeded: weftv1.JobSucceeded_builder{Job: &id}.Build()})
}

// started lists the jobs of a plan in its order.
func started(p *weftv1.Plan) (ids []string) {
	for _, st := range p.GetSteps() {
		ids = append(ids, st.GetStart().GetJob())
	}
	return ids
}

// places lists where a job starts in a plan: node:devices, in rank order.
func places(p *weftv1.Plan, id string) (out []string) {
	for _, st := range p.GetSteps() {
		if st.GetStart().GetJob() == id {
			for _, pl := range st.GetStart().GetPlacements() {
				out = append(out, fmt.Sprintf("%s:%d", pl.GetNode(), pl.GetDevices()))
			}
		}
	}
	return out
}

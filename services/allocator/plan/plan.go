package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Plan proposes which waiting jobs start now and where. The same state, time and policy give the same plan. It is based
// on the ledger sequence seq, which it only names.
//
// Jobs are taken in weighted dominant-resource order over the queue tree, each counted as soon as it has its place. A
// whole gang is placed or nothing; shapes that found no place are skipped as a class; and one blocked head never idles
// capacity that it can't use.
func Plan(s *cell.State, seq uint64, now int64, pol Policy) *weftv1.Plan {
	p := newPlanner(s, now)
	p.run(pol.Tries)
	b := weftv1.Plan_builder{Id: new(planID(seq, p.steps)), BasedOn: &seq, Steps: p.steps}
	if p.exhausted {
		b.Exhausted = &p.exhausted
	}
	return b.Build()
}

// planner is one planning cycle over a state that it may change: an overlay.
type planner struct {
	s         *cell.State
	now       int64
	whole     cell.Amounts
	nodes     []*nodeView    // by name
	at        map[string]int // index in nodes
	tries     int            // left
	steps     []*weftv1.PlanStep
	exhausted bool // the tries ran out before every job had its turn
}

func newPlanner(s *cell.State, now int64) *planner {
	p := &planner{s: s.Overlay(), now: now, whole: Whole(s), at: map[string]int{}}
	for n := range p.s.Nodes() {
		p.at[n.Name] = len(p.nodes)
		p.nodes = append(p.nodes, newNodeView(p.s, n))
	}
	return p
}

// run goes through the waiting jobs until nothing more starts: a start may also make room, by ending a claim, and a plan
// leaves nothing to the next one.
func (p *planner) run(tries int) {
	for p.tries = tries; p.pass(); {
	}
}

// pass gives every waiting job its turn once, and says whether any started.
func (p *planner) pass() (any bool) {
	queues := forest(p.s)
	failed := map[string]bool{} // shapes that found no place
	for j := queues.next(p.s, p.whole); j != nil; j = queues.next(p.s, p.whole) {
		queues.take(j)
		class := p.shape(j)
		if failed[class] {
			continue
		}
		if p.tries == 0 {
			p.exhausted = true
			return false
		}
		p.tries--
		start := p.place(j)
		if start == nil {
			failed[class] = true
			continue
		}
		p.start(j, start)
		p.steps = append(p.steps, weftv1.PlanStep_builder{Start: start}.Build())
		any = true
	}
	return any
}

// filterSpot keeps jobs that do not say so off nodes that may be taken away at short notice.
const filterSpot = "spot"

// filter names what keeps a job off a node whatever is free there; empty if nothing does.
func (p *planner) filter(j *cell.Job, n *cell.Node) string {
	var no *cell.Infeasible
	switch err := cell.Usable(p.s, n, j.ID); {
	case errors.As(err, &no):
		return no.Filter
	case n.Inventory.GetSpot() && !j.Spec.GetSpot():
		return filterSpot
	}
	return ""
}

// usable are the nodes that may take the job now, if they have room.
func (p *planner) usable(j *cell.Job) []*nodeView {
	var out []*nodeView
	for _, v := range p.nodes {
		if p.filter(j, v.node) == "" {
			out = append(out, v)
		}
	}
	return out
}

// start makes the place true in the planner's own state, ports included, so that what follows counts it.
func (p *planner) start(j *cell.Job, start *weftv1.Start) {
	size := uint32(0)
	var ps []*weftv1.Placement
	for _, pl := range start.GetPlacements() {
		v := p.nodes[p.at[pl.GetNode()]]
		inv := v.node.Inventory
		need := cell.PortsFor(pl)
		base, _ := v.free.FindPorts(cell.PortRange{Base: inv.GetPortBase(), Count: inv.GetPortCount()}, need, j.Attempts)
		v.free.Ports = cell.WithoutPorts(v.free.Ports, base, need)
		pl = proto.CloneOf(pl)
		pl.SetPortBase(base)
		pl.SetPortCount(need)
		ps = append(ps, pl)
		size += pl.GetCount()
	}
	cell.Evolve(p.s, weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{
		Job: &j.ID, Attempt: new(j.Attempts + 1), Placements: ps, Size: &size,
	}.Build()}.Build(), p.now)
	for _, pl := range ps {
		i := p.at[pl.GetNode()]
		p.nodes[i] = newNodeView(p.s, p.nodes[i].node)
	}
}

// shape is equal for jobs that find a place or none together: same demands, same limits, same claims.
func (p *planner) shape(j *cell.Job) string {
	type group struct {
		Min, Max uint32
		GPU, CPU int64
		Memory   int64
	}
	var gs []group
	spec := j.Spec
	for _, g := range spec.GetGroups() {
		gs = append(gs, group{g.GetMin(), g.GetMax(), g.GetGpuMilli(), g.GetCpuMilli(), g.GetMemoryBytes()})
	}
	claim := ""
	if p.s.Claim(j.ID) != nil {
		claim = j.ID
	}
	return fmt.Sprintf("%q %v %q %v %v %v %q", j.Queue(), gs, spec.GetModels(), spec.GetMixed(), spec.GetTopology().GetRequired(), spec.GetSpot(), claim)
}

// planID names a plan by what it says.
func planID(seq uint64, steps []*weftv1.PlanStep) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%d", seq)
	for _, st := range steps {
		_, _ = fmt.Fprintf(h, " %s", st.GetStart().GetJob())
		for _, p := range st.GetStart().GetPlacements() {
			_, _ = fmt.Fprintf(h, " %s/%d %d+%d %v", p.GetNode(), p.GetGeneration(), p.GetFirstRank(), p.GetCount(), p.GetDevices())
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}

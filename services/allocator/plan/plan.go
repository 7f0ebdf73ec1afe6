package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Cycle is one planning cycle over one state. Its plan is made once, however many ask for it or for explanations. It is
// not safe for concurrent use.
type Cycle struct {
	s   *cell.State
	seq uint64
	now int64
	pol Policy
	p   *planner // after its run; nil before
}

// New begins a cycle over s, which must not change while the cycle is used. It is based on the ledger sequence seq, which
// it only names.
func New(s *cell.State, seq uint64, now int64, pol Policy) *Cycle {
	return &Cycle{s: s, seq: seq, now: now, pol: pol}
}

// Plan proposes which waiting jobs start now and where. The same state, time and policy give the same plan.
//
// Jobs are taken in weighted dominant-resource order over the queue tree, each counted as soon as it has its place. A
// whole gang is placed or nothing; shapes that found no place are skipped as a class; and one blocked head never idles
// capacity that it can't use.
func (c *Cycle) Plan() *weftv1.Plan {
	p := c.planned()
	b := weftv1.Plan_builder{Id: new(planID(c.seq, p.steps)), BasedOn: &c.seq, Steps: p.steps}
	if p.exhausted {
		b.Exhausted = &p.exhausted
	}
	return b.Build()
}

func (c *Cycle) planned() *planner {
	if c.p == nil {
		c.p = newPlanner(c.s, c.now)
		c.p.run(c.pol.Tries)
	}
	return c.p
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
	p := &planner{s: s.Overlay(), now: now, whole: cell.Whole(s), at: map[string]int{}}
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
	failed := map[shape]bool{} // shapes that found no place
	hopeless := func(j *cell.Job) bool { return failed[p.shape(j)] }
	for j := queues.next(p, hopeless); j != nil; j = queues.next(p, hopeless) {
		queues.take(j)
		if p.tries == 0 {
			p.exhausted = true
			return false
		}
		p.tries--
		start := p.place(j)
		if start == nil {
			failed[p.shape(j)] = true
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
type shape struct {
	queue, models, claim string
	mixed, spot          bool
	required             weftv1.TopologyLevel
	first                group
	more                 string // the other groups, in words
}

type group struct {
	min, max         uint32
	gpu, cpu, memory int64
}

func (p *planner) shape(j *cell.Job) shape {
	spec := j.Spec
	sh := shape{
		queue: j.Queue(), models: strings.Join(spec.GetModels(), " "), mixed: spec.GetMixed(), spot: spec.GetSpot(),
		required: spec.GetTopology().GetRequired(),
	}
	if p.s.Claim(j.ID) != nil {
		sh.claim = j.ID
	}
	for i, g := range spec.GetGroups() {
		x := group{g.GetMin(), g.GetMax(), g.GetGpuMilli(), g.GetCpuMilli(), g.GetMemoryBytes()}
		if i == 0 {
			sh.first = x
		} else {
			sh.more += fmt.Sprint(x)
		}
	}
	return sh
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

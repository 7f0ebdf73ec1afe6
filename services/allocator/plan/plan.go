package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Plan proposes which waiting jobs start now and where. The same state, time and policy give the same plan. It is based
// on the ledger sequence seq, which it only names.
//
// Jobs are taken in weighted dominant-resource order over the queue tree, each counted as soon as it has its place. A
// whole gang is placed or nothing; shapes that found no place are skipped as a class until something starts; and one
// blocked head never idles capacity that it can't use.
func Plan(s *cell.State, seq uint64, now int64, pol Policy) *weftv1.Plan {
	p := newPlanner(s, now)
	var steps []*weftv1.PlanStep
	exhausted := false
	tries := 0
	for {
		j := p.queues.next(p.s, p.whole)
		if j == nil {
			break
		}
		if tries == pol.Tries {
			exhausted = true
			break
		}
		p.queues.take(j)
		class := shape(j.Spec)
		if p.failed[class] {
			continue
		}
		tries++
		start := p.place(j)
		if start == nil {
			p.failed[class] = true
			continue
		}
		p.start(j, start)
		steps = append(steps, weftv1.PlanStep_builder{Start: start}.Build())
	}
	b := weftv1.Plan_builder{Id: new(planID(seq, steps)), BasedOn: &seq, Steps: steps}
	if exhausted {
		b.Exhausted = &exhausted
	}
	return b.Build()
}

// planner is one planning cycle over a state that it may change: an overlay.
type planner struct {
	s      *cell.State
	now    int64
	whole  cell.Amounts
	queues *branch
	nodes  []*nodeView
	failed map[string]bool // shapes that found no place
}

func newPlanner(s *cell.State, now int64) *planner {
	p := &planner{s: s.Overlay(), now: now, whole: Whole(s), queues: forest(s), failed: map[string]bool{}}
	for n := range p.s.Nodes() {
		p.nodes = append(p.nodes, newNodeView(p.s, n))
	}
	return p
}

// start makes the place true in the planner's own state, so that what follows counts it.
func (p *planner) start(j *cell.Job, start *weftv1.Start) {
	size := uint32(0)
	for _, pl := range start.GetPlacements() {
		size += pl.GetCount()
	}
	cell.Evolve(p.s, weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{
		Job: &j.ID, Attempt: new(j.Attempts + 1), Placements: start.GetPlacements(), Size: &size,
	}.Build()}.Build(), p.now)
	touched := map[string]bool{}
	for _, pl := range start.GetPlacements() {
		touched[pl.GetNode()] = true
	}
	for i, v := range p.nodes {
		if touched[v.node.Name] {
			p.nodes[i] = newNodeView(p.s, v.node)
		}
	}
}

// shape is equal for jobs that fit in the same places; limits and claims make it depend on the queue and a claim's job.
func shape(spec *weftv1.JobSpec) string {
	type group struct {
		Min, Max uint32
		GPU, CPU int64
		Memory   int64
		Mig      string
	}
	var gs []group
	for _, g := range spec.GetGroups() {
		gs = append(gs, group{g.GetMin(), g.GetMax(), g.GetGpuMilli(), g.GetCpuMilli(), g.GetMemoryBytes(), g.GetMig()})
	}
	b, err := json.Marshal([]any{spec.GetQueue(), gs, spec.GetModels(), spec.GetMixed(), spec.GetTopology().GetRequired(), spec.GetSpot()})
	if err != nil {
		panic(fmt.Sprintf("plan: shape: %v", err)) // plain values only
	}
	return string(b)
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

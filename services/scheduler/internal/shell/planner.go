package shell

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

const (
	debounce    = 2 * time.Millisecond // what happens meanwhile goes into the same question
	planTimeout = 10 * time.Second     // longer than one election of the bus
	retryPlan   = 100 * time.Millisecond
	tooOften    = 3 // refusals of one gang after which its nodes are held for it
)

// planner asks the allocator, one question at a time, whenever the state has changed and somebody waits.
type planner struct {
	caller  bus.Caller
	log     *slog.Logger
	pending bus.Pending
	dirty   bool      // the state has changed since the last question
	dueAt   time.Time // when to ask
	again   time.Time // when time alone makes another plan useful
	until   time.Time // when the question under way ends by itself
	failed  int       // questions without a plan, in a row
	refused map[string]int
	now     time.Time // of the step under way
}

func (p *planner) reset(now time.Time) {
	p.pending, p.dirty, p.dueAt, p.again, p.failed = nil, true, now, time.Time{}, 0
	clear(p.refused)
}

// drop forgets the question under way: nobody will look at its answer, and one that is there would wake for ever.
func (p *planner) drop() { p.pending = nil }

// touch notes that the state has changed.
func (p *planner) touch(now time.Time) {
	if !p.dirty {
		p.dirty = true
		if at := now.Add(debounce); p.dueAt.Before(at) {
			p.dueAt = at
		}
	}
}

// ask sends the question if one is due.
func (p *planner) ask(now time.Time, s *cell.State, seq uint64) {
	if !p.again.IsZero() && !now.Before(p.again) {
		p.dirty, p.again = true, time.Time{}
	}
	if p.pending != nil || !p.dirty || now.Before(p.dueAt) {
		return
	}
	if !waiting(s) || lifecycle.Doubted(s) != nil { // whatever makes somebody wait, or ends a doubt, changes the state
		p.dirty = false
		return
	}
	data, err := proto.Marshal(weftv1.PlanRequest_builder{At: &seq}.Build())
	if err != nil {
		return // one number
	}
	p.dirty, p.until = false, now.Add(planTimeout)
	p.pending = p.caller.Call(bus.SubjectRPC("allocator", "plan"), data, planTimeout)
}

func waiting(s *cell.State) bool {
	for j := range s.WaitingJobs() {
		if j.Phase == cell.Queued {
			return true
		}
	}
	return false
}

// next is when to ask, if time decides it.
func (p *planner) next() time.Time {
	switch {
	case p.pending != nil:
		return p.until
	case p.dirty:
		return p.dueAt
	}
	return p.again
}

// steps are the commands of a plan that has arrived.
func (p *planner) steps(now time.Time, s *cell.State) []lifecycle.Command {
	if p.pending == nil {
		return nil
	}
	r, done := p.pending.Poll()
	if !done {
		return nil
	}
	p.pending, p.now = nil, now
	var plan weftv1.Plan
	err := r.Err
	if err == nil {
		err = proto.Unmarshal(r.Data, &plan)
	}
	if err != nil {
		p.dirty, p.dueAt = true, now.Add(retryPlan)
		var refusal *bus.Refusal
		if !errors.As(err, &refusal) || refusal.Code != bus.CodeBehind {
			p.dueAt = now.Add(10 * retryPlan)
			if p.failed++; seldom(p.failed) {
				p.log.Warn("no plan", "error", err, "failures", p.failed)
			}
		}
		return nil
	}
	p.again, p.failed = time.Time{}, 0
	maps.DeleteFunc(p.refused, func(job string, _ int) bool { j := s.Job(job); return j == nil || !j.Waiting() })
	if at := plan.GetAgainAtNs(); at > 0 {
		p.again = time.Unix(0, at)
	}
	var out []lifecycle.Command
	for _, st := range plan.GetSteps() {
		switch st.WhichStep() {
		case weftv1.PlanStep_Start_case:
			if c := p.claim(s, st.GetStart()); c != nil {
				out = append(out, *c)
			}
			out = append(out, lifecycle.Place{Plan: plan.GetId(), Start: st.GetStart()})
		case weftv1.PlanStep_Evict_case:
			out = append(out, lifecycle.Evict{Evict: st.GetEvict()})
		}
	}
	return out
}

// claim holds the nodes of a gang that was refused too often, so that small jobs cannot keep it out for ever.
func (p *planner) claim(s *cell.State, start *weftv1.Start) *lifecycle.Claim {
	if p.refused[start.GetJob()] < tooOften || s.Claim(start.GetJob()) != nil {
		return nil
	}
	var nodes []string
	for _, pl := range start.GetPlacements() {
		nodes = append(nodes, pl.GetNode())
	}
	slices.Sort(nodes)
	return &lifecycle.Claim{Job: start.GetJob(), Nodes: slices.Compact(nodes)}
}

// result notes what became of one step; a refused one is planned again on the newer state.
func (p *planner) result(c lifecycle.Command, err error) {
	place, ok := c.(lifecycle.Place)
	if !ok {
		if err != nil {
			p.log.Info("plan step refused", "error", err)
		}
		return
	}
	job := place.Start.GetJob()
	if err == nil {
		delete(p.refused, job)
		return
	}
	p.refused[job]++
	p.dirty, p.dueAt = true, p.now.Add(afterRefusal(p.refused[job]))
	if seldom(p.refused[job]) {
		p.log.Info("plan step refused", "job", job, "times", p.refused[job], "error", err)
	}
}

// afterRefusal is how long to wait before the next plan: soon at first, for the state has moved on; but a step that is
// refused again and again is not worth ten plans a second.
func afterRefusal(times int) time.Duration {
	if times <= 10 {
		return time.Duration(times) * retryPlan / 10
	}
	return min(retryPlan<<min(times-10, 10), 5*time.Second)
}

// seldom holds for 1, 2, 4, 8 and so on: what happens again and again is told less and less often.
func seldom(n int) bool { return n&(n-1) == 0 }

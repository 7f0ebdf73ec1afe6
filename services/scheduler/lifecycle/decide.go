package lifecycle

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Decide says which facts a command makes true now. No facts and no error means that it changes nothing: it was a
// repeat, or came too late to matter. The error is a *Refusal. The state is not changed; every value decided is in the
// facts.
func Decide(s *cell.State, c Command, now int64, p Policy) ([]*weftv1.Fact, error) {
	d := &decision{s: s.Overlay(), now: max(now, s.TimeNS()), p: p}
	var refusal *Refusal
	switch c := c.(type) {
	case Submit:
		refusal = d.submit(c)
	case Cancel:
		refusal = d.cancel(c)
	case ApplyQueues:
		refusal = d.applyQueues(c)
	case Cordon:
		refusal = d.cordon(c)
	case ShutDown:
		for _, j := range d.active() {
			d.stop(j.ID, cause(weftv1.CauseKind_CAUSE_KIND_SHUTDOWN, "", "the fabric was shut down"), "")
		}
	case Report:
		refusal = d.report(c.Report)
	case Checkpointed:
		d.checkpointed(c)
	case Silent:
		d.silent(c.Node)
	case Back:
		if n := d.s.Node(c.Node); n != nil && n.Condition == cell.Silent {
			d.emit(weftv1.Fact_builder{NodeBack: weftv1.NodeBack_builder{Node: &c.Node}.Build()})
		}
	case TakeOver:
		d.takeOver()
	case Place:
		refusal = d.place(c)
	case Evict:
		refusal = d.evict(c.Evict)
	case Claim:
		refusal = d.claim(c)
	case Tick:
		d.tick()
	default:
		refusal = cell.Refuse(cell.CodeInvalid, "", "unknown command %T", c)
	}
	if refusal != nil {
		return nil, refusal
	}
	return d.facts, nil
}

// decision collects the facts of one command. Each is folded at once into an overlay, so that what follows sees it.
type decision struct {
	s     *cell.State
	now   int64
	p     Policy
	facts []*weftv1.Fact
}

func (d *decision) emit(b weftv1.Fact_builder) {
	f := b.Build()
	cell.Evolve(d.s, f, d.now)
	d.facts = append(d.facts, f)
}

// active lists the active jobs; a list, because what is done with them changes the state.
func (d *decision) active() []*cell.Job {
	var out []*cell.Job
	for j := range d.s.ActiveJobs() {
		out = append(out, j)
	}
	return out
}

func (d *decision) onNode(node string) []*cell.Job {
	var out []*cell.Job
	for j := range d.s.OnNode(node) {
		out = append(out, j)
	}
	return out
}

func (d *decision) submit(c Submit) *Refusal {
	existing, refusal := cell.CheckSubmit(d.s, c.Tenant, c.Job, c.Spec, c.SpecHash)
	if refusal != nil || existing != nil {
		return refusal
	}
	if most := jobspec.MaxGrace(d.p.Fence); d.p.Fence > 0 && d.p.grace(c.Spec) > int64(most) {
		return cell.Refuse(cell.CodeGrace, "spec.checkpoint.grace", "grace must be at most %s, half of the cell's fence: a machine out of contact must be able to stop its ranks in time", most)
	}
	d.emit(weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{
		Job: &c.Job, Tenant: &c.Tenant, Spec: c.Spec, SpecHash: &c.SpecHash, By: some(c.By), Traceparent: some(c.Traceparent),
	}.Build()})
	return nil
}

func (d *decision) cancel(c Cancel) *Refusal {
	j := d.s.Job(c.Job)
	if a, ok := d.s.Archived(c.Job); ok && (c.Tenant == "" || a.Tenant == c.Tenant) {
		return cell.Refuse(cell.CodeEnded, "", "job %s %s already and is archived", c.Job, a.Phase)
	}
	switch {
	case j == nil || (c.Tenant != "" && j.Tenant != c.Tenant):
		return cell.Refuse(cell.CodeNotFound, "", "no job %s; list yours with `weft ps`", c.Job)
	case j.Phase.Ended():
		if j.Phase == cell.Cancelled {
			return nil
		}
		return cell.Refuse(cell.CodeEnded, "", "job %s %s already", c.Job, j.Phase)
	case j.Cancel:
		return nil
	case j.Attempt == nil:
		d.void(j.ID, "the job was cancelled")
		d.emit(weftv1.Fact_builder{JobCancelled: weftv1.JobCancelled_builder{Job: &j.ID, By: some(c.By)}.Build()})
		return nil
	}
	d.stop(j.ID, cause(weftv1.CauseKind_CAUSE_KIND_CANCELLED, "", "cancelled by "+orSomebody(c.By)), c.By)
	return nil
}

func orSomebody(by string) string {
	if by == "" {
		return "somebody"
	}
	return by
}

// void ends a job's claim, if it has one, by a named event.
func (d *decision) void(job, reason string) {
	if d.s.Claim(job) != nil {
		d.emit(weftv1.Fact_builder{ClaimVoided: weftv1.ClaimVoided_builder{Job: &job, Reason: &reason}.Build()})
	}
}

func (d *decision) applyQueues(c ApplyQueues) *Refusal {
	for _, q := range leavesGoFirst(c.Queues) {
		if why := jobspec.CheckQueue(q.GetQueue()); why != "" {
			return cell.Refuse(cell.CodeInvalid, "queue", "queue: %s", why)
		}
		if q.GetWeight() < 0 {
			return cell.Refuse(cell.CodeInvalid, "weight", "queue %s: a weight is 0 or more", q.GetQueue())
		}
		if q.GetRemoved() {
			if r := d.removable(q.GetQueue()); r != nil {
				return r
			}
		} else {
			for up := cell.Parent(q.GetQueue()); up != ""; up = cell.Parent(up) {
				if d.s.Queue(up) == nil && !names(c.Queues, up) {
					d.emit(weftv1.Fact_builder{QueueSet: weftv1.QueueSet_builder{Queue: &up, Weight: new(int64(1))}.Build()})
				}
			}
		}
		old := d.s.Queue(q.GetQueue())
		if (old == nil && q.GetRemoved()) || (old != nil && proto.Equal(old.Set, q)) {
			continue
		}
		d.emit(weftv1.Fact_builder{QueueSet: q})
	}
	return nil
}

// leavesGoFirst puts removals last, and each queue's before that of the queue above it.
func leavesGoFirst(qs []*weftv1.QueueSet) []*weftv1.QueueSet {
	qs = slices.Clone(qs)
	slices.SortStableFunc(qs, func(a, b *weftv1.QueueSet) int {
		switch {
		case a.GetRemoved() != b.GetRemoved() && a.GetRemoved():
			return 1
		case a.GetRemoved() != b.GetRemoved():
			return -1
		case a.GetRemoved():
			return strings.Count(b.GetQueue(), "/") - strings.Count(a.GetQueue(), "/")
		}
		return 0
	})
	return qs
}

func names(qs []*weftv1.QueueSet, path string) bool {
	for _, q := range qs {
		if q.GetQueue() == path && !q.GetRemoved() {
			return true
		}
	}
	return false
}

func (d *decision) removable(path string) *Refusal {
	if t := cell.QueueTotals(d.s, path); t.Active+t.Waiting > 0 {
		return cell.Refuse(cell.CodeInUse, "queue", "queue %s has %d live jobs; cancel them first", path, t.Active+t.Waiting)
	}
	for q := range d.s.Queues() {
		if strings.HasPrefix(q.Path, path+"/") {
			return cell.Refuse(cell.CodeInUse, "queue", "queue %s is above %s; remove that first", path, q.Path)
		}
	}
	return nil
}

func (d *decision) checkpointed(c Checkpointed) {
	j := d.s.Job(c.Job)
	if j == nil || j.Phase.Ended() {
		return
	}
	known := false
	for _, r := range j.Saves {
		known = known || r.GetSave() == c.Save.GetSave()
	}
	if known == c.Voided {
		d.emit(weftv1.Fact_builder{JobCheckpointed: weftv1.JobCheckpointed_builder{Job: &c.Job, Save: c.Save, Voided: some(c.Voided)}.Build()})
	}
}

// some leaves out what says nothing.
func some[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func cause(k weftv1.CauseKind, node, message string) *weftv1.Cause {
	return weftv1.Cause_builder{Kind: &k, Node: some(node), Message: some(message)}.Build()
}

package lifecycle

import (
	"fmt"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// current is the job and its attempt, if that is the one of this number and holds a place on the node.
func (d *decision) current(job string, attempt uint32, node string) (*cell.Job, *cell.Attempt) {
	j := d.s.Job(job)
	if j == nil || j.Attempt == nil || j.Attempt.Number != attempt || !j.Attempt.Holds(node) {
		return nil, nil
	}
	return j, j.Attempt
}

// started: every rank of the attempt on this node runs.
func (d *decision) started(job string, attempt uint32, node string) {
	j, a := d.current(job, attempt, node)
	if j == nil || a.Stopping || a.HasStarted(node) {
		return
	}
	d.emit(weftv1.Fact_builder{NodeStarted: weftv1.NodeStarted_builder{Job: &job, Attempt: &attempt, Node: &node}.Build()})
	j = d.s.Job(job)
	if j.Phase == cell.Starting && len(j.Attempt.Started) == len(j.Attempt.Nodes()) {
		d.emit(weftv1.Fact_builder{AttemptRunning: weftv1.AttemptRunning_builder{Job: &job, Attempt: &attempt}.Build()})
	}
}

// fail ends the job's attempt because these ranks failed. If it is ending already, a better cause that comes soon
// enough replaces the first one.
func (d *decision) fail(job string, c *weftv1.Cause, ranks []uint32) {
	j := d.s.Job(job)
	if j == nil || j.Attempt == nil {
		return
	}
	a := j.Attempt
	if a.Stopping && (d.now-j.PhaseSince > int64(d.p.CauseWindow) || !better(c, a.Cause)) {
		return
	}
	d.emit(weftv1.Fact_builder{RanksFailed: weftv1.RanksFailed_builder{
		Job: &job, Attempt: &a.Number, Ranks: ranks, Cause: c,
	}.Build()})
	d.stop(job, c, "")
}

// stop asks an attempt to end. One that is ending keeps its cause; a person's cancel is noted beside it.
func (d *decision) stop(job string, c *weftv1.Cause, by string) {
	j := d.s.Job(job)
	if j == nil || j.Attempt == nil {
		return
	}
	cancel := c.GetKind() == weftv1.CauseKind_CAUSE_KIND_CANCELLED
	if j.Attempt.Stopping && !cancel {
		return
	}
	killAt := d.now + d.p.grace(j.Spec)
	if j.Attempt.Stopping {
		killAt = j.Attempt.KillAt
	}
	d.emit(weftv1.Fact_builder{AttemptStopping: weftv1.AttemptStopping_builder{
		Job: &job, Attempt: &j.Attempt.Number, Cause: c, KillAtNs: &killAt, By: some(by),
	}.Build()})
	d.settle(job)
}

// released: this node holds nothing of the attempt any more.
func (d *decision) released(job string, attempt uint32, node string, completed bool) {
	fact := weftv1.Fact_builder{Released: weftv1.Released_builder{
		Job: &job, Attempt: &attempt, Node: &node, Completed: some(completed),
	}.Build()}
	j, a := d.current(job, attempt, node)
	if j == nil {
		if n := d.s.Node(node); n != nil {
			for _, st := range n.Strays {
				if st.Job == job && st.Attempt == attempt {
					d.emit(fact)
				}
			}
		}
		return
	}
	if !a.Stopping {
		if completed {
			d.started(job, attempt, node) // it ran, even if the report of its start was lost with an agent
		} else {
			// No rank failed, and nobody here asked: the agent stopped them itself, being out of contact for too long.
			c := cause(weftv1.CauseKind_CAUSE_KIND_NODE_LOST, node, "out of contact, the node stopped its ranks")
			d.fail(job, c, a.RanksOn(node))
		}
	}
	d.emit(fact)
	d.settle(job)
}

// settle ends an attempt that no node holds any more, and says what becomes of the job.
func (d *decision) settle(job string) {
	j := d.s.Job(job)
	if j == nil || j.Attempt == nil || len(j.Attempt.Released) < len(j.Attempt.Nodes()) {
		return
	}
	a := j.Attempt
	ended := weftv1.AttemptEnded_builder{Job: &job, Attempt: &a.Number}
	if len(a.Completed) == len(a.Nodes()) {
		d.emit(weftv1.Fact_builder{AttemptEnded: ended.Build()})
		d.emit(weftv1.Fact_builder{JobSucceeded: weftv1.JobSucceeded_builder{Job: &job}.Build()})
		return
	}
	c := a.Cause
	ended.Cause = c
	d.emit(weftv1.Fact_builder{AttemptEnded: ended.Build()})
	kind := c.GetKind()
	switch {
	case j.Cancel:
		d.emit(weftv1.Fact_builder{JobCancelled: weftv1.JobCancelled_builder{Job: &job, By: some(j.CancelBy)}.Build()})
	case kind == weftv1.CauseKind_CAUSE_KIND_LIMIT:
		d.failed(job, c, c.GetMessage())
	case !Charged(kind):
		d.requeue(j, c, false)
	case j.Restarts >= d.p.restarts(j.Spec):
		d.failed(job, c, cell.Describe(c)+"; "+used(d.p.restarts(j.Spec)))
	default:
		d.requeue(j, c, true)
	}
}

func used(restarts uint32) string {
	switch restarts {
	case 0:
		return "restart.max is 0"
	case 1:
		return "its one restart is used"
	}
	return fmt.Sprintf("all %d restarts are used", restarts)
}

func (d *decision) failed(job string, c *weftv1.Cause, reason string) {
	d.emit(weftv1.Fact_builder{JobFailed: weftv1.JobFailed_builder{Job: &job, Cause: c, Reason: &reason}.Build()})
}

func (d *decision) requeue(j *cell.Job, c *weftv1.Cause, charged bool) {
	wait := int64(0)
	switch {
	case charged:
		wait = d.p.backoff(j.Spec, j.Restarts)
	case c.GetKind() == weftv1.CauseKind_CAUSE_KIND_PORT_BUSY:
		wait = int64(d.p.PortBackoff)
	}
	q := weftv1.JobRequeued_builder{Job: &j.ID, Cause: c, Charged: some(charged)}
	q.Degraded = some(c.GetKind() != weftv1.CauseKind_CAUSE_KIND_EVICTED)
	if wait > 0 {
		q.NotBeforeNs = new(d.now + wait)
	}
	d.emit(weftv1.Fact_builder{JobRequeued: q.Build()})
}

package api

import (
	"fmt"
	"time"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// jobRow is a job as listings show it: without spec and manifest. It shares messages with the state, which never
// changes them.
func jobRow(st *cell.State, j *cell.Job, now int64) apiv1.Job_builder {
	b := apiv1.Job_builder{
		Id: &j.ID, Name: new(j.Spec.GetName()), Queue: new(j.Spec.GetQueue()), Tenant: &j.Tenant,
		Phase: new(string(j.Phase)), Reason: new(reason(j, now)), SubmittedNs: &j.Submitted, PhaseSinceNs: &j.PhaseSince,
		Attempt: &j.Attempts, Restarts: &j.Restarts, Cause: j.Cause, Degraded: &j.Degraded,
		GpuNs: new(j.GPUNanos), GpuLostNs: new(j.GPULost),
	}
	if j.Ended != 0 {
		b.EndedNs = &j.Ended
	}
	if n := len(j.Saves); n > 0 {
		b.NewestSave = j.Saves[n-1]
	}
	if a := j.Attempt; a != nil {
		b.Ranks, b.Placements, b.ResumeFrom = &a.Size, a.Placements, a.ResumeFrom
		for _, p := range a.Placements {
			n := st.Node(p.GetNode())
			if n != nil && n.Inventory.GetSimulated() {
				b.Simulated = new(true)
			}
			if a.Holds(p.GetNode()) { // what was released is counted already
				*b.GpuNs += int64(len(p.GetDevices())) * p.GetMilli() * (max(0, now-a.Placed) / 1000)
			}
		}
	} else {
		var least uint32
		for _, g := range j.Spec.GetGroups() {
			lo, _ := jobspec.Size(g)
			least += lo
		}
		b.Ranks = &least
	}
	return b
}

// jobView is a job with everything.
func jobView(st *cell.State, j *cell.Job, now int64) *apiv1.Job {
	b := jobRow(st, j, now)
	b.Spec = j.Spec
	b.Manifest = new(jobspec.Format(j.Spec, j.ID))
	return b.Build()
}

// pendingJob is a job that the ledger does not know (yet).
func pendingJob(id string, spec *weftv1.JobSpec) *apiv1.Job {
	return apiv1.Job_builder{
		Id: &id, Name: new(spec.GetName()), Queue: new(spec.GetQueue()), Tenant: new(jobspec.Tenant(spec.GetQueue())),
		Spec: spec, Manifest: new(jobspec.Format(spec, id)),
	}.Build()
}

// reason says in one line why a job is where it is.
func reason(j *cell.Job, now int64) string {
	cause := cell.Describe(j.Cause)
	if j.Attempt != nil && j.Attempt.Cause != nil {
		cause = cell.Describe(j.Attempt.Cause)
	}
	switch j.Phase {
	case cell.Queued:
		if j.Degraded && cause != "" {
			return "lost its place (" + cause + ") and waits for another, before its queue's others; see: weft explain " + j.ID
		}
		return "waits for a place; see: weft explain " + j.ID
	case cell.Starting:
		return fmt.Sprintf("%d of %d nodes have started their ranks", len(j.Attempt.Started), len(j.Attempt.Nodes()))
	case cell.Stopping:
		if j.Cancel {
			return "cancelled by " + j.CancelBy + "; its ranks are being ended"
		}
		return "its ranks are being ended: " + cause
	case cell.Backoff:
		wait := time.Duration(max(0, j.NotBefore-now)).Round(time.Second)
		return fmt.Sprintf("starts again in %v, after: %s", wait, cause)
	case cell.Failed:
		if j.Reason != "" {
			return j.Reason
		}
		return cause
	case cell.Cancelled:
		return "cancelled by " + j.CancelBy
	}
	return j.Reason
}

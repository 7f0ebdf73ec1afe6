package cell

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Evolve folds one fact that became true at a ledger time. It is total: a fact that does not fit (of an older attempt,
// of an unknown job, an illegal move) has no effect, the same on every reader.
func Evolve(s *State, f *weftv1.Fact, at int64) {
	s.edit = new(token)
	s.evolve(f, at)
}

// evolve says whether this version knows the kind of the fact.
func (s *State) evolve(f *weftv1.Fact, at int64) bool {
	s.time = max(s.time, at)
	switch f.WhichKind() {
	case weftv1.Fact_QueueSet_case:
		s.queueSet(f.GetQueueSet())
	case weftv1.Fact_JobSubmitted_case:
		s.jobSubmitted(f.GetJobSubmitted(), at)
	case weftv1.Fact_JobPlaced_case:
		s.jobPlaced(f.GetJobPlaced(), at)
	case weftv1.Fact_NodeStarted_case:
		e := f.GetNodeStarted()
		s.attempt(e.GetJob(), e.GetAttempt(), func(_ *Job, a *Attempt) bool {
			if !inSorted(a.nodes, e.GetNode()) {
				return false
			}
			a.Started = withSorted(a.Started, e.GetNode())
			return true
		})
	case weftv1.Fact_AttemptRunning_case:
		e := f.GetAttemptRunning()
		s.attempt(e.GetJob(), e.GetAttempt(), func(j *Job, a *Attempt) bool {
			a.RunningAt = at
			return j.move(Running, at)
		})
	case weftv1.Fact_RanksFailed_case:
		e := f.GetRanksFailed()
		s.attempt(e.GetJob(), e.GetAttempt(), func(_ *Job, a *Attempt) bool {
			a.Cause = e.GetCause()
			return true
		})
	case weftv1.Fact_AttemptStopping_case:
		s.attemptStopping(f.GetAttemptStopping(), at)
	case weftv1.Fact_Released_case:
		s.released(f.GetReleased(), at)
	case weftv1.Fact_AttemptEnded_case:
		s.attemptEnded(f.GetAttemptEnded(), at)
	case weftv1.Fact_JobCheckpointed_case:
		s.checkpointed(f.GetJobCheckpointed(), at)
	case weftv1.Fact_JobRequeued_case:
		s.requeued(f.GetJobRequeued(), at)
	case weftv1.Fact_JobSucceeded_case:
		s.endJob(f.GetJobSucceeded().GetJob(), Succeeded, at, func(j *Job) { j.Cause = nil })
	case weftv1.Fact_JobFailed_case:
		e := f.GetJobFailed()
		s.endJob(e.GetJob(), Failed, at, func(j *Job) { j.Cause, j.Reason = e.GetCause(), e.GetReason() })
	case weftv1.Fact_JobCancelled_case:
		e := f.GetJobCancelled()
		s.endJob(e.GetJob(), Cancelled, at, func(j *Job) { j.Cancel, j.CancelBy = true, e.GetBy() })
	case weftv1.Fact_JobsArchived_case:
		s.archive(f.GetJobsArchived(), at)
	case weftv1.Fact_ClaimMade_case:
		e := f.GetClaimMade()
		if j, ok := s.live.get(e.GetJob()); ok && j.Waiting() {
			nodes := slices.Sorted(slices.Values(e.GetNodes()))
			s.putClaim(e.GetJob(), &Claim{Job: e.GetJob(), Nodes: slices.Compact(nodes), Expires: e.GetExpiresNs()})
		}
	case weftv1.Fact_ClaimVoided_case:
		s.putClaim(f.GetClaimVoided().GetJob(), nil)
	case weftv1.Fact_UsageSampled_case:
		for _, u := range f.GetUsageSampled().GetUsage() {
			s.sampled.set(s.edit, u.GetQueue(), u.GetGpuMilliSeconds())
		}
	case weftv1.Fact_JobEvicted_case, weftv1.Fact_PoolScaleRequested_case, weftv1.Fact_InputRejected_case:
		// Said for readers of events; the facts beside them in the commit carry the change.
	default:
		return s.evolveNode(f)
	}
	return true
}

func (s *State) evolveNode(f *weftv1.Fact) bool {
	switch f.WhichKind() {
	case weftv1.Fact_NodeJoined_case:
		e := f.GetNodeJoined()
		s.node(e.GetNode(), true, func(n *Node) {
			n.BootID, n.Condition, n.LostAt, n.Strays = e.GetBootId(), Ready, 0, nil
			for _, st := range e.GetStrays() {
				n.Strays = append(n.Strays, Stray{Job: st.GetJob(), Attempt: st.GetAttempt()})
			}
		})
	case weftv1.Fact_NodeInventory_case:
		e := f.GetNodeInventory()
		s.node(e.GetNode(), false, func(n *Node) { n.Generation, n.Inventory = e.GetGeneration(), e.GetInventory() })
	case weftv1.Fact_NodeSilent_case:
		e := f.GetNodeSilent()
		s.node(e.GetNode(), false, func(n *Node) {
			if n.Condition != Lost {
				n.Condition, n.LostAt = Silent, e.GetLostAtNs()
			}
		})
	case weftv1.Fact_NodeBack_case:
		s.node(f.GetNodeBack().GetNode(), false, func(n *Node) {
			if n.Condition == Silent {
				n.Condition, n.LostAt = Ready, 0
			}
		})
	case weftv1.Fact_NodeLost_case:
		s.node(f.GetNodeLost().GetNode(), false, func(n *Node) { n.Condition, n.LostAt = Lost, 0 })
	case weftv1.Fact_NodeCordoned_case:
		e := f.GetNodeCordoned()
		s.node(e.GetNode(), false, func(n *Node) {
			n.Cordoned, n.Draining, n.CordonReason = true, e.GetDrain(), e.GetReason()
		})
	case weftv1.Fact_NodeUncordoned_case:
		s.node(f.GetNodeUncordoned().GetNode(), false, func(n *Node) {
			n.Cordoned, n.Draining, n.CordonReason = false, false, ""
		})
	case weftv1.Fact_DeviceFailed_case:
		e := f.GetDeviceFailed()
		s.health(e.GetNode(), e.GetDevice(), weftv1.DeviceHealth_DEVICE_HEALTH_FAILED, e.GetReason())
	case weftv1.Fact_DeviceRecovered_case:
		e := f.GetDeviceRecovered()
		s.health(e.GetNode(), e.GetDevice(), weftv1.DeviceHealth_DEVICE_HEALTH_OK, "")
	default:
		return false
	}
	return true
}

func (s *State) queueSet(e *weftv1.QueueSet) {
	if e.GetRemoved() {
		s.queues.del(s.edit, e.GetQueue())
		return
	}
	s.queues.set(s.edit, e.GetQueue(), &Queue{Path: e.GetQueue(), Set: e})
}

func (s *State) jobSubmitted(e *weftv1.JobSubmitted, at int64) {
	if s.Job(e.GetJob()) != nil || s.archived.has(e.GetJob()) {
		return
	}
	s.put(nil, &Job{
		ID: e.GetJob(), Tenant: e.GetTenant(), Spec: e.GetSpec(), SpecHash: e.GetSpecHash(), By: e.GetBy(),
		Traceparent: e.GetTraceparent(), Phase: Queued, Submitted: at, PhaseSince: at,
	})
}

func (s *State) jobPlaced(e *weftv1.JobPlaced, at int64) {
	s.job(e.GetJob(), func(j *Job) bool {
		if e.GetAttempt() != j.Attempts+1 || !j.move(Starting, at) {
			return false
		}
		j.Attempts, j.Degraded, j.NotBefore = e.GetAttempt(), false, 0
		j.Attempt = &Attempt{
			Number: e.GetAttempt(), Placements: e.GetPlacements(), Size: e.GetSize(), MasterAddress: e.GetMasterAddress(),
			MasterPort: e.GetMasterPort(), Placed: at, nodes: nodesOf(e.GetPlacements()),
		}
		if e.HasResumeFrom() {
			j.Attempt.ResumeFrom = e.GetResumeFrom()
		}
		return true
	})
	if j := s.Job(e.GetJob()); j != nil && !j.Waiting() {
		s.putClaim(e.GetJob(), nil)
	}
}

func nodesOf(ps []*weftv1.Placement) []string {
	out := make([]string, 0, len(ps))
	for _, p := range ps {
		out = append(out, p.GetNode())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (s *State) attemptStopping(e *weftv1.AttemptStopping, at int64) {
	s.attempt(e.GetJob(), e.GetAttempt(), func(j *Job, a *Attempt) bool {
		if !a.Stopping {
			if !j.move(Stopping, at) {
				return false
			}
			a.Stopping, a.KillAt = true, e.GetKillAtNs()
		}
		a.KillAt = min(a.KillAt, e.GetKillAtNs())
		if a.Cause == nil {
			a.Cause = e.GetCause()
		}
		if e.GetCause().GetKind() == weftv1.CauseKind_CAUSE_KIND_CANCELLED {
			j.Cancel, j.CancelBy = true, e.GetBy()
		}
		return true
	})
}

func (s *State) released(e *weftv1.Released, at int64) {
	s.node(e.GetNode(), false, func(n *Node) {
		st := Stray{Job: e.GetJob(), Attempt: e.GetAttempt()}
		n.Strays = slices.DeleteFunc(slices.Clone(n.Strays), func(o Stray) bool { return o == st })
	})
	s.attempt(e.GetJob(), e.GetAttempt(), func(j *Job, a *Attempt) bool {
		if !a.Holds(e.GetNode()) {
			return false
		}
		a.Released = withSorted(a.Released, e.GetNode())
		if e.GetCompleted() {
			a.Completed = withSorted(a.Completed, e.GetNode())
		}
		j.GPUNanos += cards(a.Placements, e.GetNode(), at-a.Placed)
		return true
	})
}

// cards is the card-time of an attempt's placements on a node ("" = all nodes) over a span.
func cards(ps []*weftv1.Placement, node string, span int64) int64 {
	var milli int64
	for _, p := range ps {
		if node == "" || p.GetNode() == node {
			milli += int64(len(p.GetDevices())) * p.GetMilli()
		}
	}
	return milli * (span / 1000)
}

func (s *State) attemptEnded(e *weftv1.AttemptEnded, at int64) {
	s.attempt(e.GetJob(), e.GetAttempt(), func(j *Job, a *Attempt) bool {
		for _, node := range a.nodes {
			if !inSorted(a.Released, node) {
				j.GPUNanos += cards(a.Placements, node, at-a.Placed)
			}
		}
		if e.HasCause() {
			j.Cause = e.GetCause()
			since := a.Placed
			if a.SavedAt != 0 {
				since = a.SavedAt
			}
			until := at
			if a.Stopping {
				until = j.PhaseSince
			}
			if k := e.GetCause().GetKind(); k != weftv1.CauseKind_CAUSE_KIND_CANCELLED && k != weftv1.CauseKind_CAUSE_KIND_LIMIT {
				j.GPULost += cards(a.Placements, "", max(until-since, 0))
			}
		}
		j.Attempt = nil
		return true
	})
}

func (s *State) checkpointed(e *weftv1.JobCheckpointed, at int64) {
	ref := e.GetSave()
	s.job(e.GetJob(), func(j *Job) bool {
		saves := slices.DeleteFunc(slices.Clone(j.Saves), func(r *weftv1.SaveRef) bool { return r.GetSave() == ref.GetSave() })
		if !e.GetVoided() {
			i, _ := slices.BinarySearchFunc(saves, ref, newer)
			saves = slices.Insert(saves, i, ref)
			if len(saves) > keepSaves {
				saves = saves[len(saves)-keepSaves:]
			}
			if a := j.Attempt; a != nil && a.Number == ref.GetAttempt() {
				c := *a
				c.SavedAt = at
				j.Attempt = &c
			}
		}
		j.Saves = saves
		return true
	})
}

// keepSaves bounds what the state remembers of one job's saves; the checkpoint log knows them all.
const keepSaves = 32

// newer orders saves by attempt and step; at the same step a full one is the newer.
func newer(a, b *weftv1.SaveRef) int {
	return cmp.Or(cmp.Compare(a.GetAttempt(), b.GetAttempt()), cmp.Compare(a.GetStep(), b.GetStep()),
		cmp.Compare(a.GetClass(), b.GetClass()), cmp.Compare(a.GetSave(), b.GetSave()))
}

func (s *State) requeued(e *weftv1.JobRequeued, at int64) {
	s.job(e.GetJob(), func(j *Job) bool {
		to := Queued
		if e.GetNotBeforeNs() != 0 {
			to = Backoff
		}
		if j.Attempt != nil || !j.move(to, at) {
			return false
		}
		j.NotBefore = e.GetNotBeforeNs()
		j.Degraded = j.Degraded || e.GetDegraded()
		if e.GetCharged() {
			j.Restarts++
		}
		if e.HasCause() {
			j.Cause = e.GetCause()
		}
		return true
	})
}

func (s *State) endJob(id string, to Phase, at int64, with func(*Job)) {
	s.job(id, func(j *Job) bool {
		if j.Attempt != nil || !j.move(to, at) {
			return false
		}
		j.Ended, j.NotBefore, j.Degraded = at, 0, false
		with(j)
		return true
	})
	if j := s.Job(id); j == nil || j.Phase.Ended() {
		s.putClaim(id, nil)
	}
}

func (s *State) archive(e *weftv1.JobsArchived, at int64) {
	for _, id := range e.GetJobs() {
		j, ok := s.ended.get(id)
		if !ok {
			continue
		}
		s.put(j, nil)
		s.archived.set(s.edit, id, Archived{
			SpecHash: j.SpecHash, Phase: j.Phase, Ended: j.Ended, Tenant: j.Tenant, Queue: j.Queue(), Name: j.Spec.GetName(),
		})
		s.forget.set(s.edit, timeKey(j.Ended, id), struct{}{})
	}
	var old []string
	for k := range s.forget.from("") {
		if keyTime(k) >= at-KeepArchived {
			break
		}
		old = append(old, k)
	}
	for _, k := range old {
		s.forget.del(s.edit, k)
		s.archived.del(s.edit, k[8:])
	}
}

// job changes a live job through a copy; the change is dropped if with returns false.
func (s *State) job(id string, with func(*Job) bool) {
	old, ok := s.live.get(id)
	if !ok {
		return
	}
	j := *old
	if with(&j) {
		s.put(old, &j)
	}
}

// attempt changes the current attempt of a job through a copy, if it has that number.
func (s *State) attempt(id string, number uint32, with func(*Job, *Attempt) bool) {
	s.job(id, func(j *Job) bool {
		if j.Attempt == nil || j.Attempt.Number != number {
			return false
		}
		a := *j.Attempt
		before := j.Attempt
		j.Attempt = &a
		if !with(j, &a) {
			j.Attempt = before
			return false
		}
		return true
	})
}

// move takes the job to a phase, if the table allows it.
func (j *Job) move(to Phase, at int64) bool {
	if !Allowed(j.Phase, to) {
		return false
	}
	j.Phase, j.PhaseSince = to, at
	return true
}

// node changes a node through a copy, or makes it.
func (s *State) node(name string, create bool, with func(*Node)) {
	old, ok := s.nodes.get(name)
	if !ok && !create {
		return
	}
	n := Node{Name: name}
	if ok {
		n = *old
	}
	with(&n)
	s.putNode(old, &n)
}

func (s *State) health(node string, device uint32, h weftv1.DeviceHealth, reason string) {
	s.node(node, false, func(n *Node) {
		if int(device) >= len(n.Inventory.GetDevices()) {
			return
		}
		inv := proto.CloneOf(n.Inventory)
		d := inv.GetDevices()[device]
		d.SetHealth(h)
		d.SetHealthReason(reason)
		n.Inventory = inv
	})
}

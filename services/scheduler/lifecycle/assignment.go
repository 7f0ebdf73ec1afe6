package lifecycle

import (
	"slices"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Assignment is everything that a node should be doing, as of a ledger sequence: each attempt that holds a place on it
// and was not released there, in order of job.
func Assignment(s *cell.State, node string, seq uint64) *weftv1.Assignment {
	out := weftv1.Assignment_builder{Node: &node, LedgerSeq: &seq}
	if n := s.Node(node); n != nil {
		out.BootId = &n.BootID
	}
	for j := range s.OnNode(node) {
		out.Attempts = append(out.Attempts, assigned(j, node))
	}
	return out.Build()
}

func assigned(j *cell.Job, node string) *weftv1.AssignedAttempt {
	a := j.Attempt
	b := weftv1.AssignedAttempt_builder{
		Job: &j.ID, Attempt: &a.Number, Spec: new(jobspec.SpecKey(j.Spec)), Size: &a.Size,
		MasterAddress: &a.MasterAddress, MasterPort: &a.MasterPort, ResumeFrom: a.ResumeFrom, Restarts: some(j.Restarts),
		Tenant: &j.Tenant, Name: some(j.Spec.GetName()), Queue: new(j.Queue()),
	}
	for _, p := range a.Placements {
		b.Peers = append(b.Peers, weftv1.RankRange_builder{
			First: new(p.GetFirstRank()), Count: new(p.GetCount()), Address: new(p.GetAddress()), PortBase: new(p.GetPortBase()),
			Group: new(p.GetGroup()),
		}.Build())
		if p.GetNode() == node {
			b.Placements = append(b.Placements, p)
		}
	}
	if a.Stopping {
		b.Stop, b.KillAtNs = a.Cause, &a.KillAt
	}
	return b.Build()
}

// AssignedNodes are the nodes whose desired set a fact changes, given the state after it.
func AssignedNodes(s *cell.State, f *weftv1.Fact) []string {
	switch f.WhichKind() {
	case weftv1.Fact_JobPlaced_case:
		var out []string
		for _, p := range f.GetJobPlaced().GetPlacements() {
			out = append(out, p.GetNode())
		}
		slices.Sort(out)
		return slices.Compact(out)
	case weftv1.Fact_AttemptStopping_case:
		if j := s.Job(f.GetAttemptStopping().GetJob()); j != nil && j.Attempt != nil {
			return j.Attempt.Nodes()
		}
	case weftv1.Fact_Released_case:
		return []string{f.GetReleased().GetNode()}
	case weftv1.Fact_NodeJoined_case:
		return []string{f.GetNodeJoined().GetNode()}
	}
	return nil
}

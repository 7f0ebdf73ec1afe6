package lifecycle

import (
	"cmp"
	"errors"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// place starts a job's next attempt, the whole gang or nothing, after checking the place against this very state.
func (d *decision) place(c Place) *Refusal {
	j := d.s.Job(c.Start.GetJob())
	if j == nil {
		return cell.Refuse(cell.CodeNotFound, "", "no job %s", c.Start.GetJob())
	}
	if r := d.unclear(j); r != nil {
		return r
	}
	if err := cell.CheckPlacement(d.s, j, c.Start); err != nil {
		return infeasible(err)
	}
	ps, err := d.complete(j, c.Start.GetPlacements())
	if err != nil {
		return infeasible(err)
	}
	attempt := j.Attempts + 1
	head := ps[0]
	e := weftv1.JobPlaced_builder{
		Job: &j.ID, Attempt: &attempt, Placements: ps, Size: new(size(ps)), ResumeFrom: j.ResumeFrom(),
		MasterAddress: new(head.GetAddress()), MasterPort: new(head.GetPortBase() + head.GetCount()), Plan: some(c.Plan),
	}
	d.emit(weftv1.Fact_builder{JobPlaced: e.Build()})
	return nil
}

func infeasible(err error) *Refusal {
	var inf *cell.Infeasible
	if errors.As(err, &inf) {
		return cell.Refuse(cell.CodeInfeasible, inf.Filter, "%s", inf.Error())
	}
	return cell.Refuse(cell.CodeInfeasible, "", "%s", err)
}

func size(ps []*weftv1.Placement) (n uint32) {
	for _, p := range ps {
		n += p.GetCount()
	}
	return n
}

// complete returns the placements in rank order with what the plan left open: the address of each node, and ports for
// each rank and, beside rank 0, for the rendezvous.
func (d *decision) complete(j *cell.Job, ps []*weftv1.Placement) ([]*weftv1.Placement, error) {
	out := make([]*weftv1.Placement, len(ps))
	for i, p := range ps {
		out[i] = proto.CloneOf(p)
	}
	slices.SortFunc(out, func(a, b *weftv1.Placement) int { return cmp.Compare(a.GetFirstRank(), b.GetFirstRank()) })
	taken := map[string]cell.NodeFree{}
	for _, p := range out {
		n := d.s.Node(p.GetNode())
		if p.GetAddress() == "" {
			p.SetAddress(n.Inventory.GetAddress())
		}
		f, ok := taken[n.Name]
		if !ok {
			f = cell.Free(d.s, n)
			for _, q := range out {
				if q.GetNode() == n.Name && q.GetPortCount() > 0 {
					f.Ports = cell.WithoutPorts(f.Ports, q.GetPortBase(), q.GetPortCount())
				}
			}
		}
		if p.GetPortCount() == 0 {
			need := cell.PortsFor(p)
			all := cell.PortRange{Base: n.Inventory.GetPortBase(), Count: n.Inventory.GetPortCount()}
			base, found := f.FindPorts(all, need, j.Attempts)
			if !found {
				return nil, &cell.Infeasible{Filter: cell.FilterPorts, Node: n.Name, Message: "not enough free ports in a row"}
			}
			p.SetPortBase(base)
			p.SetPortCount(need)
			f.Ports = cell.WithoutPorts(f.Ports, base, need)
		}
		taken[n.Name] = f
	}
	return out, nil
}

// evict stops jobs so that another can start, and holds what they free for it.
func (d *decision) evict(e *weftv1.Evict) *Refusal {
	b := d.s.Job(e.GetBeneficiary())
	if b == nil || !b.Waiting() {
		return cell.Refuse(cell.CodeInfeasible, "beneficiary", "job %s does not wait for a place", e.GetBeneficiary())
	}
	nodes := slices.Clone(e.GetNodes())
	grace := int64(0)
	for _, id := range e.GetVictims() {
		v := d.s.Job(id)
		switch {
		case v == nil || v.Attempt == nil:
			return cell.Refuse(cell.CodeInfeasible, "victims", "job %s holds no place", id)
		case v.Attempt.Stopping:
			return cell.Refuse(cell.CodeInfeasible, "victims", "job %s is ending already", id)
		case v.Spec.HasPreemptible() && !v.Spec.GetPreemptible():
			return cell.Refuse(cell.CodeInfeasible, "victims", "job %s is not preemptible", id)
		}
		if len(e.GetNodes()) == 0 {
			nodes = append(nodes, v.Attempt.Nodes()...)
		}
		grace = max(grace, d.p.grace(v.Spec))
		d.emit(weftv1.Fact_builder{JobEvicted: weftv1.JobEvicted_builder{
			Job: &id, Attempt: &v.Attempt.Number, Beneficiary: &b.ID, Reason: some(e.GetReason()),
		}.Build()})
		d.stop(id, cause(weftv1.CauseKind_CAUSE_KIND_EVICTED, "", "evicted for job "+b.ID), "")
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	if r := d.claimable(b.ID, nodes); r != nil {
		return r
	}
	d.makeClaim(b.ID, nodes, grace+int64(d.p.EvictClaim))
	return nil
}

// claim holds nodes for a gang that was refused too often, so that small jobs cannot keep it out.
func (d *decision) claim(c Claim) *Refusal {
	j := d.s.Job(c.Job)
	if j == nil || !j.Waiting() {
		return cell.Refuse(cell.CodeInfeasible, "job", "job %s does not wait for a place", c.Job)
	}
	if r := d.claimable(c.Job, c.Nodes); r != nil {
		return r
	}
	d.makeClaim(c.Job, c.Nodes, int64(d.p.Claim))
	return nil
}

// claimable: the nodes exist, and none is held for another job.
func (d *decision) claimable(job string, nodes []string) *Refusal {
	for _, n := range nodes {
		if d.s.Node(n) == nil {
			return cell.Refuse(cell.CodeInfeasible, "nodes", "no node %s", n)
		}
	}
	for other := range d.s.Claims() {
		for _, n := range other.Nodes {
			if other.Job != job && slices.Contains(nodes, n) {
				return cell.Refuse(cell.CodeInfeasible, "nodes", "node %s is held for job %s", n, other.Job)
			}
		}
	}
	return nil
}

func (d *decision) makeClaim(job string, nodes []string, span int64) {
	if c := d.s.Claim(job); c != nil && c.Expires == d.now+span && slices.Equal(c.Nodes, nodes) {
		return
	}
	d.emit(weftv1.Fact_builder{ClaimMade: weftv1.ClaimMade_builder{Job: &job, Nodes: nodes, ExpiresNs: new(d.now + span)}.Build()})
}

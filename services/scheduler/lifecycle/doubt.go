package lifecycle

import (
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Doubt are the facts with which a ledger begins anew that lost its end or was put back from a backup: nodes may hold
// attempts that it no longer knows. Each node counts as one of an unknown boot. Its agent then says hello, with all that
// it holds; what the ledger does not know of that blocks the node until it is released.
func Doubt(s *cell.State) (out []*weftv1.Fact) {
	for n := range s.Nodes() {
		out = append(out, weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: &n.Name, BootId: proto.String("")}.Build()}.Build())
	}
	return out
}

// Doubted returns a node that has not said yet what it holds, or nil. While there is one nothing is placed: it may run the
// very attempt that would be started elsewhere. A lost node has killed its ranks.
func Doubted(s *cell.State) *cell.Node {
	for n := range s.Nodes() {
		if n.BootID == "" && n.Condition != cell.Lost {
			return n
		}
	}
	return nil
}

// unclear refuses a job that some node may be running as an attempt that the ledger has yet to number.
func (d *decision) unclear(j *cell.Job) *Refusal {
	if n := Doubted(d.s); n != nil {
		return cell.Refuse(cell.CodeInfeasible, cell.FilterStrays, "node %s has not said yet what it holds since the ledger lost its end; it may run this job", n.Name)
	}
	for n := range d.s.Nodes() {
		for _, st := range n.Strays {
			if st.Job == j.ID && st.Attempt > j.Attempts {
				return cell.Refuse(cell.CodeInfeasible, cell.FilterStrays, "node %s still holds attempt %d of it, which the ledger has lost", n.Name, st.Attempt)
			}
		}
	}
	return nil
}

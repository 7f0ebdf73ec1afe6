package lifecycle

import (
	"slices"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// silent: silence is not death; the node's ranks are left alone until the fence.
func (d *decision) silent(node string) {
	n := d.s.Node(node)
	if n == nil || n.Condition != cell.Ready {
		return
	}
	d.markSilent(node, int64(d.p.Fence))
}

func (d *decision) markSilent(node string, lostIn int64) {
	e := weftv1.NodeSilent_builder{Node: &node}
	if d.p.Fence > 0 {
		e.LostAtNs = new(d.now + lostIn)
	}
	d.emit(weftv1.Fact_builder{NodeSilent: e.Build()})
}

// takeOver moves deadlines that would pass before the new leader could have heard the node.
func (d *decision) takeOver() {
	var nodes []string
	for n := range d.s.Nodes() {
		if n.Condition == cell.Silent && n.LostAt != 0 && n.LostAt < d.now+int64(d.p.Silent) {
			nodes = append(nodes, n.Name)
		}
	}
	for _, n := range nodes {
		d.markSilent(n, int64(d.p.Silent))
	}
}

// lose: the fence has passed, so the node's agent has killed its ranks. What it held counts as released.
func (d *decision) lose(node string) {
	d.emit(weftv1.Fact_builder{NodeLost: weftv1.NodeLost_builder{Node: &node}.Build()})
	d.voidClaimsOn(node, "node "+node+" was lost")
	for _, j := range d.onNode(node) {
		a := j.Attempt
		if !a.Stopping {
			d.fail(j.ID, cause(weftv1.CauseKind_CAUSE_KIND_NODE_LOST, node, "the node was silent for longer than the fence"), a.RanksOn(node))
		}
		d.released(j.ID, a.Number, node, false)
	}
}

func (d *decision) voidClaimsOn(node, reason string) {
	var jobs []string
	for c := range d.s.Claims() {
		if slices.Contains(c.Nodes, node) {
			jobs = append(jobs, c.Job)
		}
	}
	for _, j := range jobs {
		d.void(j, reason)
	}
}

func (d *decision) cordon(c Cordon) *Refusal {
	n := d.s.Node(c.Node)
	switch {
	case n == nil:
		return cell.Refuse(cell.CodeNotFound, "node", "no node %s; list them with `weft nodes`", c.Node)
	case c.Undo && n.Cordoned:
		d.emit(weftv1.Fact_builder{NodeUncordoned: weftv1.NodeUncordoned_builder{Node: &c.Node, By: some(c.By)}.Build()})
		return nil
	case c.Undo || (n.Cordoned && n.Draining == c.Drain && n.CordonReason == c.Reason):
		return nil
	}
	d.emit(weftv1.Fact_builder{NodeCordoned: weftv1.NodeCordoned_builder{
		Node: &c.Node, By: some(c.By), Reason: some(c.Reason), Drain: some(c.Drain),
	}.Build()})
	d.voidClaimsOn(c.Node, "node "+c.Node+" was cordoned")
	if c.Drain {
		for _, j := range d.onNode(c.Node) {
			d.stop(j.ID, cause(weftv1.CauseKind_CAUSE_KIND_DRAINED, c.Node, "the node is being drained"), "")
		}
	}
	return nil
}

package lifecycle

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// report decides what an agent said. Statements of an older boot, of an attempt that is over, or made before are
// without effect: a report may be read any number of times.
func (d *decision) report(r *weftv1.Report) *Refusal {
	node := r.GetNode()
	if r.WhichKind() == weftv1.Report_Hello_case {
		return d.hello(r)
	}
	n := d.s.Node(node)
	if n == nil || n.BootID != r.GetBootId() {
		return nil
	}
	switch r.WhichKind() {
	case weftv1.Report_RanksStarted_case:
		e := r.GetRanksStarted()
		d.started(e.GetJob(), e.GetAttempt(), node)
	case weftv1.Report_RanksExited_case:
		e := r.GetRanksExited()
		if j, _ := d.current(e.GetJob(), e.GetAttempt(), node); j != nil {
			if c, ranks := firstExit(node, e.GetExits()); c != nil {
				d.fail(j.ID, c, ranks)
			}
		}
	case weftv1.Report_RanksHung_case:
		e := r.GetRanksHung()
		if j, _ := d.current(e.GetJob(), e.GetAttempt(), node); j != nil {
			c := cause(weftv1.CauseKind_CAUSE_KIND_HUNG, node, fmt.Sprintf("rank %d on %s told of step %d last, %v ago",
				e.GetRank(), node, e.GetStep(), time.Duration(e.GetSilentNs()).Round(time.Second)))
			c.SetRank(e.GetRank())
			c.SetTimeNs(r.GetTimeNs())
			d.fail(j.ID, c, []uint32{e.GetRank()})
		}
	case weftv1.Report_AttemptReleased_case:
		e := r.GetAttemptReleased()
		d.released(e.GetJob(), e.GetAttempt(), node, e.GetCompleted())
	case weftv1.Report_LaunchFailed_case:
		e := r.GetLaunchFailed()
		if j, a := d.current(e.GetJob(), e.GetAttempt(), node); j != nil {
			kind := e.GetKind()
			if rankOf(kind) < 0 {
				kind = weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED
			}
			c := cause(kind, node, e.GetMessage())
			c.SetTimeNs(r.GetTimeNs())
			d.fail(j.ID, c, a.RanksOn(node))
		}
	case weftv1.Report_DeviceFault_case:
		d.deviceFault(n, r.GetDeviceFault(), r.GetTimeNs())
	case weftv1.Report_RestoreFailed_case:
		d.restoreFailed(node, r.GetRestoreFailed(), r.GetTimeNs())
	default:
		return cell.Refuse(cell.CodeInvalid, "", "a report of node %s carries nothing this version knows; upgrade the scheduler", node)
	}
	return nil
}

// firstExit picks the exit that is nearest to the root: a signal before a code, then the earliest.
func firstExit(node string, exits []*weftv1.RankExit) (first *weftv1.Cause, ranks []uint32) {
	for _, e := range exits {
		k := weftv1.CauseKind_CAUSE_KIND_EXIT
		switch {
		case e.GetSignal() != 0:
			k = weftv1.CauseKind_CAUSE_KIND_SIGNAL
		case e.GetExitCode() == 0:
			continue
		}
		ranks = append(ranks, e.GetRank())
		c := weftv1.Cause_builder{
			Kind: &k, Node: &node, Rank: new(e.GetRank()), ExitCode: some(e.GetExitCode()), Signal: some(e.GetSignal()),
			Message: some(e.GetLastWords()), TimeNs: some(e.GetTimeNs()),
		}.Build()
		if first == nil || better(c, first) {
			first = c
		}
	}
	return first, ranks
}

func (d *decision) restoreFailed(node string, e *weftv1.RestoreFailed, at int64) {
	j, a := d.current(e.GetJob(), e.GetAttempt(), node)
	if j == nil {
		return
	}
	if a.ResumeFrom.GetSave() == e.GetSave() {
		d.checkpointed(Checkpointed{Job: j.ID, Save: a.ResumeFrom, Voided: true})
	}
	c := cause(weftv1.CauseKind_CAUSE_KIND_RESTORE_FAILED, node, e.GetMessage())
	c.SetTimeNs(at)
	d.fail(j.ID, c, a.RanksOn(node))
}

func (d *decision) deviceFault(n *cell.Node, e *weftv1.DeviceFault, at int64) {
	device, ok := deviceOf(n, e)
	if !ok {
		return
	}
	failed := n.Inventory.GetDevices()[device].GetHealth() == weftv1.DeviceHealth_DEVICE_HEALTH_FAILED
	d.deviceHealth(n.Name, device, failed, !e.GetRecovered(), e.GetReason(), at)
}

// deviceHealth notes that a device failed, and ends the attempts that use it, or that it recovered.
func (d *decision) deviceHealth(node string, device uint32, was, is bool, reason string, at int64) {
	if was && !is {
		d.emit(weftv1.Fact_builder{DeviceRecovered: weftv1.DeviceRecovered_builder{Node: &node, Device: &device}.Build()})
	}
	if was || !is {
		return
	}
	d.emit(weftv1.Fact_builder{DeviceFailed: weftv1.DeviceFailed_builder{Node: &node, Device: &device, Reason: some(reason)}.Build()})
	n := d.s.Node(node)
	for _, j := range d.onNode(node) {
		if ranks := ranksOnDevice(j, n, device); ranks != nil {
			c := cause(weftv1.CauseKind_CAUSE_KIND_DEVICE_FAULT, node, strings.TrimSuffix(fmt.Sprintf("device %d: %s", device, reason), ": "))
			c.SetRank(ranks[0])
			c.SetTimeNs(at)
			d.fail(j.ID, c, ranks)
		}
	}
}

// deviceOf finds the device that a fault means: by UUID, since indices change with the inventory.
func deviceOf(n *cell.Node, e *weftv1.DeviceFault) (uint32, bool) {
	devices := n.Inventory.GetDevices()
	if e.GetUuid() == "" {
		return e.GetDevice(), int(e.GetDevice()) < len(devices)
	}
	for i, dev := range devices {
		if dev.GetUuid() == e.GetUuid() {
			return uint32(i), true
		}
	}
	return 0, false
}

// ranksOnDevice are the ranks of the job's attempt that use a device of a node.
func ranksOnDevice(j *cell.Job, n *cell.Node, device uint32) (ranks []uint32) {
	for _, p := range j.Attempt.Placements {
		if p.GetNode() != n.Name || p.GetGeneration() != n.Generation || len(p.GetDevices()) == 0 {
			continue
		}
		each := len(p.GetDevices()) / int(max(p.GetCount(), 1))
		for i, dev := range p.GetDevices() {
			if rank := p.GetFirstRank() + uint32(i/max(each, 1)); dev == device && (len(ranks) == 0 || ranks[len(ranks)-1] != rank) {
				ranks = append(ranks, rank)
			}
		}
	}
	return ranks
}

// hello: an agent says what its machine is and what it holds. What it holds is the truth about the machine; an attempt
// that it never reported as started may simply not have reached it yet, and is not missed.
func (d *decision) hello(r *weftv1.Report) *Refusal {
	node, boot, h := r.GetNode(), r.GetBootId(), r.GetHello()
	if !jobspec.IsToken(node) || boot == "" {
		return cell.Refuse(cell.CodeInvalid, "node", "a hello of node %q, boot %q: a node's name is [a-z0-9-], at most 63 long, and it has a boot id", node, boot)
	}
	old := d.s.Node(node)
	held := map[cell.Stray]bool{}
	var strays []cell.Stray
	for _, x := range h.GetHeld() {
		st := cell.Stray{Job: x.GetJob(), Attempt: x.GetAttempt()}
		if j, _ := d.current(st.Job, st.Attempt, node); j == nil && !held[st] {
			strays = append(strays, st)
		}
		held[st] = true
	}
	doubted := old != nil && old.BootID == "" // see Doubt: not a reboot, what it still holds runs on
	reboot := old != nil && old.BootID != boot && !doubted
	if old == nil || reboot || doubted || old.Condition == cell.Lost || !sameStrays(old.Strays, strays) {
		d.join(node, boot, strays)
	}
	d.inventory(node, h.GetInventory())
	for _, j := range d.onNode(node) {
		a := j.Attempt
		switch {
		case reboot:
			d.fail(j.ID, cause(weftv1.CauseKind_CAUSE_KIND_REBOOT, node, "the node booted anew"), a.RanksOn(node))
		case a.HasStarted(node) && !held[cell.Stray{Job: j.ID, Attempt: a.Number}]:
			d.fail(j.ID, cause(weftv1.CauseKind_CAUSE_KIND_REBOOT, node, "the node's agent came back without the attempt"), a.RanksOn(node))
		}
	}
	return nil
}

func (d *decision) join(node, boot string, strays []cell.Stray) {
	e := weftv1.NodeJoined_builder{Node: &node, BootId: &boot}
	for _, st := range strays {
		e.Strays = append(e.Strays, weftv1.StrayAttempt_builder{Job: &st.Job, Attempt: &st.Attempt}.Build())
	}
	d.emit(weftv1.Fact_builder{NodeJoined: e.Build()})
}

func sameStrays(a, b []cell.Stray) bool {
	set := map[cell.Stray]bool{}
	for _, st := range a {
		set[st] = true
	}
	for _, st := range b {
		if !set[st] {
			return false
		}
	}
	return len(a) == len(b)
}

// inventory records what the machine is. Placements name devices by index, so a changed device list is a new
// generation; health, labels and versions change within one.
func (d *decision) inventory(node string, inv *weftv1.Inventory) {
	n := d.s.Node(node)
	if n.Inventory != nil && proto.Equal(n.Inventory, inv) {
		return
	}
	generation := n.Generation
	if n.Inventory == nil || !sameDevices(n.Inventory, inv) {
		generation++
	}
	before := n.Inventory
	d.emit(weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{Node: &node, Generation: &generation, Inventory: inv}.Build()})
	if generation != n.Generation {
		return
	}
	for i, dev := range inv.GetDevices() { // a device that failed while the agent was away
		was := before.GetDevices()[i].GetHealth() == weftv1.DeviceHealth_DEVICE_HEALTH_FAILED
		is := dev.GetHealth() == weftv1.DeviceHealth_DEVICE_HEALTH_FAILED
		d.deviceHealth(node, uint32(i), was, is, dev.GetHealthReason(), 0)
	}
}

// sameDevices says whether indices mean the same devices in both.
func sameDevices(a, b *weftv1.Inventory) bool {
	if len(a.GetDevices()) != len(b.GetDevices()) {
		return false
	}
	for i, x := range a.GetDevices() {
		y := proto.CloneOf(b.GetDevices()[i])
		y.SetHealth(x.GetHealth())
		y.SetHealthReason(x.GetHealthReason())
		if !x.HasHealth() {
			y.ClearHealth()
		}
		if !x.HasHealthReason() {
			y.ClearHealthReason()
		}
		if !proto.Equal(x, y) {
			return false
		}
	}
	return true
}

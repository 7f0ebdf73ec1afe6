package cell

import (
	"cmp"
	"fmt"
	"slices"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// PortRange is Base .. Base+Count-1.
type PortRange struct{ Base, Count uint32 }

// NodeFree is what a node could give to another placement now.
type NodeFree struct {
	DeviceMilli []int64 // by device index; 0 for a failed or fully held one
	CPUMilli    int64
	MemoryBytes int64
	Ports       []PortRange // free ones, ascending
}

// Free is what a node has left beside what attempts hold there and have not released. If a placement refers to an older
// device list, no device counts as free until it is released: the indices cannot be compared.
func Free(s *State, n *Node) NodeFree {
	inv := n.Inventory
	f := NodeFree{CPUMilli: inv.GetCpuMilli(), MemoryBytes: inv.GetMemoryBytes(), DeviceMilli: make([]int64, len(inv.GetDevices()))}
	for i, d := range inv.GetDevices() {
		if d.GetHealth() != weftv1.DeviceHealth_DEVICE_HEALTH_FAILED {
			f.DeviceMilli[i] = 1000
		}
	}
	var used []PortRange
	for j := range s.OnNode(n.Name) {
		for _, p := range j.Attempt.Placements {
			if p.GetNode() != n.Name {
				continue
			}
			f.take(j.Spec, p, p.GetGeneration() == n.Generation)
			used = append(used, PortRange{p.GetPortBase(), p.GetPortCount()})
		}
	}
	f.Ports = freePorts(PortRange{inv.GetPortBase(), inv.GetPortCount()}, used)
	return f
}

// take subtracts a placement, ports apart.
func (f *NodeFree) take(spec *weftv1.JobSpec, p *weftv1.Placement, comparable bool) {
	a := PlacementAmounts(spec, p)
	f.CPUMilli -= a.CPUMilli
	f.MemoryBytes -= a.MemoryBytes
	if len(p.GetDevices()) > 0 && !comparable {
		clear(f.DeviceMilli)
		return
	}
	for _, d := range p.GetDevices() {
		if int(d) < len(f.DeviceMilli) {
			f.DeviceMilli[d] = max(f.DeviceMilli[d]-p.GetMilli(), 0)
		}
	}
}

func freePorts(all PortRange, used []PortRange) []PortRange {
	slices.SortFunc(used, func(a, b PortRange) int { return cmp.Compare(a.Base, b.Base) })
	var out []PortRange
	at, end := all.Base, all.Base+all.Count
	for _, u := range used {
		if u.Count == 0 || u.Base+u.Count <= at {
			continue
		}
		if u.Base > at {
			out = append(out, PortRange{at, min(u.Base, end) - at})
		}
		if at = u.Base + u.Count; at >= end {
			return out
		}
	}
	if at < end {
		out = append(out, PortRange{at, end - at})
	}
	return out
}

// FindPorts returns the base of count free ports in a row, out of all the node's ports. The search begins at a place that
// turn moves, so that an attempt after a busy port does not get the same ports again.
func (f NodeFree) FindPorts(all PortRange, count, turn uint32) (base uint32, ok bool) {
	if count == 0 || all.Count == 0 {
		return 0, count == 0
	}
	from := all.Base + uint32(uint64(turn)*uint64(count)%uint64(all.Count))
	for _, r := range f.Ports {
		if at := max(r.Base, from); at+count <= r.Base+r.Count {
			return at, true
		}
	}
	for _, r := range f.Ports {
		if r.Count >= count {
			return r.Base, true
		}
	}
	return 0, false
}

// PortsFor is how many ports a placement needs: one a rank, and one for the rendezvous beside rank 0.
func PortsFor(p *weftv1.Placement) uint32 {
	if p.GetFirstRank() == 0 {
		return p.GetCount() + 1
	}
	return p.GetCount()
}

// Names of the filters of a placement: why a node, or the whole place, cannot be.
const (
	FilterPhase      = "phase"      // the job does not wait for a place
	FilterSize       = "size"       // outside min..max of a group
	FilterRanks      = "ranks"      // ranks are not 0..n-1, each once
	FilterNode       = "node"       // unknown, silent or lost
	FilterCordoned   = "cordoned"   // a person keeps work away
	FilterStrays     = "strays"     // it still holds an attempt that was given up
	FilterClaimed    = "claimed"    // held for another job
	FilterGeneration = "generation" // the device list has changed since the plan
	FilterDevices    = "devices"    // not free, failed, or not as many as the workers need
	FilterModel      = "model"      // not an acceptable model, or several in one gang
	FilterCPU        = "cpu"
	FilterMemory     = "memory"
	FilterPorts      = "ports"
	FilterTopology   = "topology" // the hard level is not kept
	FilterLimit      = "limit"    // the queue would exceed its limit
)

// Infeasible says why a placement cannot be.
type Infeasible struct {
	Filter  string
	Node    string // empty if the whole place is meant
	Message string
}

func (e *Infeasible) Error() string {
	if e.Node == "" {
		return e.Message
	}
	return e.Node + ": " + e.Message
}

func no(filter, node, format string, args ...any) error {
	return &Infeasible{Filter: filter, Node: node, Message: fmt.Sprintf(format, args...)}
}

// CheckPlacement says whether a job's next attempt may begin there now; the error is *Infeasible. Addresses and ports
// that the placement leaves out are not checked beyond there being enough.
func CheckPlacement(s *State, job *Job, start *weftv1.Start) error {
	if job.Phase != Queued {
		return no(FilterPhase, "", "job %s is %s", job.ID, job.Phase)
	}
	ps := start.GetPlacements()
	if err := checkShape(job.Spec, ps); err != nil {
		return err
	}
	free := map[string]*NodeFree{}
	claimed := claimedBy(s, job.ID)
	for _, p := range ps {
		name := p.GetNode()
		n := s.Node(name)
		if err := usable(n, name, claimed); err != nil {
			return err
		}
		if p.GetGeneration() != n.Generation {
			return no(FilterGeneration, name, "devices of generation %d, the plan means %d", n.Generation, p.GetGeneration())
		}
		f := free[name]
		if f == nil {
			nf := Free(s, n)
			f = &nf
			free[name] = f
		}
		if err := f.fits(job.Spec, p); err != nil {
			return err
		}
	}
	if err := checkModels(s, job.Spec, ps); err != nil {
		return err
	}
	if err := checkTopology(s, job.Spec.GetTopology().GetRequired(), ps); err != nil {
		return err
	}
	return checkLimits(s, job, ps)
}

// checkShape holds sizes and ranks against the spec.
func checkShape(spec *weftv1.JobSpec, ps []*weftv1.Placement) error {
	groups := spec.GetGroups()
	size := make([]uint32, len(groups))
	next, group := uint32(0), uint32(0)
	sorted := slices.SortedStableFunc(slices.Values(ps), func(a, b *weftv1.Placement) int {
		return cmp.Compare(a.GetFirstRank(), b.GetFirstRank())
	})
	for _, p := range sorted {
		switch {
		case int(p.GetGroup()) >= len(groups):
			return no(FilterRanks, p.GetNode(), "the job has no group %d", p.GetGroup())
		case p.GetCount() == 0 || p.GetFirstRank() != next || p.GetGroup() < group:
			return no(FilterRanks, p.GetNode(), "ranks from %d on expected, got %d+%d", next, p.GetFirstRank(), p.GetCount())
		case p.GetCount() > 1<<20:
			return no(FilterRanks, p.GetNode(), "%d ranks in one placement", p.GetCount())
		case len(p.GetMig()) > 0:
			return no(FilterDevices, p.GetNode(), "MIG placements are not supported yet")
		}
		next, group = next+p.GetCount(), p.GetGroup()
		size[p.GetGroup()] += p.GetCount()
		each, milli := DevicesPerWorker(groups[p.GetGroup()])
		if len(p.GetDevices()) != each*int(p.GetCount()) || (each > 0 && p.GetMilli() != milli) {
			return no(FilterDevices, p.GetNode(), "%d workers need %d devices of %d milli each, the plan has %d of %d",
				p.GetCount(), each*int(p.GetCount()), milli, len(p.GetDevices()), p.GetMilli())
		}
	}
	for i, g := range groups {
		if size[i] < g.GetMin() || size[i] > max(g.GetMax(), g.GetMin()) {
			return no(FilterSize, "", "group %s: %d workers, wants %d to %d", g.GetName(), size[i], g.GetMin(), g.GetMax())
		}
	}
	return nil
}

// DevicesPerWorker is how many devices one worker of a group gets, and which part of each in thousandths.
func DevicesPerWorker(g *weftv1.Group) (devices int, milli int64) {
	switch m := g.GetGpuMilli(); {
	case m <= 0:
		return 0, 0
	case m < 1000:
		return 1, m
	default:
		return int(m / 1000), 1000
	}
}

// usable says whether anything may be placed on a node now.
func usable(n *Node, name string, claimed map[string]string) error {
	switch {
	case n == nil:
		return no(FilterNode, name, "no such node")
	case n.Condition != Ready:
		return no(FilterNode, name, "the node is %s", n.Condition)
	case n.Cordoned:
		return no(FilterCordoned, name, "cordoned: %s", n.CordonReason)
	case len(n.Strays) > 0:
		return no(FilterStrays, name, "it still holds attempt %d of %s", n.Strays[0].Attempt, n.Strays[0].Job)
	case claimed[name] != "":
		return no(FilterClaimed, name, "held for job %s", claimed[name])
	}
	return nil
}

// Usable says whether a node could take a placement of this job now, its free amounts apart; the error is *Infeasible.
func Usable(s *State, n *Node, job string) error { return usable(n, n.Name, claimedBy(s, job)) }

// claimedBy maps nodes that are held for another job to that job.
func claimedBy(s *State, job string) map[string]string {
	if s.claims.size == 0 {
		return nil
	}
	m := map[string]string{}
	for c := range s.Claims() {
		if c.Job != job {
			for _, n := range c.Nodes {
				m[n] = c.Job
			}
		}
	}
	return m
}

// fits takes a placement out of what is free, or says what is missing.
func (f *NodeFree) fits(spec *weftv1.JobSpec, p *weftv1.Placement) error {
	name := p.GetNode()
	left := map[uint32]int64{}
	for _, d := range p.GetDevices() {
		if int(d) >= len(f.DeviceMilli) {
			return no(FilterDevices, name, "no device %d", d)
		}
		if _, ok := left[d]; !ok {
			left[d] = f.DeviceMilli[d]
		}
		if left[d] -= p.GetMilli(); left[d] < 0 {
			return no(FilterDevices, name, "device %d has %d thousandths free, needs %d", d, f.DeviceMilli[d], p.GetMilli())
		}
	}
	a := PlacementAmounts(spec, p)
	if a.CPUMilli > f.CPUMilli {
		return no(FilterCPU, name, "%d thousandths of a core free, needs %d", f.CPUMilli, a.CPUMilli)
	}
	if a.MemoryBytes > f.MemoryBytes {
		return no(FilterMemory, name, "%d bytes of memory free, needs %d", f.MemoryBytes, a.MemoryBytes)
	}
	f.take(spec, p, true)
	return f.takePorts(p)
}

func (f *NodeFree) takePorts(p *weftv1.Placement) error {
	want := PortRange{p.GetPortBase(), p.GetPortCount()}
	need := PortsFor(p)
	if want.Count != 0 && want.Count < need {
		return no(FilterPorts, p.GetNode(), "%d ports given, needs %d", want.Count, need)
	}
	for i, r := range f.Ports {
		if want.Count == 0 && r.Count >= need {
			want = PortRange{r.Base, need}
		}
		if want.Count != 0 && want.Base >= r.Base && want.Base+want.Count <= r.Base+r.Count {
			f.Ports = slices.Concat(f.Ports[:i], freePorts(r, []PortRange{want}), f.Ports[i+1:])
			return nil
		}
	}
	return no(FilterPorts, p.GetNode(), "no %d free ports in a row", max(want.Count, need))
}

func checkModels(s *State, spec *weftv1.JobSpec, ps []*weftv1.Placement) error {
	first := ""
	for _, p := range ps {
		devices := s.Node(p.GetNode()).Inventory.GetDevices()
		for _, d := range p.GetDevices() {
			model := devices[d].GetModel()
			if len(spec.GetModels()) > 0 && !slices.Contains(spec.GetModels(), model) {
				return no(FilterModel, p.GetNode(), "device %d is a %s", d, model)
			}
			if first == "" {
				first = model
			}
			if model != first && !spec.GetMixed() {
				return no(FilterModel, p.GetNode(), "%s and %s in one gang", first, model)
			}
		}
	}
	return nil
}

// Domain names the topology domain of a node (and device) at a level; ok is false where it is unknown.
func Domain(n *Node, device int, level weftv1.TopologyLevel) (domain string, ok bool) {
	inv := n.Inventory
	switch level {
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK:
		return inv.GetBlock(), inv.GetBlock() != ""
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK:
		return inv.GetBlock() + "/" + inv.GetRack(), inv.GetRack() != ""
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE:
		return n.Name, true
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE:
		if device < 0 || device >= len(inv.GetDevices()) {
			return n.Name, true
		}
		c := inv.GetDevices()[device].GetClique()
		return fmt.Sprintf("%s#%d", n.Name, c), c != 0
	}
	return "", true
}

func checkTopology(s *State, level weftv1.TopologyLevel, ps []*weftv1.Placement) error {
	if level == weftv1.TopologyLevel_TOPOLOGY_LEVEL_UNSPECIFIED || level == weftv1.TopologyLevel_TOPOLOGY_LEVEL_CELL {
		return nil
	}
	clique := level == weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE
	first, units := "", 0
	nodes := nodesOf(ps)
	for _, p := range ps {
		if clique && len(p.GetDevices()) == 0 && len(nodes) == 1 {
			continue // a worker without devices is near the clique of its own node
		}
		devices := []uint32{0}
		if clique && len(p.GetDevices()) > 0 {
			devices = p.GetDevices()
		}
		for _, d := range devices {
			index := int(d)
			if !clique || len(p.GetDevices()) == 0 {
				index = -1
			}
			domain, known := Domain(s.Node(p.GetNode()), index, level)
			if units++; units == 1 {
				first = domain
			}
			single := len(nodes) == 1 && (!clique || distinctDevices(ps) <= 1)
			if !single && (!known || domain != first) {
				return no(FilterTopology, p.GetNode(), "the gang must stay within one %s", LevelName(level))
			}
		}
	}
	return nil
}

// distinctDevices counts the devices of placements on one node; fractions may share one.
func distinctDevices(ps []*weftv1.Placement) int {
	seen := map[uint32]bool{}
	for _, p := range ps {
		for _, d := range p.GetDevices() {
			seen[d] = true
		}
	}
	return len(seen)
}

// LevelName is the word of the manifest for a topology level.
func LevelName(l weftv1.TopologyLevel) string {
	switch l {
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE:
		return "clique"
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE:
		return "node"
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK:
		return "block"
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK:
		return "rack"
	}
	return "cell"
}

// checkLimits: the queue and those above it stay within their limits.
func checkLimits(s *State, job *Job, ps []*weftv1.Placement) error {
	var sum Amounts
	for _, p := range ps {
		sum = sum.Add(PlacementAmounts(job.Spec, p))
	}
	if path, what, limit := overLimit(s, job.Queue(), sum, true); path != "" {
		return no(FilterLimit, "", "queue %s would exceed its limit of %s %s", path, Format(what, limit), what)
	}
	return nil
}

// WithoutPorts is a list of free ranges after count ports from base on were taken out of it.
func WithoutPorts(free []PortRange, base, count uint32) []PortRange {
	var out []PortRange
	for _, r := range free {
		out = append(out, freePorts(r, []PortRange{{base, count}})...)
	}
	return out
}

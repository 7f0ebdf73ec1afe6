package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// nodeView is a node with what it could give now.
type nodeView struct {
	node *cell.Node
	free cell.NodeFree
}

func newNodeView(s *cell.State, n *cell.Node) *nodeView { return &nodeView{n, cell.Free(s, n)} }

// sizes are the numbers of workers to try for each group, the largest first: elastic gangs give way in sixteenths of
// what lies between min and max.
func sizes(spec *weftv1.JobSpec) [][]uint32 {
	const steps = 16
	var out [][]uint32
	for t := steps; t >= 0; t-- {
		var v []uint32
		for _, g := range spec.GetGroups() {
			least, most := g.GetMin(), max(g.GetMax(), g.GetMin())
			v = append(v, least+uint32(uint64(most-least)*uint64(t)/steps))
		}
		if len(out) == 0 || !slices.Equal(out[len(out)-1], v) {
			out = append(out, v)
		}
	}
	return out
}

// place finds a place for the whole gang at the largest size that has one, or nil.
func (p *planner) place(j *cell.Job) *weftv1.Start {
	var usable []*nodeView
	for _, v := range p.nodes {
		if cell.Usable(p.s, v.node, j.ID) == nil && !(v.node.Inventory.GetSpot() && !j.Spec.GetSpot()) {
			usable = append(usable, v)
		}
	}
	for _, size := range sizes(j.Spec) {
		if over, _, _ := cell.OverLimit(p.s, j.Queue(), amounts(j.Spec, size)); over != "" {
			continue
		}
		if ps := fit(j.Spec, size, usable); ps != nil {
			return weftv1.Start_builder{Job: &j.ID, Placements: ps}.Build()
		}
	}
	return nil
}

func amounts(spec *weftv1.JobSpec, size []uint32) cell.Amounts {
	var sum cell.Amounts
	for i, g := range spec.GetGroups() {
		w := cell.PerWorker(g)
		n := int64(size[i])
		sum = sum.Add(cell.Amounts{GPUMilli: n * w.GPUMilli, CPUMilli: n * w.CPUMilli, MemoryBytes: n * w.MemoryBytes})
	}
	return sum
}

// levels from the closest to the widest.
var levels = []weftv1.TopologyLevel{
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE, weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE, weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK,
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK, weftv1.TopologyLevel_TOPOLOGY_LEVEL_CELL,
}

// fit places workers into the smallest domain that holds them all, within the required level: the closest level first,
// at each level the domain that is left with the least. Nil if there is none.
func fit(spec *weftv1.JobSpec, size []uint32, nodes []*nodeView) []*weftv1.Placement {
	required := spec.GetTopology().GetRequired()
	if required == weftv1.TopologyLevel_TOPOLOGY_LEVEL_UNSPECIFIED {
		required = weftv1.TopologyLevel_TOPOLOGY_LEVEL_CELL
	}
	for _, level := range levels {
		if level > required {
			break
		}
		var best []*weftv1.Placement
		var bestScore score
		for _, d := range domains(spec, level, nodes) {
			ps, sc, ok := d.fit(spec, size)
			if ok && (best == nil || sc.less(bestScore)) {
				best, bestScore = ps, sc
			}
		}
		if best != nil {
			return best
		}
	}
	return nil
}

// domain is a set of nodes, each with the devices that count, all of one model.
type domain struct {
	name    string
	model   string // "" if the gang needs no device
	members []member
}

type member struct {
	view    *nodeView
	devices []int // indices that may be used, of the domain's model
}

// score prefers places on few nodes, then those that leave the least behind, then by name.
type score struct {
	nodes    int
	leftover int64 // thousandths of cards left free on the nodes used
	broken   int   // cliques that were whole and are not any more
	name     string
}

func (a score) less(b score) bool {
	return cmp.Or(cmp.Compare(a.nodes, b.nodes), cmp.Compare(a.broken, b.broken), cmp.Compare(a.leftover, b.leftover), cmp.Compare(a.name, b.name)) < 0
}

// domains are the candidates at a level, one for each acceptable model, in order of name.
func domains(spec *weftv1.JobSpec, level weftv1.TopologyLevel, nodes []*nodeView) []domain {
	needs := false
	for _, g := range spec.GetGroups() {
		needs = needs || g.GetGpuMilli() > 0
	}
	found := map[string]*domain{}
	add := func(name, model string, v *nodeView, device int) {
		id := model + " " + name
		d := found[id]
		if d == nil {
			d = &domain{name: name, model: model}
			found[id] = d
		}
		if n := len(d.members); n == 0 || d.members[n-1].view != v {
			d.members = append(d.members, member{view: v})
		}
		if device >= 0 {
			m := &d.members[len(d.members)-1]
			m.devices = append(m.devices, device)
		}
	}
	for _, v := range nodes {
		if !needs {
			if name, ok := cell.Domain(v.node, -1, level); ok {
				add(name, "", v, -1)
			}
			continue
		}
		for i, d := range v.node.Inventory.GetDevices() {
			if len(spec.GetModels()) > 0 && !slices.Contains(spec.GetModels(), d.GetModel()) {
				continue
			}
			if name, ok := cell.Domain(v.node, i, level); ok {
				add(name, d.GetModel(), v, i)
			}
		}
	}
	var out []domain
	for _, id := range slices.Sorted(maps.Keys(found)) {
		out = append(out, *found[id])
	}
	return out
}

// room is what a member has left while one gang is being placed.
type room struct {
	member
	free  cell.NodeFree
	taken bool
}

// fit places every worker of every group in the domain, or says that it can't.
func (d domain) fit(spec *weftv1.JobSpec, size []uint32) ([]*weftv1.Placement, score, bool) {
	rooms := make([]*room, len(d.members))
	for i, m := range d.members {
		f := m.view.free
		f.DeviceMilli = slices.Clone(f.DeviceMilli)
		f.Ports = slices.Clone(f.Ports)
		rooms[i] = &room{member: m, free: f}
	}
	var ps []*weftv1.Placement
	rank := uint32(0)
	for gi, g := range spec.GetGroups() {
		left := size[gi]
		for left > 0 {
			r, n := tightest(rooms, g, left, rank == 0)
			if r == nil {
				return nil, score{}, false
			}
			ps = append(ps, r.put(uint32(gi), g, rank, n))
			rank += n
			left -= n
		}
	}
	if rank == 0 {
		return nil, score{}, false
	}
	sc := score{name: d.model + " " + d.name}
	for _, r := range rooms {
		if !r.taken {
			continue
		}
		sc.nodes++
		whole := map[uint32]bool{}
		for _, i := range r.devices {
			sc.leftover += r.free.DeviceMilli[i]
			if c := r.view.node.Inventory.GetDevices()[i].GetClique(); c != 0 && r.free.DeviceMilli[i] != r.view.free.DeviceMilli[i] {
				whole[c] = true
			}
		}
		sc.broken += len(whole)
	}
	return ps, sc, true
}

// tightest chooses where the next workers of a group go: the node that takes all of them and is left with the least, or
// else the one that takes the most. Nodes that the gang uses already come first at equal fit.
func tightest(rooms []*room, g *weftv1.Group, left uint32, first bool) (*room, uint32) {
	var best *room
	var bestN uint32
	var bestLeft int64
	for _, r := range rooms {
		n := min(left, r.workers(g, first))
		if n == 0 {
			continue
		}
		rest := r.freeMilli() - int64(n)*cell.PerWorker(g).GPUMilli
		better := best == nil || n > bestN || n == bestN && rest < bestLeft || n == bestN && rest == bestLeft && r.taken && !best.taken
		if better {
			best, bestN, bestLeft = r, n, rest
		}
	}
	return best, bestN
}

func (r *room) freeMilli() (sum int64) {
	for _, i := range r.devices {
		sum += r.free.DeviceMilli[i]
	}
	return sum
}

// workers is how many workers of a group the node still takes.
func (r *room) workers(g *weftv1.Group, first bool) uint32 {
	n := int64(1 << 20)
	w := cell.PerWorker(g)
	if w.CPUMilli > 0 {
		n = min(n, r.free.CPUMilli/w.CPUMilli)
	}
	if w.MemoryBytes > 0 {
		n = min(n, r.free.MemoryBytes/w.MemoryBytes)
	}
	each, milli := cell.DevicesPerWorker(g)
	if each > 0 {
		fits := int64(0)
		for _, i := range r.devices {
			fits += r.free.DeviceMilli[i] / milli
		}
		n = min(n, fits/int64(each))
	}
	row := int64(0)
	for _, p := range r.free.Ports {
		row = max(row, int64(p.Count))
	}
	if first {
		row-- // the rendezvous has a port beside rank 0's
	}
	return uint32(max(0, min(n, row)))
}

// put takes n workers out of the room.
func (r *room) put(group uint32, g *weftv1.Group, rank, n uint32) *weftv1.Placement {
	each, milli := cell.DevicesPerWorker(g)
	b := weftv1.Placement_builder{Node: &r.view.node.Name, Generation: &r.view.node.Generation, Group: &group, FirstRank: &rank, Count: &n}
	if each > 0 {
		b.Milli = &milli
		for range n {
			b.Devices = append(b.Devices, r.devicesFor(each, milli)...)
		}
	}
	w := cell.PerWorker(g)
	r.free.CPUMilli -= int64(n) * w.CPUMilli
	r.free.MemoryBytes -= int64(n) * w.MemoryBytes
	p := b.Build()
	need := cell.PortsFor(p)
	for _, row := range r.free.Ports {
		if row.Count >= need {
			r.free.Ports = cell.WithoutPorts(r.free.Ports, row.Base, need)
			break
		}
	}
	r.taken = true
	return p
}

// devicesFor chooses one worker's devices: within the clique that is left with the least, lowest index first; a fraction
// goes onto the fullest card that holds it.
func (r *room) devicesFor(each int, milli int64) []uint32 {
	cliques := map[uint32][]int{}
	for _, i := range r.devices {
		if r.free.DeviceMilli[i] >= milli {
			c := r.view.node.Inventory.GetDevices()[i].GetClique()
			cliques[c] = append(cliques[c], i)
		}
	}
	var from []int
	for _, c := range slices.Sorted(maps.Keys(cliques)) {
		if is := cliques[c]; len(is) >= each && (from == nil || len(is) < len(from)) {
			from = is
		}
	}
	if from == nil { // across cliques
		for _, c := range slices.Sorted(maps.Keys(cliques)) {
			from = append(from, cliques[c]...)
		}
	}
	if milli < 1000 {
		slices.SortStableFunc(from, func(a, b int) int { return cmp.Compare(r.free.DeviceMilli[a], r.free.DeviceMilli[b]) })
	}
	var out []uint32
	for _, i := range from[:each] {
		r.free.DeviceMilli[i] -= milli
		out = append(out, uint32(i))
	}
	return out
}

package plan

import (
	"cmp"
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

func (v *nodeView) devices() []*weftv1.Device { return v.node.Inventory.GetDevices() }

func (v *nodeView) clique(device int) uint32 { return v.devices()[device].GetClique() }

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
	parts := split(j.Spec, p.usable(j))
	for _, size := range sizes(j.Spec) {
		if over, _, _ := cell.OverLimit(p.s, j.Queue(), amounts(j.Spec, size)); over != "" {
			continue
		}
		if ps := fit(j.Spec, size, parts); ps != nil {
			return weftv1.Start_builder{Job: &j.ID, Placements: ps}.Build()
		}
	}
	return nil
}

func amounts(spec *weftv1.JobSpec, size []uint32) (sum cell.Amounts) {
	for i, g := range spec.GetGroups() {
		sum = sum.Add(cell.PerWorker(g).Times(int64(size[i])))
	}
	return sum
}

// levels from the closest to the widest: a block has racks. The numbers of the enumeration are not in this order.
var levels = []weftv1.TopologyLevel{
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE, weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE, weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK,
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK, weftv1.TopologyLevel_TOPOLOGY_LEVEL_CELL,
}

// fit places workers into the smallest domain that holds them all, within the required level: the closest level first,
// at each level the domain with the best score. Nil if there is none.
func fit(spec *weftv1.JobSpec, size []uint32, parts []member) []*weftv1.Placement {
	required := spec.GetTopology().GetRequired()
	for _, level := range levels {
		var best *layout
		for _, d := range domains(level, required, parts) {
			if l := d.fit(spec, size); l != nil && (best == nil || l.score.less(best.score)) {
				best = l
			}
		}
		if best != nil {
			return best.placements(spec)
		}
		if level == required {
			break
		}
	}
	return nil
}

// member is a node, with those of its free devices that may serve the gang, all of one model; none if it needs none.
type member struct {
	view    *nodeView
	model   string
	devices []int
	room    []uint32 // workers that would fit, by group
}

// split lists what each node could give to a gang, one member for each acceptable model. What could take not one worker
// of any group is left out.
func split(spec *weftv1.JobSpec, nodes []*nodeView) []member {
	var out []member
	add := func(m member) {
		for _, g := range spec.GetGroups() {
			m.room = append(m.room, newRoom(m).workers(g, false))
		}
		if slices.Max(m.room) > 0 {
			out = append(out, m)
		}
	}
	for _, v := range nodes {
		if !needsDevices(spec) {
			add(member{view: v})
			continue
		}
		first := len(out)
		var found []member
		for i, d := range v.devices() {
			if v.free.DeviceMilli[i] == 0 || !accepts(spec, d) {
				continue
			}
			model := d.GetModel()
			if spec.GetMixed() {
				model = ""
			}
			k := slices.IndexFunc(found, func(m member) bool { return m.model == model })
			if k < 0 {
				k = len(found)
				found = append(found, member{view: v, model: model, devices: make([]int, 0, len(v.devices()))})
			}
			found[k].devices = append(found[k].devices, i)
		}
		for _, m := range found {
			add(m)
		}
		slices.SortFunc(out[first:], func(a, b member) int { return cmp.Compare(a.model, b.model) })
	}
	return out
}

func needsDevices(spec *weftv1.JobSpec) bool {
	return slices.ContainsFunc(spec.GetGroups(), func(g *weftv1.Group) bool { return g.GetGpuMilli() > 0 })
}

// accepts says whether a device is of a model that the job accepts; a job that names none accepts any.
func accepts(spec *weftv1.JobSpec, d *weftv1.Device) bool {
	return len(spec.GetModels()) == 0 || slices.Contains(spec.GetModels(), d.GetModel())
}

// domain is a set of nodes that are equally close, each with devices of the same model.
type domain []member

// domains are the candidates at a level. Where the required level of a node is unknown, the gang stays on that one node.
func domains(level, required weftv1.TopologyLevel, parts []member) []domain {
	var out []domain
	switch level {
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE:
		for _, m := range parts {
			out = appendCliques(out, m)
		}
		return out
	case weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE:
		for i := range parts {
			out = append(out, parts[i:i+1])
		}
		return out
	}
	type key struct{ name, model string }
	at := map[key]int{}
	for _, m := range parts {
		name, known := cell.Domain(m.view.node, -1, level)
		if _, ok := cell.Domain(m.view.node, -1, required); !known || !ok {
			continue
		}
		k, ok := at[key{name, m.model}]
		if !ok {
			k = len(out)
			at[key{name, m.model}] = k
			out = append(out, nil)
		}
		out[k] = append(out[k], m)
	}
	return out
}

// appendCliques splits a member by its cliques; a device that knows none is alone.
func appendCliques(out []domain, m member) []domain {
	if len(m.devices) == 0 {
		return append(out, domain{m})
	}
	first := len(out)
	for _, i := range m.devices {
		c := m.view.clique(i)
		k := slices.IndexFunc(out[first:], func(d domain) bool { return c != 0 && m.view.clique(d[0].devices[0]) == c })
		if k < 0 {
			k = len(out) - first
			out = append(out, domain{{view: m.view, model: m.model, room: m.room}})
		}
		one := &out[first+k][0]
		one.devices = append(one.devices, i)
	}
	return out
}

// layout is one way to place a gang.
type layout struct {
	picks []pick
	score score
}

// pick is workers of one group on one node.
type pick struct {
	room    *room
	group   int
	count   uint32
	devices []uint32
}

// score prefers few nodes, then to leave cliques whole, then the tightest fit. At equal scores the first domain wins, in
// the order of the nodes' names.
type score struct {
	nodes  int
	broken int // cliques that were whole and are now used in part
	left   spare
}

func (a score) less(b score) bool {
	return cmp.Or(cmp.Compare(a.nodes, b.nodes), cmp.Compare(a.broken, b.broken), a.left.compare(b.left)) < 0
}

// spare is what stays free: thousandths of cards, then of cores.
type spare struct{ cards, cpu int64 }

func (a spare) compare(b spare) int {
	return cmp.Or(cmp.Compare(a.cards, b.cards), cmp.Compare(a.cpu, b.cpu))
}

// fit places every worker of every group in the domain, or returns nil. The group with the most devices per worker is
// packed first: it has the fewest choices.
func (d domain) fit(spec *weftv1.JobSpec, size []uint32) *layout {
	if !d.mayHold(spec, size) {
		return nil
	}
	groups := spec.GetGroups()
	order := make([]int, len(groups))
	for gi := range groups {
		order[gi] = gi
	}
	slices.SortStableFunc(order, func(a, b int) int { return -cmp.Compare(groups[a].GetGpuMilli(), groups[b].GetGpuMilli()) })
	rooms := make([]*room, len(d))
	for i, m := range d {
		rooms[i] = newRoom(m)
	}
	l := &layout{}
	for _, gi := range order {
		for left, first := size[gi], gi == 0; left > 0; first = false {
			r, n := tightest(rooms, groups[gi], left, first)
			if r == nil {
				return nil
			}
			l.picks = append(l.picks, r.put(gi, groups[gi], n, first))
			left -= n
		}
	}
	slices.SortStableFunc(l.picks, func(a, b pick) int { return cmp.Compare(a.group, b.group) })
	if len(l.picks) == 0 || !slices.IsSorted(order) && !l.portsInOrder() {
		return nil
	}
	for _, r := range rooms {
		if r.taken {
			left := r.left()
			l.score.nodes++
			l.score.broken += r.broken()
			l.score.left.cards += left.cards
			l.score.left.cpu += left.cpu
		}
	}
	return l
}

// mayHold rules out most domains cheaply: each group needs room for itself, and all of them together enough cards.
func (d domain) mayHold(spec *weftv1.JobSpec, size []uint32) bool {
	cards, need := int64(0), amounts(spec, size).GPUMilli
	for _, m := range d {
		cards += 1000 * int64(len(m.devices))
	}
	if cards < need {
		return false
	}
	for gi := range size {
		room := uint64(0)
		for _, m := range d {
			room += uint64(m.room[gi])
		}
		if room < uint64(size[gi]) {
			return false
		}
	}
	return true
}

// portsInOrder says whether the ports suffice when they are given out in the order of the ranks, as the scheduler does.
// It matters only where groups were packed in another order and ports are scarce.
func (l *layout) portsInOrder() bool {
	free := map[*room][]cell.PortRange{}
	for i, p := range l.picks {
		ports, ok := free[p.room]
		if !ok {
			ports = p.room.view.free.Ports
		}
		if ports, ok = withoutRow(ports, portsFor(p.count, i == 0)); !ok {
			return false
		}
		free[p.room] = ports
	}
	return true
}

// placements numbers the ranks through the picks.
func (l *layout) placements(spec *weftv1.JobSpec) []*weftv1.Placement {
	var out []*weftv1.Placement
	rank := uint32(0)
	for _, p := range l.picks {
		n := p.room.view.node
		b := weftv1.Placement_builder{
			Node: &n.Name, Generation: &n.Generation, Group: new(uint32(p.group)), FirstRank: new(rank), Count: new(p.count), Devices: p.devices,
		}
		if each, milli := cell.DevicesPerWorker(spec.GetGroups()[p.group]); each > 0 {
			b.Milli = &milli
		}
		out = append(out, b.Build())
		rank += p.count
	}
	return out
}

// tightest chooses where the next workers of a group go: the node that takes all of them and is left with the least, or
// else the one that takes the most. Nodes that the gang uses already come first at equal fit.
func tightest(rooms []*room, g *weftv1.Group, left uint32, first bool) (best *room, bestN uint32) {
	var bestLeft spare
	for _, r := range rooms {
		n := min(left, r.workers(g, first))
		if n == 0 || n < bestN {
			continue
		}
		rest := r.left()
		rest.cards -= int64(n) * g.GetGpuMilli()
		rest.cpu -= int64(n) * g.GetCpuMilli()
		if c := rest.compare(bestLeft); best == nil || n > bestN || c < 0 || c == 0 && r.taken && !best.taken {
			best, bestN, bestLeft = r, n, rest
		}
	}
	return best, bestN
}

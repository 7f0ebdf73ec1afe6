package plan

import (
	"cmp"
	"slices"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// room is what a member has left while one gang is being placed.
type room struct {
	member
	free  cell.NodeFree
	taken bool // free is its own, and less than the view's
}

func newRoom(m member) *room { return &room{member: m, free: m.view.free} }

// left is what is free now. A gang without devices counts all cards of the node, so that it stays off nodes whose cards
// others could use.
func (r *room) left() spare {
	s := spare{cpu: r.free.CPUMilli}
	if len(r.devices) == 0 {
		for _, milli := range r.free.DeviceMilli {
			s.cards += milli
		}
		return s
	}
	for _, i := range r.devices {
		s.cards += r.free.DeviceMilli[i]
	}
	return s
}

// workers is how many workers of a group the node still takes. The first of the gang needs a port for the rendezvous
// beside its own.
func (r *room) workers(g *weftv1.Group, first bool) uint32 {
	n := int64(0)
	for _, p := range r.free.Ports {
		n = max(n, int64(p.Count))
	}
	if first {
		n--
	}
	if each, milli := cell.DevicesPerWorker(g); each > 0 {
		fits := int64(0)
		for _, i := range r.devices {
			fits += r.free.DeviceMilli[i] / milli
		}
		n = min(n, fits/int64(each))
	}
	if w := g.GetCpuMilli(); w > 0 {
		n = min(n, r.free.CPUMilli/w)
	}
	if w := g.GetMemoryBytes(); w > 0 {
		n = min(n, r.free.MemoryBytes/w)
	}
	return uint32(max(0, n))
}

// put takes n workers out of the room.
func (r *room) put(group int, g *weftv1.Group, n uint32, first bool) pick {
	if !r.taken {
		r.taken = true
		r.free.DeviceMilli = slices.Clone(r.free.DeviceMilli)
	}
	p := pick{room: r, group: group, count: n}
	if each, milli := cell.DevicesPerWorker(g); each > 0 {
		for range n {
			p.devices = append(p.devices, r.devicesFor(each, milli)...)
		}
	}
	w := cell.PerWorker(g).Times(int64(n))
	r.free.CPUMilli -= w.CPUMilli
	r.free.MemoryBytes -= w.MemoryBytes
	r.free.Ports, _ = withoutRow(r.free.Ports, portsFor(n, first))
	return p
}

// portsFor is what n ranks need in a row; the first rank brings the rendezvous.
func portsFor(n uint32, first bool) uint32 {
	if first {
		return n + 1
	}
	return n
}

// withoutRow takes the first row that is long enough.
func withoutRow(free []cell.PortRange, need uint32) ([]cell.PortRange, bool) {
	for _, r := range free {
		if r.Count >= need {
			return cell.WithoutPorts(free, r.Base, need), true
		}
	}
	return free, false
}

// devicesFor takes one worker's devices: within the clique that is left with the least, lowest index first; a fraction
// goes onto the fullest card that holds it.
func (r *room) devicesFor(each int, milli int64) []uint32 {
	var from []int
	for _, i := range r.devices {
		if r.free.DeviceMilli[i] >= milli {
			from = append(from, i)
		}
	}
	if milli < 1000 {
		slices.SortStableFunc(from, func(a, b int) int { return cmp.Compare(r.free.DeviceMilli[a], r.free.DeviceMilli[b]) })
	} else {
		slices.SortStableFunc(from, func(a, b int) int { return cmp.Compare(r.view.clique(a), r.view.clique(b)) })
		from = smallestRun(from, each, r.view.clique)
	}
	var out []uint32
	for _, i := range from[:each] {
		r.free.DeviceMilli[i] -= milli
		out = append(out, uint32(i))
	}
	return out
}

// smallestRun is the shortest run of devices of one clique that has enough, or all devices if none has. The devices are
// sorted by clique.
func smallestRun(devices []int, enough int, clique func(int) uint32) []int {
	best := devices
	found := false
	for at := 0; at < len(devices); {
		end := at + 1
		for end < len(devices) && clique(devices[end]) == clique(devices[at]) {
			end++
		}
		if n := end - at; n >= enough && (!found || n < len(best)) {
			best, found = devices[at:end], true
		}
		at = end
	}
	return best
}

// broken counts the cliques of which every card was free, and of which some are now taken and some not.
func (r *room) broken() (n int) {
	if len(r.devices) == 0 {
		return 0
	}
	type tally struct {
		clique       uint32
		whole, taken bool
		rest         bool
	}
	var ts []tally
	for i := range r.view.devices() {
		c := r.view.clique(i)
		if c == 0 {
			continue
		}
		k := slices.IndexFunc(ts, func(t tally) bool { return t.clique == c })
		if k < 0 {
			k = len(ts)
			ts = append(ts, tally{clique: c, whole: true})
		}
		t := &ts[k]
		t.whole = t.whole && r.view.free.DeviceMilli[i] == 1000
		if r.free.DeviceMilli[i] < r.view.free.DeviceMilli[i] {
			t.taken = true
		} else {
			t.rest = true
		}
	}
	for _, t := range ts {
		if t.whole && t.taken && t.rest {
			n++
		}
	}
	return n
}

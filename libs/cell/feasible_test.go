package cell

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// at builds one placement: devices on a node, ranks from first on, one device each.
func at(node string, group, first uint32, devices ...uint32) *weftv1.Placement {
	return weftv1.Placement_builder{
		Node: &node, Generation: new(uint64(1)), Group: &group, FirstRank: &first, Count: new(uint32(len(devices))),
		Devices: devices, Milli: new(int64(1000)),
	}.Build()
}

// bare is one rank without devices.
func bare(node string, group, rank uint32) *weftv1.Placement {
	return weftv1.Placement_builder{Node: &node, Generation: new(uint64(1)), Group: &group, FirstRank: &rank, Count: new(uint32(1))}.Build()
}

func ports(p *weftv1.Placement, base, count uint32) *weftv1.Placement {
	p.SetPortBase(base)
	p.SetPortCount(count)
	return p
}

// cellOf is two racks of two nodes with four devices in two cliques, and a node of other cards outside any rack.
func cellOf(t testing.TB) *State {
	t.Helper()
	s := NewState()
	for i, name := range []string{"a0", "a1", "b0", "b1", "h"} {
		inv := weftv1.Inventory_builder{
			Address: new(fmt.Sprintf("10.0.0.%d", i)), CpuMilli: new(int64(8000)), MemoryBytes: new(int64(8 << 30)),
			PortBase: new(uint32(1000)), PortCount: new(uint32(8)),
		}
		model := "H100-80G"
		if name != "h" {
			inv.Rack, inv.Block, model = new("r"+name[:1]), new("block"), "A100-80G"
		}
		for d := range 4 {
			inv.Devices = append(inv.Devices, weftv1.Device_builder{Model: &model, Clique: new(uint32(1 + d/2))}.Build())
		}
		Evolve(s, weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: &name, BootId: new("b")}.Build()}.Build(), 1)
		Evolve(s, weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{
			Node: &name, Generation: new(uint64(1)), Inventory: inv.Build(),
		}.Build()}.Build(), 1)
	}
	Evolve(s, weftv1.Fact_builder{QueueSet: weftv1.QueueSet_builder{Queue: new("q")}.Build()}.Build(), 1)
	return s
}

type group struct{ least, most uint32 }

func submit(s *State, id string, change func(*weftv1.JobSpec_builder), groups ...group) *Job {
	b := weftv1.JobSpec_builder{Name: &id, Queue: new("q")}
	for i, g := range groups {
		b.Groups = append(b.Groups, weftv1.Group_builder{
			Name: new(fmt.Sprintf("g%d", i)), Min: &g.least, Max: &g.most, GpuMilli: new(int64(1000)),
			CpuMilli: new(int64(1000)), MemoryBytes: new(int64(1 << 30)),
		}.Build())
	}
	if change != nil {
		change(&b)
	}
	Evolve(s, weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{Job: &id, Tenant: new("q"), Spec: b.Build()}.Build()}.Build(), 2)
	return s.Job(id)
}

func within(l weftv1.TopologyLevel) func(*weftv1.JobSpec_builder) {
	return func(b *weftv1.JobSpec_builder) { b.Topology = weftv1.TopologyConstraint_builder{Required: &l}.Build() }
}

func TestCheckPlacement(t *testing.T) {
	const (
		clique = weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE
		node   = weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE
		rack   = weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK
		block  = weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK
	)
	two := []group{{2, 2}}
	ps := func(ps ...*weftv1.Placement) []*weftv1.Placement { return ps }
	for _, c := range []struct {
		name   string
		change func(*weftv1.JobSpec_builder)
		groups []group
		place  []*weftv1.Placement
		want   string // filter; empty = feasible
	}{
		{"two nodes", nil, two, ps(at("a0", 0, 0, 0), at("b0", 0, 1, 3)), ""},
		{"any order of the list", nil, two, ps(at("b0", 0, 1, 3), at("a0", 0, 0, 0)), ""},
		{"nothing", nil, two, nil, FilterSize},
		{"a gap in the ranks", nil, two, ps(at("a0", 0, 0, 0), at("b0", 0, 2, 3)), FilterRanks},
		{"a rank twice", nil, two, ps(at("a0", 0, 0, 0, 1), at("b0", 0, 1, 3)), FilterRanks},
		{"a device twice in one placement", nil, two, ps(at("a0", 0, 0, 1, 1)), FilterDevices},
		{"a device twice in two", nil, two, ps(at("a0", 0, 0, 1), at("a0", 0, 1, 1)), FilterDevices},
		{"no such group", nil, two, ps(at("a0", 1, 0, 0, 1)), FilterRanks},
		{"two roles", nil, []group{{1, 1}, {1, 2}}, ps(at("a0", 0, 0, 0), at("a0", 1, 1, 1, 2)), ""},
		{"roles in the wrong order", nil, []group{{1, 1}, {1, 2}}, ps(at("a0", 1, 0, 0), at("a0", 0, 1, 1)), FilterRanks},
		{"one role missing", nil, []group{{1, 1}, {1, 2}}, ps(at("a0", 0, 0, 0)), FilterSize},
		{"two models", nil, two, ps(at("a0", 0, 0, 0), at("h", 0, 1, 0)), FilterModel},
		{"two models, mixed", func(b *weftv1.JobSpec_builder) { b.Mixed = new(true) }, two, ps(at("a0", 0, 0, 0), at("h", 0, 1, 0)), ""},
		{"too much cpu", func(b *weftv1.JobSpec_builder) { b.Groups[0].SetCpuMilli(4001) }, two, ps(at("a0", 0, 0, 0, 1)), FilterCPU},
		{"too much cpu in two placements", func(b *weftv1.JobSpec_builder) { b.Groups[0].SetCpuMilli(4001) }, two, ps(at("a0", 0, 0, 0), at("a0", 0, 1, 1)), FilterCPU},
		{"too much memory", func(b *weftv1.JobSpec_builder) { b.Groups[0].SetMemoryBytes(4<<30 + 1) }, two, ps(at("a0", 0, 0, 0, 1)), FilterMemory},
		{"old generation", nil, two, func() []*weftv1.Placement {
			p := at("a0", 0, 0, 0, 1)
			p.SetGeneration(2)
			return ps(p)
		}(), FilterGeneration},
		{"its own ports", nil, two, ps(ports(at("a0", 0, 0, 0, 1), 1002, 3)), ""},
		{"ports below the range", nil, two, ps(ports(at("a0", 0, 0, 0, 1), 999, 3)), FilterPorts},
		{"ports above the range", nil, two, ps(ports(at("a0", 0, 0, 0, 1), 1006, 3)), FilterPorts},
		{"too few ports", nil, two, ps(ports(at("a0", 0, 0, 0, 1), 1000, 2)), FilterPorts},
		{"the same ports twice", nil, two, ps(ports(at("a0", 0, 0, 0), 1000, 2), ports(at("a0", 0, 1, 1), 1001, 1)), FilterPorts},
		{"within a clique", within(clique), two, ps(at("a0", 0, 0, 2, 3)), ""},
		{"across cliques", within(clique), two, ps(at("a0", 0, 0, 1, 2)), FilterTopology},
		{"within a node", within(node), two, ps(at("a0", 0, 0, 1, 2)), ""},
		{"across nodes", within(node), two, ps(at("a0", 0, 0, 0), at("a1", 0, 1, 0)), FilterTopology},
		{"within a rack", within(rack), two, ps(at("a0", 0, 0, 0), at("a1", 0, 1, 0)), ""},
		{"across racks", within(rack), two, ps(at("a0", 0, 0, 0), at("b0", 0, 1, 0)), FilterTopology},
		{"within a block", within(block), two, ps(at("a0", 0, 0, 0), at("b0", 0, 1, 0)), ""},
		{"within a clique, beside workers without devices", func(b *weftv1.JobSpec_builder) {
			within(clique)(b)
			b.Groups[1].SetGpuMilli(0)
		}, []group{{2, 2}, {1, 1}}, ps(at("a0", 0, 0, 2, 3), bare("a0", 1, 2)), ""},
		{"a worker without devices on another node than the clique", func(b *weftv1.JobSpec_builder) {
			within(clique)(b)
			b.Groups[1].SetGpuMilli(0)
		}, []group{{2, 2}, {1, 1}}, ps(at("a0", 0, 0, 2, 3), bare("a1", 1, 2)), FilterTopology},
		{"two halves of one card without a clique", func(b *weftv1.JobSpec_builder) {
			within(clique)(b)
			b.Groups[0].SetGpuMilli(500)
		}, two, func() []*weftv1.Placement {
			p := at("loose", 0, 0, 0, 0)
			p.SetMilli(500)
			return ps(p)
		}(), ""},
		{"one node outside any rack", within(rack), two, ps(at("h", 0, 0, 0, 1)), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := cellOf(t)
			s.node("loose", true, func(n *Node) { // its cards know no clique
				n.Condition, n.Generation = Ready, 1
				n.Inventory = proto.CloneOf(s.Node("h").Inventory)
				for _, d := range n.Inventory.GetDevices() {
					d.ClearClique()
				}
			})
			j := submit(s, "j", c.change, c.groups...)
			err := CheckPlacement(s, j, weftv1.Start_builder{Job: &j.ID, Placements: c.place}.Build())
			var inf *Infeasible
			got := ""
			if errors.As(err, &inf) {
				got = inf.Filter
			}
			if got != c.want {
				t.Fatalf("got %q (%v), want %q", got, err, c.want)
			}
		})
	}
}

// Whatever is asked for and taken, free ranges never overlap what was taken, and nothing is lost.
func TestPorts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := PortRange{Base: 100, Count: rapid.Uint32Range(0, 30).Draw(t, "ports")}
		f := NodeFree{Ports: freePorts(all, nil)}
		taken := map[uint32]bool{}
		for range rapid.IntRange(0, 12).Draw(t, "requests") {
			count := rapid.Uint32Range(1, 6).Draw(t, "count")
			base, ok := f.FindPorts(all, count, rapid.Uint32Range(0, 9).Draw(t, "turn"))
			free := func(b uint32) bool {
				for i := range count {
					if taken[b+i] || b+i < all.Base || b+i >= all.Base+all.Count {
						return false
					}
				}
				return true
			}
			if !ok {
				for b := all.Base; b < all.Base+all.Count; b++ {
					if free(b) {
						t.Fatalf("%d ports from %d are free and were not found", count, b)
					}
				}
				continue
			}
			if !free(base) {
				t.Fatalf("%d ports from %d are not all free", count, base)
			}
			f.Ports = WithoutPorts(f.Ports, base, count)
			for i := range count {
				taken[base+i] = true
			}
		}
		left := uint32(0)
		for _, r := range f.Ports {
			left += r.Count
		}
		if int(left) != int(all.Count)-len(taken) {
			t.Fatalf("%d ports left of %d, %d taken", left, all.Count, len(taken))
		}
	})
}

func TestNeverFits(t *testing.T) {
	const rack = weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK
	gpus := func(milli int64) func(*weftv1.JobSpec_builder) {
		return func(b *weftv1.JobSpec_builder) { b.Groups[0].SetGpuMilli(milli) }
	}
	for _, c := range []struct {
		name    string
		change  func(*weftv1.JobSpec_builder)
		workers uint32
		never   bool
		largest string
	}{
		{"one model", nil, 16, false, ""},
		{"more than one model has", nil, 17, true, "16 of its 17 workers would fit on A100-80G"},
		{"mixed", func(b *weftv1.JobSpec_builder) { b.Mixed = new(true) }, 20, false, ""},
		{"a rack", within(rack), 8, false, ""},
		{"more than a rack", within(rack), 9, true, "8 of its 9 workers would fit on A100-80G"},
		{"another model", func(b *weftv1.JobSpec_builder) { b.Models = []string{"H100-80G"} }, 5, true, "4 of its 5 workers would fit on H100-80G"},
		{"no such model", func(b *weftv1.JobSpec_builder) { b.Models = []string{"B200"} }, 1, true, "not even one worker fits an empty node of this cell"},
		{"four cards a worker", gpus(4000), 4, false, ""},
		{"five cards a worker", gpus(5000), 1, true, "not even one worker fits an empty node of this cell"},
		{"half cards", gpus(500), 32, false, ""},
		{"no cards", gpus(0), 40, false, ""},
		{"no cards, too much cpu", gpus(0), 41, true, "40 of its 41 workers would fit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := cellOf(t)
			j := submit(s, "j", c.change, group{c.workers, c.workers})
			never, largest := NeverFits(s, j.Spec)
			if never != c.never || largest != c.largest {
				t.Fatalf("got %v %q, want %v %q", never, largest, c.never, c.largest)
			}
		})
	}
}

// An overlay sees its own changes and keeps what its base was, while the base goes on.
func TestOverlay(t *testing.T) {
	s := cellOf(t)
	submit(s, "j", nil, group{1, 1})
	o := s.Overlay()
	place := weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{
		Job: new("j"), Attempt: new(uint32(1)), Size: new(uint32(1)), Placements: []*weftv1.Placement{at("a0", 0, 0, 2)},
	}.Build()}.Build()
	Evolve(o, place, 3)
	if s.Job("j").Phase != Queued || len(slices.Collect(s.OnNode("a0"))) != 0 || Free(s, s.Node("a0")).DeviceMilli[2] != 1000 {
		t.Fatal("a change of the overlay reached the base")
	}
	if o.Job("j").Phase != Starting || len(slices.Collect(o.OnNode("a0"))) != 1 || Free(o, o.Node("a0")).DeviceMilli[2] != 0 {
		t.Fatal("the overlay does not see its own change")
	}
	Evolve(s, weftv1.Fact_builder{JobCancelled: weftv1.JobCancelled_builder{Job: new("j")}.Build()}.Build(), 4)
	submit(s, "k", nil, group{1, 1})
	if o.Job("j").Phase != Starting || o.Job("k") != nil || len(slices.Collect(o.Jobs())) != 1 {
		t.Fatal("a change of the base reached the overlay")
	}
	if ids := fmt.Sprint(phases(s)); ids != "map[j:cancelled k:queued]" {
		t.Fatal(ids)
	}
}

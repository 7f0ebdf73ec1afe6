package lifecycle

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// A switch dies, and all nodes behind it are lost at one instant: what that makes true must fit commits of the ledger.
func TestManyNodesLostAtOnceFitTheLedger(t *testing.T) {
	const nodes, jobs = 600, 4 // jobs a node
	w := newWorld(t)
	fold := func(c Command) int {
		facts, err := Decide(w.s, c, w.now, w.pol)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, f := range facts {
			size += proto.Size(f) + 64
			cell.Evolve(w.s, f, w.now)
		}
		return size
	}
	fold(ApplyQueues{Queues: []*weftv1.QueueSet{weftv1.QueueSet_builder{Queue: new("demo"), Weight: new(int64(1))}.Build()}})
	for n := range nodes {
		name := fmt.Sprintf("node-with-a-long-name-%d", n)
		inv := weftv1.Inventory_builder{
			Host: &name, Address: new("127.0.0.1"), CpuMilli: new(int64(8000)), MemoryBytes: new(int64(8 << 30)),
			PortBase: new(uint32(30000)), PortCount: new(uint32(64)), Rack: new("r1"),
		}
		for i := range jobs {
			inv.Devices = append(inv.Devices, weftv1.Device_builder{
				Uuid: new(fmt.Sprintf("%s-%d", name, i)), Model: new("A100-80G"), Health: new(weftv1.DeviceHealth_DEVICE_HEALTH_OK),
			}.Build())
		}
		fold(Report{weftv1.Report_builder{Node: &name, BootId: new("b"), Hello: weftv1.Hello_builder{Inventory: inv.Build()}.Build()}.Build()})
		for i := range jobs {
			id := fmt.Sprintf("01j%023d", n*jobs+i)
			spec := weftv1.JobSpec_builder{Name: new("j" + id[12:]), Queue: new("demo"), Groups: []*weftv1.Group{weftv1.Group_builder{
				Name: new("worker"), Min: new(uint32(1)), Max: new(uint32(1)), GpuMilli: new(int64(1000)), CpuMilli: new(int64(1000)),
				MemoryBytes: new(int64(1 << 30)), Command: []string{"true"},
			}.Build()}}.Build()
			fold(Submit{Tenant: "demo", Job: id, Spec: spec, SpecHash: "b3-" + id})
			fold(Place{Start: weftv1.Start_builder{Job: &id, Placements: []*weftv1.Placement{weftv1.Placement_builder{
				Node: &name, Generation: &w.s.Node(name).Generation, Group: new(uint32(0)), FirstRank: new(uint32(0)), Count: new(uint32(1)),
				Devices: []uint32{uint32(i)}, Milli: new(int64(1000)),
			}.Build()}}.Build()})
		}
	}
	for n := range nodes {
		fold(Silent{Node: fmt.Sprintf("node-with-a-long-name-%d", n)})
	}
	w.now += int64(w.pol.Fence)
	ticks := 0
	for due := NextDeadline(w.s, w.pol); due != 0 && due <= w.now; due = NextDeadline(w.s, w.pol) {
		if size := fold(Tick{}); size == 0 || size > ledger.MaxCommit {
			t.Fatalf("tick %d makes %d bytes true at once, the ledger takes %d", ticks, size, ledger.MaxCommit)
		}
		ticks++
	}
	for n := range w.s.Nodes() {
		if n.Condition != cell.Lost {
			t.Fatalf("%s is %s", n.Name, n.Condition)
		}
	}
	for j := range w.s.ActiveJobs() {
		t.Fatalf("%s is still %s", j.ID, j.Phase)
	}
	if ticks < 2 {
		t.Fatalf("%d ticks: the test is too small", ticks)
	}
}

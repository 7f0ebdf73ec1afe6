package shell

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// fakeAgent obeys its assignment at once, and says so.
type fakeAgent struct {
	r        *rig
	name     string
	boot     string
	muted    bool // no beats
	idle     bool // starts nothing
	pending  bus.Pending
	sent     time.Time
	contact  time.Time // when the last answered beat was sent, by a leader that knew the node
	unknown  int       // answers that say so
	started  map[string]bool
	released map[string]bool
	seen     uint64 // ledger sequence of the newest assignment
}

// agent adds a machine with four devices, and says hello.
func (r *rig) agent(name string) *fakeAgent {
	a := &fakeAgent{r: r, name: name, boot: "boot-1", started: map[string]bool{}, released: map[string]bool{}}
	r.agents[name] = a
	a.say(weftv1.Report_builder{Hello: weftv1.Hello_builder{Inventory: a.inventory()}.Build()})
	return a
}

func (a *fakeAgent) inventory() *weftv1.Inventory {
	name := a.name
	inv := weftv1.Inventory_builder{
		Host: &name, Address: new("127.0.0.1"), CpuMilli: new(int64(8000)), MemoryBytes: new(int64(8 << 30)),
		PortBase: new(uint32(30000)), PortCount: new(uint32(64)), Rack: new("r1"),
	}
	for i := range 4 {
		inv.Devices = append(inv.Devices, weftv1.Device_builder{
			Uuid: new(fmt.Sprintf("%s-%d", name, i)), Model: new("A100-80G"), Health: new(weftv1.DeviceHealth_DEVICE_HEALTH_OK), Clique: new(uint32(1)),
		}.Build())
	}
	return inv.Build()
}

func (a *fakeAgent) say(b weftv1.Report_builder) {
	b.Node, b.BootId, b.TimeNs = &a.name, &a.boot, new(a.r.now.UnixNano())
	data, err := proto.Marshal(b.Build())
	if err != nil {
		a.r.t.Fatal(err)
	}
	a.r.publish(bus.StreamReports, bus.SubjectReport(a.name), data)
}

// beat sends a beat, unless the agent is cut off.
func (a *fakeAgent) beat() {
	a.hear()
	if a.muted {
		return
	}
	data, err := proto.Marshal(weftv1.Beat_builder{Node: &a.name, BootId: &a.boot}.Build())
	if err != nil {
		a.r.t.Fatal(err)
	}
	a.pending, a.sent = a.r.bus.Caller().Call(bus.SubjectBeat(a.name), data, 2*time.Second), a.r.now
}

// hear takes the answer of the last beat, if it is there.
func (a *fakeAgent) hear() {
	if a.pending == nil {
		return
	}
	reply, done := a.pending.Poll()
	if !done {
		return
	}
	a.pending = nil
	var b weftv1.BeatAnswer
	if reply.Err != nil || proto.Unmarshal(reply.Data, &b) != nil {
		return
	}
	if b.GetUnknown() {
		a.unknown++ // it holds nothing any more that an answer could keep alive
		return
	}
	a.contact = a.sent
}

// work reads the assignment and does what it says.
func (a *fakeAgent) work() (did bool) {
	a.hear()
	m, _, ok, err := a.r.bus.Outbox(bus.StreamAssignments).Get(context.Background(), bus.SubjectAssign(a.name))
	if err != nil || !ok || a.idle {
		return false
	}
	var want weftv1.Assignment
	if err := proto.Unmarshal(m.Data, &want); err != nil {
		a.r.t.Fatal(err)
	}
	if want.GetLedgerSeq() < a.seen {
		a.r.t.Fatalf("%s: the assignment went back from ledger record %d to %d", a.name, a.seen, want.GetLedgerSeq())
	}
	a.seen = want.GetLedgerSeq()
	for _, x := range want.GetAttempts() {
		key := fmt.Sprintf("%s/%d", x.GetJob(), x.GetAttempt())
		switch {
		case x.HasStop() && !a.released[key]:
			a.release(x.GetJob(), x.GetAttempt(), false)
			did = true
		case !x.HasStop() && !a.started[key]:
			a.started[key] = true
			a.say(weftv1.Report_builder{RanksStarted: weftv1.RanksStarted_builder{Job: new(x.GetJob()), Attempt: new(x.GetAttempt())}.Build()})
			did = true
		}
	}
	return did
}

func (a *fakeAgent) release(job string, attempt uint32, completed bool) {
	a.released[fmt.Sprintf("%s/%d", job, attempt)] = true
	a.say(weftv1.Report_builder{AttemptReleased: weftv1.AttemptReleased_builder{Job: &job, Attempt: &attempt, Completed: &completed}.Build()})
}

// runs lists what was started here, in order.
func (a *fakeAgent) runs() []string { return slices.Sorted(maps.Keys(a.started)) }

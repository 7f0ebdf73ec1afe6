package lifecycle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// runOf is one node's part of an attempt, as the machine has it: the physical truth that the ledger is judged by.
type runOf struct {
	key       cell.Stray
	devices   []uint32
	alive     bool // some process exists
	bad       bool // a rank failed
	completed bool // every rank exited 0, unasked
	stopping  bool
	killAt    int64
	said      struct{ started, bad, released bool }
}

// agent is a simulated machine with its agent: its processes, what it was last told, and what it has yet to say.
type agent struct {
	f       *fabric
	name    string
	boots   int
	up      bool // powered
	linked  bool // reaches the bus
	contact int64
	desired *weftv1.Assignment
	runs    map[cell.Stray]*runOf
	out     []*weftv1.Report // not yet published
	failed  map[uint32]bool  // devices
}

func (a *agent) GoString() string { return a.name }

func (r *runOf) GoString() string { return fmt.Sprint(r.key) }

// margin before the fence at which an agent without contact has killed its ranks.
func margin(p Policy) int64 { return int64(min(15*time.Second, p.Fence/4)) }

func (a *agent) sorted() []*runOf {
	return slices.SortedFunc(maps.Values(a.runs), func(x, y *runOf) int {
		return cmp.Or(cmp.Compare(x.key.Job, y.key.Job), cmp.Compare(x.key.Attempt, y.key.Attempt))
	})
}

func (a *agent) say(r weftv1.Report_builder) {
	r.Node, r.BootId, r.TimeNs = &a.name, new(a.boot()), &a.f.now
	a.out = append(a.out, r.Build())
}

func (a *agent) boot() string { return fmt.Sprintf("boot-%d", a.boots) }

func (a *agent) hello() {
	h := weftv1.Hello_builder{Inventory: a.inventory()}
	for _, r := range a.sorted() {
		h.Held = append(h.Held, weftv1.HeldAttempt_builder{Job: &r.key.Job, Attempt: &r.key.Attempt}.Build())
	}
	a.say(weftv1.Report_builder{Hello: h.Build()})
}

func (a *agent) inventory() *weftv1.Inventory {
	inv := weftv1.Inventory_builder{
		Host: &a.name, Address: new("127.0.0.1"), CpuMilli: new(int64(8000)), MemoryBytes: new(int64(8 << 30)),
		PortBase: new(uint32(30000)), PortCount: new(uint32(12)), Rack: new("r" + a.name[len(a.name)-1:]),
	}
	for i := range uint32(4) {
		h := weftv1.DeviceHealth_DEVICE_HEALTH_OK
		if a.failed[i] {
			h = weftv1.DeviceHealth_DEVICE_HEALTH_FAILED
		}
		inv.Devices = append(inv.Devices, weftv1.Device_builder{
			Uuid: new(fmt.Sprintf("%s-%d", a.name, i)), Model: new("A100-80G"), Health: &h, Clique: new(uint32(1)),
		}.Build())
	}
	return inv.Build()
}

// fenced kills what runs once contact has been away for too long.
func (a *agent) fenced() bool {
	if a.f.now < a.contact+int64(a.f.pol.Fence)-margin(a.f.pol) {
		return false
	}
	for _, r := range a.runs {
		a.kill(r)
	}
	return true
}

func (a *agent) kill(r *runOf) {
	if r.alive {
		r.alive, r.stopping = false, true
	}
}

// timers does what the agent does by its own clock.
func (a *agent) timers() {
	if !a.up {
		return
	}
	a.fenced()
	for _, r := range a.runs {
		if r.stopping && a.f.now >= r.killAt {
			a.kill(r)
		}
	}
}

// reconcile obeys the newest assignment, and queues what has become true.
func (a *agent) reconcile() {
	if !a.up {
		return
	}
	fenced := a.fenced()
	if a.linked && a.f.assigned[a.name] != nil {
		a.desired = a.f.assigned[a.name]
	}
	want := map[cell.Stray]*weftv1.AssignedAttempt{}
	for _, x := range a.desired.GetAttempts() {
		key := cell.Stray{Job: x.GetJob(), Attempt: x.GetAttempt()}
		want[key] = x
		r := a.runs[key]
		switch {
		case r == nil && x.HasStop():
			a.runs[key] = &runOf{key: key} // nothing here, and that is said below
		case r == nil && !fenced && a.desired.GetBootId() == a.boot():
			a.launch(key, x)
		case r != nil && x.HasStop() && r.alive:
			if !r.stopping || x.GetKillAtNs() < r.killAt {
				r.stopping, r.killAt = true, x.GetKillAtNs()
			}
		}
	}
	for _, r := range a.sorted() {
		if want[r.key] == nil && a.desired != nil {
			a.kill(r)
		}
		a.speak(r)
		if r.said.released && want[r.key] == nil && a.desired != nil {
			delete(a.runs, r.key)
		}
	}
}

// launch starts ranks: the moment at which a device that was granted twice would be used twice.
func (a *agent) launch(key cell.Stray, x *weftv1.AssignedAttempt) {
	r := &runOf{key: key, alive: true}
	for _, p := range x.GetPlacements() {
		r.devices = append(r.devices, p.GetDevices()...)
	}
	for _, other := range a.runs {
		for _, d := range r.devices {
			if other.alive && slices.Contains(other.devices, d) {
				a.f.t.Fatalf("I1: device %d of %s is used by %v and given to %v", d, a.name, other.key, key)
			}
		}
	}
	a.runs[key] = r
}

func (a *agent) speak(r *runOf) {
	job, attempt := &r.key.Job, &r.key.Attempt
	if len(r.devices) > 0 && !r.said.started {
		r.said.started = true
		a.say(weftv1.Report_builder{RanksStarted: weftv1.RanksStarted_builder{Job: job, Attempt: attempt}.Build()})
	}
	if r.bad && !r.said.bad {
		r.said.bad = true
		a.say(weftv1.Report_builder{RanksExited: weftv1.RanksExited_builder{Job: job, Attempt: attempt, Exits: []*weftv1.RankExit{
			weftv1.RankExit_builder{Rank: new(uint32(0)), ExitCode: new(int32(1)), TimeNs: &a.f.now}.Build(),
		}}.Build()})
	}
	if !r.alive && !r.said.released {
		r.said.released = true
		a.say(weftv1.Report_builder{AttemptReleased: weftv1.AttemptReleased_builder{Job: job, Attempt: attempt, Completed: &r.completed}.Build()})
	}
}

// restart is a new agent on the same machine: it adopts what runs, and says everything again.
func (a *agent) restart() {
	a.out = nil
	for key, r := range a.runs {
		r.said.started, r.said.bad, r.said.released = false, false, false
		if len(r.devices) == 0 { // nothing ever ran: no run directory
			delete(a.runs, key)
		}
	}
	a.hello()
}

// reboot loses processes, files and unsaid reports.
func (a *agent) reboot() {
	a.runs, a.out, a.up, a.contact = map[cell.Stray]*runOf{}, nil, true, a.f.now
	a.desired = nil
	a.boots++
	a.hello()
}

func (a *agent) alive(job string, attempt uint32) bool {
	r := a.runs[cell.Stray{Job: job, Attempt: attempt}]
	return r != nil && r.alive
}

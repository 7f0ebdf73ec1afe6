package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Random users, machines, faults and restarts drive Decide and Evolve; the oracle in model_test.go holds I1–I4, I7 and
// I8 after every fact. At the end everything heals, and every job must come to its end.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFabric(t, rapid.IntRange(1, 4).Draw(t, "nodes"))
		steps := rapid.IntRange(20, 140).Draw(t, "steps")
		for range steps {
			name := rapid.SampledFrom(actionNames).Draw(t, "action")
			actions[name](f)
		}
		f.heal()
	})
}

var actionNames = func() []string {
	var out []string
	for _, w := range []struct {
		name string
		n    int
	}{
		{"submit", 3}, {"resubmit", 1}, {"cancel", 1}, {"place", 6}, {"place wrongly", 3}, {"evict", 1}, {"claim", 1},
		{"flow", 4}, {"outbox", 2}, {"reconcile", 4}, {"publish", 3}, {"consume", 4}, {"time", 4}, {"finish", 3},
		{"rank fails", 2}, {"exits when asked", 3}, {"launch fails", 1}, {"save", 3}, {"void", 1}, {"restore fails", 1}, {"device", 1},
		{"agent restarts", 2}, {"reboot", 1}, {"power off", 1}, {"cut", 1}, {"heal", 2}, {"cordon", 1}, {"shut down", 1},
		{"reader restarts", 2}, {"scheduler stops", 1}, {"scheduler takes over", 2}, {"long cut", 1}, {"outage", 1},
	} {
		for range w.n {
			out = append(out, w.name)
		}
	}
	return out
}()

var actions = map[string]func(*fabric){
	"submit":   func(f *fabric) { f.submitOne() },
	"resubmit": func(f *fabric) { f.resubmit() },
	"cancel": func(f *fabric) {
		if id, ok := f.anyJob(); ok && f.up {
			_ = f.decide(Cancel{Job: id, By: "ann"}) // an ended one is refused
		}
	},
	"place":         func(f *fabric) { f.placeOne(false) },
	"place wrongly": func(f *fabric) { f.placeOne(true) },
	"evict": func(f *fabric) {
		if b, ok := f.anyJob(); ok && f.up {
			v, _ := f.anyJob()
			_ = f.decide(Evict{weftv1.Evict_builder{Beneficiary: &b, Victims: []string{v}}.Build()})
		}
	},
	"claim": func(f *fabric) {
		if id, ok := f.anyJob(); ok && f.up {
			_ = f.decide(Claim{Job: id, Nodes: []string{f.anyAgent().name}})
		}
	},
	"flow":      func(f *fabric) { f.flow() },
	"outbox":    func(f *fabric) { f.outbox() },
	"reconcile": func(f *fabric) { f.anyAgent().reconcile() },
	"publish":   func(f *fabric) { f.publish(f.anyAgent()) },
	"consume":   func(f *fabric) { f.consume(rapid.IntRange(0, 4).Draw(f.t, "twice") == 0) },
	"time": func(f *fabric) {
		f.advance(rapid.SampledFrom([]time.Duration{time.Second, 3 * time.Second, 11 * time.Second, 40 * time.Second, 150 * time.Second}).Draw(f.t, "passes"))
	},
	"finish":           func(f *fabric) { f.finish(f.anyAgent()) },
	"exits when asked": func(f *fabric) { f.obey(f.anyAgent()) },
	"rank fails": func(f *fabric) {
		if r := f.anyRun(f.anyAgent()); r != nil && !r.stopping {
			r.bad = true
			r.alive = rapid.Bool().Draw(f.t, "peers go on")
		}
	},
	"launch fails":  func(f *fabric) { f.launchFails(f.anyAgent()) },
	"save":          func(f *fabric) { f.save() },
	"void":          func(f *fabric) { f.void() },
	"restore fails": func(f *fabric) { f.restoreFails(f.anyAgent()) },
	"device": func(f *fabric) {
		a, d := f.anyAgent(), rapid.Uint32Range(0, 3).Draw(f.t, "device")
		a.failed[d] = !a.failed[d]
		if a.up {
			a.say(weftv1.Report_builder{DeviceFault: weftv1.DeviceFault_builder{
				Device: &d, Uuid: new(fmt.Sprintf("%s-%d", a.name, d)), Reason: new("xid 79"), Recovered: new(!a.failed[d]),
			}.Build()})
		}
	},
	"agent restarts": func(f *fabric) {
		if a := f.anyAgent(); a.up {
			a.restart()
			for _, r := range a.sorted() { // before it has read what is wanted now
				a.speak(r)
			}
			if rapid.Bool().Draw(f.t, "heard") {
				f.publish(a)
				for f.consume(false) {
				}
			}
		}
	},
	"reboot": func(f *fabric) { f.anyAgent().reboot() },
	"power off": func(f *fabric) {
		a := f.anyAgent()
		a.up, a.runs, a.out = false, map[cell.Stray]*runOf{}, nil
	},
	"cut": func(f *fabric) { f.anyAgent().linked = false },
	"heal": func(f *fabric) {
		a := f.anyAgent()
		a.linked = true
		if !a.up {
			a.reboot()
		}
	},
	"cordon": func(f *fabric) {
		if f.up {
			f.must(Cordon{Node: f.anyAgent().name, Reason: "fan", Drain: rapid.Bool().Draw(f.t, "drain"), Undo: rapid.Bool().Draw(f.t, "undo")})
		}
	},
	"shut down": func(f *fabric) {
		if f.up {
			f.must(ShutDown{})
		}
	},
	"reader restarts":      func(f *fabric) { f.rebuild(rapid.Bool().Draw(f.t, "replay")) },
	"scheduler stops":      func(f *fabric) { f.up = false },
	"scheduler takes over": func(f *fabric) { f.takeOver() },
	"long cut": func(f *fabric) { // a node out of contact until it is lost, or nearly
		f.anyAgent().linked = false
		f.advance(rapid.SampledFrom([]time.Duration{100 * time.Second, 140 * time.Second}).Draw(f.t, "cut"))
	},
	"outage": func(f *fabric) { // of the scheduler, while a node is silent perhaps
		f.up = false
		f.advance(rapid.SampledFrom([]time.Duration{30 * time.Second, 130 * time.Second}).Draw(f.t, "outage"))
		f.takeOver()
		f.advance(2 * time.Second)
	},
}

func (f *fabric) anyAgent() *agent { return rapid.SampledFrom(f.agents).Draw(f.t, "node") }

func (f *fabric) anyJob() (string, bool) {
	if len(f.order) == 0 {
		return "", false
	}
	return rapid.SampledFrom(f.order).Draw(f.t, "job"), true
}

func (f *fabric) anyRun(a *agent) *runOf {
	var out []*runOf
	for _, r := range a.sorted() {
		if r.alive {
			out = append(out, r)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return rapid.SampledFrom(out).Draw(f.t, "run")
}

// takeOver is I8: a new leader reads the ledger, and what runs goes on untouched.
func (f *fabric) takeOver() {
	var before []string
	for j := range f.s.ActiveJobs() {
		before = append(before, fmt.Sprint(j.ID, j.Attempt.Number, j.Phase))
	}
	f.rebuild(rapid.Bool().Draw(f.t, "replay"))
	f.s, f.shadow = f.shadow, f.s
	f.up = true
	for _, a := range f.agents { // its own clock begins anew
		f.heard[a.name] = f.now
	}
	f.must(TakeOver{})
	var after []string
	for j := range f.s.ActiveJobs() {
		after = append(after, fmt.Sprint(j.ID, j.Attempt.Number, j.Phase))
	}
	if !slices.Equal(before, after) {
		f.t.Fatalf("I8: a restart of the control plane changed what runs: %v → %v", before, after)
	}
}

func (f *fabric) submitOne() {
	if !f.up || len(f.order) >= 12 {
		return
	}
	least := rapid.Uint32Range(1, 3).Draw(f.t, "min")
	spec := weftv1.JobSpec_builder{
		Name: new(fmt.Sprintf("j%d", len(f.order))), Queue: new(rapid.SampledFrom([]string{"demo", "demo/vision"}).Draw(f.t, "queue")),
		Groups: []*weftv1.Group{weftv1.Group_builder{
			Name: new("worker"), Min: &least, Max: new(least + rapid.Uint32Range(0, 2).Draw(f.t, "extra")), GpuMilli: new(int64(1000)),
			CpuMilli: new(int64(1500)), MemoryBytes: new(int64(1 << 30)), Command: []string{"true"},
		}.Build()},
		Checkpoint: weftv1.CheckpointPolicy_builder{GraceNs: new(int64(20 * time.Second))}.Build(),
		Restart:    weftv1.RestartPolicy_builder{Max: new(rapid.Uint32Range(0, 3).Draw(f.t, "restarts")), BackoffNs: new(int64(5 * time.Second))}.Build(),
	}
	if rapid.IntRange(0, 5).Draw(f.t, "limited") == 0 {
		spec.LimitNs = new(int64(90 * time.Second))
	}
	id := fmt.Sprintf("01j%023d", len(f.order))
	f.must(Submit{Tenant: "demo", Job: id, Spec: spec.Build(), SpecHash: "b3-" + id, By: "ann"})
	f.acked[id] = &books{hash: "b3-" + id, saves: map[string]*weftv1.SaveRef{}, completed: map[cell.Stray]map[string]bool{}, nodes: map[cell.Stray][]string{}}
	f.order = append(f.order, id)
}

func (f *fabric) resubmit() {
	id, ok := f.anyJob()
	j := f.s.Job(id)
	if !ok || j == nil || !f.up {
		return
	}
	n := len(f.log)
	f.must(Submit{Tenant: "demo", Job: id, Spec: j.Spec, SpecHash: j.SpecHash})
	if err := f.decide(Submit{Tenant: "demo", Job: id, Spec: j.Spec, SpecHash: "other"}); err == nil || len(f.log) != n {
		f.t.Fatalf("I3: the id %s was taken for two jobs", id)
	}
}

// placeOne is a planner that knows no fairness: any queued job, on whatever is free. With wrong it makes one mistake,
// which must be refused unless it happens to be right.
func (f *fabric) placeOne(wrong bool) {
	if !f.up {
		return
	}
	var waiting []*cell.Job
	for j := range f.s.WaitingJobs() {
		if j.Phase == cell.Queued {
			waiting = append(waiting, j)
		}
	}
	if len(waiting) == 0 {
		return
	}
	j := waiting[rapid.IntRange(0, len(waiting)-1).Draw(f.t, "job")]
	g := j.Spec.GetGroups()[0]
	want := rapid.Uint32Range(g.GetMin(), g.GetMax()).Draw(f.t, "size")
	st := f.fit(j, want, rapid.Permutation(f.agents).Draw(f.t, "order"))
	if st == nil {
		return
	}
	if wrong {
		f.spoil(st)
	}
	_ = f.decide(Place{Start: st}) // refused by a claim, the queue's limit, or for its mistake
}

func (f *fabric) spoil(st *weftv1.Start) {
	ps := st.GetPlacements()
	p := ps[rapid.IntRange(0, len(ps)-1).Draw(f.t, "placement")]
	switch rapid.IntRange(0, 6).Draw(f.t, "mistake") {
	case 0:
		p.GetDevices()[0] = rapid.Uint32Range(0, 4).Draw(f.t, "device")
	case 1:
		p.SetPortBase(rapid.Uint32Range(29999, 30012).Draw(f.t, "port"))
		p.SetPortCount(rapid.Uint32Range(p.GetCount(), p.GetCount()+1).Draw(f.t, "ports"))
	case 2:
		p.SetNode(f.anyAgent().name)
	case 3:
		p.SetCount(p.GetCount() + rapid.Uint32Range(0, 2).Draw(f.t, "more") - 1)
	case 4:
		p.SetGeneration(p.GetGeneration() + 1)
	case 5:
		p.SetMilli(rapid.SampledFrom([]int64{0, 1, 500, 2000}).Draw(f.t, "milli"))
	case 6:
		st.SetPlacements(append(ps, p))
	}
}

func (f *fabric) fit(j *cell.Job, want uint32, order []*agent) *weftv1.Start {
	st := weftv1.Start_builder{Job: &j.ID}
	rank := uint32(0)
	for _, a := range order {
		n := f.s.Node(a.name)
		if n == nil || cell.Usable(f.s, n, j.ID) != nil || rank == want {
			continue
		}
		free := cell.Free(f.s, n)
		var devices []uint32
		for d, milli := range free.DeviceMilli {
			if milli == 1000 && rank+uint32(len(devices)) < want && int64(len(devices)+1)*1500 <= free.CPUMilli {
				devices = append(devices, uint32(d))
			}
		}
		if len(devices) > 0 {
			st.Placements = append(st.Placements, weftv1.Placement_builder{
				Node: &n.Name, Generation: &n.Generation, Group: new(uint32(0)), FirstRank: new(rank), Count: new(uint32(len(devices))),
				Devices: devices, Milli: new(int64(1000)),
			}.Build())
			rank += uint32(len(devices))
		}
	}
	if rank != want {
		return nil
	}
	return st.Build()
}

func (f *fabric) finish(a *agent) {
	if r := f.anyRun(a); r != nil && !r.stopping && !r.bad {
		f.complete(a, r)
	}
}

func (f *fabric) complete(a *agent, r *runOf) {
	r.alive, r.completed = false, true
	b := f.acked[r.key.Job]
	if b.completed[r.key] == nil {
		b.completed[r.key] = map[string]bool{}
	}
	b.completed[r.key][a.name] = true
}

// obey ends what was asked to stop.
func (f *fabric) obey(a *agent) {
	for _, r := range a.sorted() {
		if r.stopping {
			a.kill(r)
		}
	}
}

func (f *fabric) launchFails(a *agent) {
	if r := f.anyRun(a); r != nil && !r.stopping && !r.said.started {
		r.alive, r.said.started = false, true
		k := rapid.SampledFrom([]weftv1.CauseKind{weftv1.CauseKind_CAUSE_KIND_PORT_BUSY, weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED}).Draw(f.t, "why")
		a.say(weftv1.Report_builder{LaunchFailed: weftv1.LaunchFailed_builder{Job: &r.key.Job, Attempt: &r.key.Attempt, Kind: &k}.Build()})
	}
}

func (f *fabric) restoreFails(a *agent) {
	r := f.anyRun(a)
	if r == nil || r.stopping {
		return
	}
	for _, x := range a.desired.GetAttempts() {
		if x.GetJob() == r.key.Job && x.GetAttempt() == r.key.Attempt && x.HasResumeFrom() {
			r.alive = false
			a.say(weftv1.Report_builder{RestoreFailed: weftv1.RestoreFailed_builder{
				Job: &r.key.Job, Attempt: &r.key.Attempt, Save: new(x.GetResumeFrom().GetSave()), Message: new("hash differs"),
			}.Build()})
		}
	}
}

func (f *fabric) save() {
	id, ok := f.anyJob()
	if !ok || !f.up || f.acked[id].attempts == 0 {
		return
	}
	attempt := rapid.Uint32Range(1, f.acked[id].attempts).Draw(f.t, "attempt")
	step := rapid.Uint64Range(1, 30).Draw(f.t, "step")
	class := rapid.SampledFrom([]weftv1.SaveClass{weftv1.SaveClass_SAVE_CLASS_FULL, weftv1.SaveClass_SAVE_CLASS_LIGHT}).Draw(f.t, "class")
	f.must(Checkpointed{Job: id, Save: weftv1.SaveRef_builder{
		Save: new(fmt.Sprintf("a%d-s%d-%d", attempt, step, class)), Attempt: &attempt, Step: &step, Class: &class,
	}.Build()})
}

func (f *fabric) void() {
	if id, ok := f.anyJob(); ok && f.up {
		if j := f.s.Job(id); j != nil && len(j.Saves) > 0 {
			f.must(Checkpointed{Job: id, Save: rapid.SampledFrom(j.Saves).Draw(f.t, "save"), Voided: true})
		}
	}
}

// heal ends all faults. Then nothing may be stuck: every job comes to its end, and no node holds what it should not.
func (f *fabric) heal() {
	if !f.up {
		f.takeOver()
	}
	for _, a := range f.agents {
		a.linked = true
		if !a.up {
			a.reboot()
		}
		for d := range a.failed {
			if a.failed[d] {
				a.failed[d] = false
				a.say(weftv1.Report_builder{DeviceFault: weftv1.DeviceFault_builder{Device: &d, Recovered: new(true)}.Build()})
			}
		}
		f.flow() // a node that was lost, or rebooted, must be known before a person speaks of it
		f.must(Cordon{Node: a.name, Undo: true})
	}
	for range 60 {
		f.advance(5 * time.Second)
		f.flow()
		for _, a := range f.agents {
			f.obey(a)
			for _, r := range a.sorted() {
				if r.alive && !r.stopping && !r.bad {
					f.complete(a, r)
				}
			}
		}
		f.flow()
		for _, id := range f.order {
			if j := f.s.Job(id); j != nil && j.Phase == cell.Queued {
				if st := f.fit(j, j.Spec.GetGroups()[0].GetMin(), f.agents); st != nil {
					_ = f.decide(Place{Start: st})
				}
			}
		}
	}
	for n := range f.s.Nodes() {
		if len(n.Strays) > 0 || n.Condition != cell.Ready {
			f.t.Fatalf("all is well, and node %s is %s with strays %v", n.Name, n.Condition, n.Strays)
		}
	}
	for j := range f.s.LiveJobs() {
		if never, _ := cell.NeverFits(f.s, j.Spec); !never {
			f.t.Fatalf("all is well, and job %s is still %s: %v", j.ID, j.Phase, j.Cause)
		}
	}
	f.rebuild(true)
	f.sameEvents()
}

package shell

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/bus/faultbus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// TestAnAppendOfUnknownFateIsNeitherLostNorDoubled goes through the faults one by one, each at each of the first appends.
func TestAnAppendOfUnknownFateIsNeitherLostNorDoubled(t *testing.T) {
	for _, f := range []faultledger.Fault{drop, loseAck, late} {
		for skip := range 4 {
			t.Run(fmt.Sprintf("%d after %d", f, skip), func(t *testing.T) {
				r := newRig(t)
				p := r.leader("a")
				p.ledger.PlanAppends(append(make([]faultledger.Fault, skip), f)...)
				r.queue("demo")
				p.settle()
				n1 := r.agent("n1")
				id := r.submit(1)
				p.pass(5 * time.Second)
				if f == late {
					if errs := p.ledger.Land(context.Background()); len(errs) != 1 || errs[0] == nil {
						t.Fatalf("a late append landed: %v", errs)
					}
				}
				if len(p.failures) != 1 {
					t.Fatalf("failures: %v", p.failures)
				}
				n1.release(id, 1, true)
				p.pass(2 * time.Second)
				want := "queue_set job_submitted node_joined node_inventory job_placed node_started attempt_running released attempt_ended job_succeeded"
				if got := sorted(r.kinds()); got != sorted(want) {
					t.Fatal(got)
				}
				p.checkEvents()
				p.checkAssignments()
			})
		}
	}
}

func sorted(s string) string {
	f := strings.Fields(s)
	slices.Sort(f)
	return strings.Join(f, " ")
}

// TestAnOldLeadersAppendIsRefused: the old leader does not know that it is deposed, and tries.
func TestAnOldLeadersAppendIsRefused(t *testing.T) {
	r, old, _ := running(t)
	b := r.leader("b")
	r.submit(2)
	r.submitTo("nowhere", 3)
	old.step(old.decider) // it has not read the new term
	if old.writer.Leading() {
		t.Fatal("it still believes that it leads")
	}
	if len(old.failures) > 0 {
		t.Errorf("stepping down is no failure: %v", old.failures)
	}
	b.pass(time.Second)
	old.settle()
	if got := r.kinds("job_submitted", "input_rejected"); got != "job_submitted job_submitted input_rejected" {
		t.Fatal(got)
	}
	if j := b.job(jobID(2)); j.Phase != cell.Running {
		t.Fatal(j.Phase)
	}
}

// TestFaultsLoseAndDoubleNothing: replicas come, lead, lose sight of the ledger and of the bus, and are stepped in any
// order. Whatever happened, every request is decided once, no device is used twice, no node is lost while its ranks
// may live, and both outboxes say what the ledger says.
func TestFaultsLoseAndDoubleNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &faulty{rig: newRig(t), t: t}
		w.newReplica()
		w.queue("demo")
		for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			w.agent(fmt.Sprintf("n%d", i))
		}
		for range rapid.IntRange(10, 80).Draw(t, "steps") {
			w.act(rapid.SampledFrom(faultyActions).Draw(t, "action"))
		}
		w.heal()
	})
}

// TestNoNodeIsLostWhileItsRanksMayLive is I7 with a short fence, and nothing but beats, silence, deposed leaders and a
// ledger that comes and goes.
func TestNoNodeIsLostWhileItsRanksMayLive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &faulty{rig: newRig(t), t: t}
		w.policy.Fence = time.Minute
		p := w.newReplica()
		a := w.agent("n1")
		p.settle()
		for range rapid.IntRange(5, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{
				"time", "time", "time", "beat", "beat", "mute", "step", "step", "step", "fault", "blind", "lead", "replica", "fence",
			}).Draw(t, "action") {
			case "time":
				w.now = w.now.Add(rapid.SampledFrom([]time.Duration{time.Second, 2 * time.Second, 14 * time.Second, 16 * time.Second}).Draw(t, "passes"))
			case "beat":
				a.beat()
			case "mute":
				a.muted = !a.muted
			case "step":
				p := w.any()
				p.step(p.proj)
				p.step(p.decider)
			case "fault":
				w.any().ledger.PlanAppends(slices.Repeat([]faultledger.Fault{drop}, rapid.IntRange(1, 4).Draw(t, "appends"))...)
			case "blind":
				p := w.any()
				p.ledger.PlanAppends(slices.Repeat([]faultledger.Fault{drop}, 20)...)
				p.ledger.PlanReads(slices.Repeat([]faultledger.Fault{drop}, 60)...)
			case "lead":
				_ = w.any().writer.Lead(context.Background(), w.now)
			case "replica":
				if len(w.replicas) < 3 {
					w.newReplica()
				}
			case "fence": // almost over; somebody looks every few seconds
				p := w.any()
				for range 14 {
					w.now = w.now.Add(5 * time.Second)
					a.beat()
					p.step(p.proj)
					p.step(p.decider)
				}
			}
			w.check()
		}
	})
}

type faulty struct {
	*rig
	t         *rapid.T
	replicas  []*replica
	submitted []string
	rejected  int
}

var faultyActions = []string{
	"submit", "submit", "refused", "cancel", "step", "step", "step", "step", "step", "settle", "settle", "time", "time", "long",
	"beat", "beat", "finish", "fault", "fault", "write fault", "write fault", "read fault", "blind", "bus", "lead", "replica", "mute", "land",
}

func (w *faulty) newReplica() *replica {
	p := w.replica(fmt.Sprintf("r%d", len(w.replicas)))
	_ = p.writer.Lead(context.Background(), w.now) // the bus may be away
	w.replicas = append(w.replicas, p)
	return p
}

func (w *faulty) any() *replica {
	return w.replicas[rapid.IntRange(0, len(w.replicas)-1).Draw(w.t, "replica")]
}

func (w *faulty) anyAgent() *fakeAgent {
	return w.agents[rapid.SampledFrom(w.nodes()).Draw(w.t, "node")]
}

func (w *faulty) act(name string) {
	switch name {
	case "submit":
		w.submitted = append(w.submitted, w.submit(len(w.submitted)))
	case "refused":
		w.rejected++
		w.submitTo(fmt.Sprintf("demo/nowhere%d", w.rejected), 1000+w.rejected)
	case "cancel":
		if len(w.submitted) > 0 {
			id := rapid.SampledFrom(w.submitted).Draw(w.t, "job")
			w.request("cancel", weftv1.Request_builder{Cancel: weftv1.CancelJob_builder{Job: &id}.Build()})
		}
	case "step":
		p := w.any()
		p.step(p.shells()[rapid.IntRange(0, 3).Draw(w.t, "shell")])
		w.answerPlans(p)
	case "settle":
		w.any().settle()
	case "time":
		w.now = w.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, 100 * time.Millisecond, 3 * time.Second}).Draw(w.t, "passes"))
	case "long":
		p := w.any()
		for range rapid.IntRange(5, 45).Draw(w.t, "rounds") {
			w.now = w.now.Add(16 * time.Second)
			for _, n := range w.nodes() {
				w.agents[n].beat()
			}
			p.settle()
		}
	case "beat":
		w.anyAgent().beat()
	case "finish":
		w.finish(w.anyAgent())
	case "fault":
		w.any().ledger.PlanAppends(rapid.SampledFrom([]faultledger.Fault{drop, loseAck, late}).Draw(w.t, "fault"))
	case "write fault":
		p := w.any()
		out := p.outs[rapid.IntRange(0, len(p.outs)-1).Draw(w.t, "stream")]
		out.PlanWrites(rapid.SampledFrom([]faultbus.Fault{faultbus.Drop, faultbus.LoseAck, faultbus.Late}).Draw(w.t, "fault"))
		out.PlanReads(slices.Repeat([]faultbus.Fault{faultbus.Drop}, rapid.IntRange(0, 2).Draw(w.t, "reads"))...)
	case "read fault":
		p := w.any()
		in := p.ins[rapid.IntRange(0, len(p.ins)-1).Draw(w.t, "stream")]
		in.PlanReads(rapid.SliceOfN(rapid.SampledFrom([]faultbus.Fault{faultbus.Drop, faultbus.Delay, faultbus.Short}), 1, 4).Draw(w.t, "faults")...)
	case "blind":
		p := w.any()
		n := rapid.IntRange(1, 20).Draw(w.t, "reads")
		p.ledger.PlanReads(slices.Repeat([]faultledger.Fault{drop}, n)...)
	case "bus":
		// Reports are written by agents that wait for the bus; the outage here is the schedulers'.
		p := w.any()
		w.bus.SetDown(true)
		for _, s := range p.shells() {
			p.step(s)
		}
		w.bus.SetDown(false)
	case "lead":
		p := w.any()
		_ = p.writer.Lead(context.Background(), w.now)
	case "replica":
		if len(w.replicas) < 4 {
			w.newReplica()
		}
	case "mute":
		a := w.anyAgent()
		a.muted = !a.muted
	case "land":
		w.land()
	}
	w.check()
}

// land delivers what is late.
func (w *faulty) land() {
	for _, p := range w.replicas {
		p.ledger.Land(context.Background())
		for _, o := range p.outs {
			o.Land(context.Background())
		}
	}
}

// finish ends a run as its own success.
func (w *faulty) finish(a *fakeAgent) {
	for _, key := range a.runs() {
		if !a.released[key] {
			job, attempt, _ := strings.Cut(key, "/")
			var n uint32
			if _, err := fmt.Sscan(attempt, &n); err != nil {
				w.t.Fatal(err)
			}
			a.release(job, n, true)
			return
		}
	}
}

// check is I7 as the ledger and the agents see it: a node is lost only when its agent has killed its ranks for sure.
func (w *faulty) check() {
	pol := w.policy
	margin := min(15*time.Second, pol.Fence/4)
	for _, p := range w.replicas {
		if !p.writer.Leading() {
			continue
		}
		for n := range p.state().Nodes() {
			a := w.agents[n.Name]
			if a.hear(); n.Condition == cell.Lost && w.now.Before(a.contact.Add(pol.Fence-margin)) {
				w.t.Fatalf("I7: %s counts as lost, and a beat of %s ago was answered", n.Name, w.now.Sub(a.contact))
			}
		}
	}
}

// survivor is a replica that went through it all and still leads, or nil.
func (w *faulty) survivor() *replica {
	for _, p := range w.replicas {
		if !p.writer.Leading() {
			continue
		}
		p.settle() // it learns what became of its last append
		p.failures = nil
		if p.writer.Leading() {
			return p
		}
	}
	return nil
}

// heal ends all faults: one replica leads, and everything comes to its end.
func (w *faulty) heal() {
	for _, p := range w.replicas {
		p.ledger.Heal()
		for _, o := range p.outs {
			o.Heal()
		}
		for _, i := range p.ins {
			i.Heal()
		}
	}
	w.land()
	var p *replica
	if rapid.Bool().Draw(w.t, "the leader lives") {
		p = w.survivor()
	}
	if p == nil {
		p = w.replica("last")
		p.lead()
	}
	for range 40 {
		for _, n := range w.nodes() {
			w.agents[n].muted = false
			w.finish(w.agents[n])
			if c := p.state().Node(n); c == nil || c.Condition == cell.Lost {
				w.agent(n) // a new boot's agent says hello
			}
		}
		p.pass(time.Second)
	}
	if len(p.failures) > 0 {
		w.t.Fatalf("all is well, and %v", p.failures)
	}
	count := map[string]int{}
	for _, f := range w.facts() {
		switch {
		case f.HasJobSubmitted():
			count["submitted "+f.GetJobSubmitted().GetJob()]++
		case f.HasJobPlaced():
			x := f.GetJobPlaced()
			count[fmt.Sprint("placed ", x.GetJob(), x.GetAttempt())]++
		case f.HasAttemptEnded():
			x := f.GetAttemptEnded()
			count[fmt.Sprint("ended ", x.GetJob(), x.GetAttempt())]++
		case f.HasInputRejected() && strings.Contains(f.GetInputRejected().GetReason(), "nowhere"):
			count[fmt.Sprint("rejected ", f.GetInputRejected().GetSeq())]++
		}
	}
	rejected := 0
	for what, n := range count {
		if n != 1 {
			w.t.Errorf("%s %d times", what, n)
		}
		if strings.HasPrefix(what, "rejected") {
			rejected++
		}
	}
	for _, id := range w.submitted {
		if count["submitted "+id] != 1 {
			w.t.Errorf("%s was submitted %d times", id, count["submitted "+id])
		}
		if j := p.state().Job(id); j != nil && !j.Phase.Ended() {
			w.t.Errorf("all is well, and %s is %s", id, j.Phase)
		}
	}
	if rejected != w.rejected {
		w.t.Errorf("%d refusals, want %d", rejected, w.rejected)
	}
	p.checkEvents()
	p.checkAssignments()
}

// slow is a ledger whose disk takes its time.
type slow struct {
	ledger.Log
	rig  *rig
	took time.Duration
}

func (s *slow) Append(ctx context.Context, expected uint64, id string, data []byte) (uint64, error) {
	s.rig.now = s.rig.now.Add(s.took)
	return s.Log.Append(ctx, expected, id, data)
}

func TestASlowLedgerIsNotTheSilenceOfNodes(t *testing.T) {
	r := newRig(t)
	p := r.replica("a")
	p.ledger.Log = &slow{Log: r.log, rig: r, took: 20 * time.Second}
	p.lead()
	r.queue("demo")
	r.agent("n1")
	p.settle()
	for i := range 3 {
		id := r.submit(i)
		p.pass(3 * time.Second)
		if j := p.job(id); j.Phase != cell.Running {
			t.Fatalf("%s is %s", id, j.Phase)
		}
	}
	if got := r.kinds("node_silent", "node_lost"); got != "" {
		t.Fatal(got)
	}
	p.checkEvents()
}

package shell

import (
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// running is a cell of two nodes with a job on n1.
func running(t *testing.T) (*rig, *replica, string) {
	t.Helper()
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	id := r.submit(1)
	p.pass(time.Second)
	r.agent("n2")
	p.pass(time.Second)
	if j := p.job(id); j.Phase != cell.Running || !j.Attempt.Holds("n1") {
		t.Fatalf("the job is %s", j.Phase)
	}
	return r, p, id
}

func (p *replica) condition(node string) cell.NodeCondition { return p.state().Node(node).Condition }

func TestSilenceIsNotDeathUntilTheFence(t *testing.T) {
	r, p, id := running(t)
	pol := lifecycle.DefaultPolicy()
	r.agents["n1"].muted = true
	began := p.now
	p.pass(pol.Silent - time.Second)
	if c := p.condition("n1"); c != cell.Ready {
		t.Fatalf("%s within the allowed silence", c)
	}
	p.pass(time.Second)
	if c, other := p.condition("n1"), p.condition("n2"); c != cell.Silent || other != cell.Ready {
		t.Fatalf("n1 is %s, n2 %s", c, other)
	}
	p.pass(pol.Fence - time.Second)
	if j := p.job(id); j.Phase != cell.Running || j.Attempts != 1 {
		t.Fatalf("before the fence the job is %s in attempt %d", j.Phase, j.Attempts)
	}
	p.pass(2 * time.Second)
	if c := p.condition("n1"); c != cell.Lost {
		t.Fatalf("n1 is %s after %s", c, p.now.Sub(began))
	}
	if j := p.job(id); j.Attempts != 2 || !j.Attempt.Holds("n2") {
		t.Fatalf("attempt %d", j.Attempts)
	}
	if r.agents["n1"].contact.After(began) {
		t.Error("a beat was answered that was never sent")
	}
	// Back from the dead: it is told that nobody knows it.
	r.agents["n1"].muted = false
	p.pass(time.Second)
	if r.agents["n1"].unknown == 0 {
		t.Error("a lost node is not told to say hello")
	}
	p.checkEvents()
}

func TestANodeThatComesBackIsAnsweredByTheCommit(t *testing.T) {
	r, p, id := running(t)
	n1 := r.agents["n1"]
	n1.muted = true
	p.pass(time.Minute)
	contact := n1.contact
	n1.muted = false
	p.now = p.now.Add(time.Second)
	n1.beat()
	p.ledger.PlanAppends(drop)
	p.step(p.decider)
	if n1.hear(); n1.contact != contact || p.condition("n1") != cell.Silent {
		t.Fatalf("%s, and answered: the ledger does not say that it is back", p.condition("n1"))
	}
	p.settle()
	if c := p.condition("n1"); c != cell.Ready {
		t.Fatalf("n1 was heard, and is %s: what was noticed got lost with the commit", c)
	}
	n1.beat()
	p.settle()
	if n1.hear(); n1.contact != p.now {
		t.Fatal("no answer after the commit")
	}
	if j := p.job(id); j.Phase != cell.Running || j.Attempts != 1 {
		t.Fatal("the job was touched")
	}
	n1.muted = true
	p.pass(time.Minute)
	if got := r.kinds("node_silent", "node_back"); got != "node_silent node_back node_silent" {
		t.Fatalf("silent once more: %s", got)
	}
}

func TestAFailedCommitMovesTheFenceOfASilentNode(t *testing.T) {
	r, p, _ := running(t)
	pol := lifecycle.DefaultPolicy()
	r.agents["n1"].muted = true
	p.pass(pol.Silent + pol.Fence - 2*time.Second) // two seconds are left
	// The ledger is away over the deadline.
	r.submit(7)
	p.ledger.PlanAppends(drop, drop, drop)
	p.pass(3 * time.Second)
	if len(p.failures) != 3 {
		t.Fatalf("failures: %v", p.failures)
	}
	p.pass(time.Second)
	if c := p.condition("n1"); c != cell.Silent {
		t.Fatalf("n1 is %s, though it could not have been heard meanwhile", c)
	}
	p.pass(pol.Silent + time.Second)
	if c := p.condition("n1"); c != cell.Lost {
		t.Fatalf("n1 is %s for ever", c)
	}
}

func TestANewLeaderGivesSilentNodesTime(t *testing.T) {
	r, p, id := running(t)
	pol := lifecycle.DefaultPolicy()
	r.agents["n1"].muted = true
	p.pass(pol.Silent + pol.Fence - 2*time.Second)
	// Nobody leads over the deadline; then a new leader's first inputs cannot be read.
	p.now = p.now.Add(10 * time.Second)
	b := r.leader("b")
	b.step(b.proj)
	r.bus.SetDown(true)
	b.step(b.decider)
	r.bus.SetDown(false)
	b.settle()
	if c := b.condition("n1"); c != cell.Silent {
		t.Fatalf("n1 is %s before the new leader could have heard it", c)
	}
	r.agents["n1"].muted = false
	b.pass(time.Second)
	if c := b.condition("n1"); c != cell.Ready {
		t.Fatalf("n1 is %s", c)
	}
	if j := b.job(id); j.Phase != cell.Running || j.Attempts != 1 {
		t.Fatalf("the job is %s in attempt %d", j.Phase, j.Attempts)
	}
}

func TestALeaderThatWasHeldUpTakesItsOwnSilenceForNobodys(t *testing.T) {
	_, p, _ := running(t)
	p.now = p.now.Add(time.Minute) // suspended: no beat was answered, none is waiting
	p.settle()
	for _, n := range p.nodes() {
		if c := p.condition(n); c != cell.Ready {
			t.Fatalf("%s is %s", n, c)
		}
	}
}

func TestADeposedLeaderThatIsCutOffAnswersNoBeats(t *testing.T) {
	r, old, _ := running(t)
	pol := lifecycle.DefaultPolicy()
	r.leader("b")
	old.ledger.PlanReads(manyDrops...) // it cannot learn of its successor
	old.ledger.PlanAppends(manyDrops...)
	n1 := r.agents["n1"]
	began := old.now
	for range 60 {
		old.now = old.now.Add(time.Second)
		n1.beat()
		old.step(old.proj)
		old.step(old.decider)
	}
	n1.hear()
	if !old.writer.Leading() {
		t.Fatal("the old leader knows")
	}
	if d := n1.contact.Sub(began); d > pol.Silent {
		t.Fatalf("it kept ranks alive for %s more", d)
	}
}

func TestAStandbyAnswersNoBeatsAndSpinsOnNoPlan(t *testing.T) {
	r, old, _ := running(t)
	r.submit(2)
	old.step(old.decider)
	old.now = old.now.Add(debounce)
	old.step(old.decider)
	if old.decider.pending == nil {
		t.Fatal("no question is under way")
	}
	b := r.leader("b")
	old.step(old.proj)
	r.answerPlans(b) // the answer comes when the asker no longer leads
	n1 := r.agents["n1"]
	contact := n1.contact
	old.now = old.now.Add(time.Second)
	n1.beat()
	old.step(old.decider)
	if n1.hear(); n1.contact != contact {
		t.Error("a standby answered")
	}
	drain(old.decider.Wakes())
	old.step(old.decider)
	if ready(old.decider.Wakes()) {
		t.Error("something wakes a standby for ever")
	}
}

func TestABeatOfSomebodyElseIsRefused(t *testing.T) {
	r, p, _ := running(t)
	call := r.bus.Caller().Call(bus.SubjectBeat("n2"), []byte("garbage"), time.Second)
	p.settle()
	if reply, done := call.Poll(); !done || reply.Err == nil {
		t.Fatalf("%v", reply)
	}
}

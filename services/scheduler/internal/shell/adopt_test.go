package shell

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// adopt takes up what is left of the ledger, as `weft ledger adopt` does.
func (r *rig) adopt() *ledger.Loss {
	r.t.Helper()
	a := r.replica("adopt")
	a.writer.Confirmed = r.confirmed()
	a.writer.OnAdopt = Takeup(a.proj, a.writer, Reports{In: r.bus.Inbox(bus.StreamReports, ""), Out: r.bus.Outbox(bus.StreamReports)}, r.policy)
	loss, err := a.writer.Adopt(context.Background(), r.now)
	if err != nil {
		r.t.Fatal(err)
	}
	return loss
}

func (r *rig) confirmed() func(context.Context) (uint64, error) {
	return Confirmed(r.bus.Outbox(bus.StreamEvents), r.bus.Outbox(bus.StreamAssignments))
}

// A scheduler that starts after the loss, and never saw what was lost, knows of it by events and assignments.
func TestALostEndIsKnownFromOutside(t *testing.T) {
	r, p, _ := running(t)
	r.submit(2)
	p.settle()
	had := p.proj.Position().Seq
	r.log.LoseAfter(had - 3)
	b := r.replica("b")
	b.writer.Confirmed = r.confirmed()
	var loss *ledger.Loss
	if err := b.writer.Lead(context.Background(), r.now); !errors.As(err, &loss) || loss.Had.Seq <= had-3 || loss.Had.Seq > had {
		t.Fatalf("it leads a ledger that lost its end: %v", err)
	}
	if got := r.adopt(); got == nil || got.Had.Seq != loss.Had.Seq {
		t.Fatalf("adopted %+v, want %+v", got, loss)
	}
	if err := b.writer.Lead(context.Background(), r.now); err != nil {
		t.Fatal(err)
	}
}

// Job 2 was placed in the part that was lost. Its ranks run; the ledger, put back, has it queued. Nothing of it is started
// again before the node has said that it holds it, and has ended it.
func TestNothingIsGrantedTwiceAfterALoss(t *testing.T) {
	r, p, _ := running(t)
	r.submit(2)
	p.step(p.decider)
	before := p.proj.Position().Seq
	p.pass(time.Second)
	if p.job(jobID(2)).Phase != cell.Running {
		t.Fatal("the job does not run")
	}
	r.log.LoseAfter(before)
	if r.adopt() == nil {
		t.Fatal("no loss")
	}

	b := r.leader("b")
	b.settle()
	if j := b.job(jobID(2)); j.Phase != cell.Queued || j.Attempts != 0 {
		t.Fatalf("job 2 is %s in attempt %d", j.Phase, j.Attempts)
	}
	if b.job(jobID(1)).Phase != cell.Running {
		t.Fatal("job 1, of which nothing was lost, does not run on")
	}
	// The agents' next beats are answered: say hello.
	b.now = b.now.Add(time.Second)
	for _, n := range []string{"n1", "n2"} {
		r.agents[n].beat()
	}
	b.settle()
	for _, n := range []string{"n1", "n2"} {
		if a := r.agents[n]; a.unknown == 0 {
			t.Fatalf("%s was not asked what it holds", n)
		}
	}
	r.agents["n2"].hello()
	b.settle()
	if b.job(jobID(2)).Phase != cell.Queued {
		t.Fatal("started on n2 although n1 may hold it")
	}
	r.agents["n1"].hello(jobID(1), jobID(2))
	b.settle()
	if b.job(jobID(2)).Phase != cell.Queued {
		t.Fatal("started although n1 still holds it")
	}
	n1 := r.agents["n1"]
	n1.release(jobID(2), 1, false) // it is not in the assignment, so the agent ends it
	delete(n1.started, jobID(2)+"/1")
	delete(n1.released, jobID(2)+"/1")
	b.pass(3 * time.Second)
	for id, attempts := range map[string]uint32{jobID(1): 1, jobID(2): 1} {
		if j := b.job(id); j.Phase != cell.Running || j.Attempts != attempts {
			t.Fatalf("%s is %s in attempt %d", id, j.Phase, j.Attempts)
		}
	}
	if len(b.failures) > 0 {
		t.Fatal(b.failures)
	}
}

// hello says what the agent holds, each in its first attempt.
func (a *fakeAgent) hello(held ...string) {
	h := weftv1.Hello_builder{Inventory: a.inventory()}
	for _, job := range held {
		h.Held = append(h.Held, weftv1.HeldAttempt_builder{Job: &job, Attempt: new(uint32(1))}.Build())
	}
	a.say(weftv1.Report_builder{Hello: h.Build()})
}

// What ended well in the lost part stays ended: its reports are read again.
func TestASuccessOfTheLostPartStands(t *testing.T) {
	r, p, _ := running(t)
	before := p.proj.Position().Seq
	r.agents["n1"].release(jobID(1), 1, true)
	p.settle()
	if p.job(jobID(1)).Phase != cell.Succeeded {
		t.Fatal("the job has not succeeded")
	}
	r.log.LoseAfter(before)
	r.adopt()
	b := r.leader("b")
	b.settle()
	if j := b.job(jobID(1)); j.Phase != cell.Succeeded {
		t.Fatalf("job 1 is %s", j.Phase)
	}
}

package shell

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// A reader that is woken by a commit may look before the assigner has noted whom it touches.
func TestATouchIsNeverLostBetweenFoldAndNote(t *testing.T) {
	r, p, id := running(t)
	n1 := r.agents["n1"]
	n1.release(id, 1, true)
	proj := ledger.NewProjection(r.log, cellfold.Fold(), nil)
	var early *Assigner
	steps := 0
	proj.OnCommit(func(ledger.Position, *weftv1.Commit) {
		if early != nil { // between the fold and the note
			drain(early.Wakes())
			p.step(early)
			steps++
		}
	})
	w := ledger.NewWriter(r.log, proj, "scheduler", "early")
	early = NewAssigner(proj, w, r.bus.Outbox(bus.StreamAssignments), nil)
	if err := w.Lead(context.Background(), r.now); err != nil {
		t.Fatal(err)
	}
	p.step(early)
	drain(early.Wakes())
	released := weftv1.Fact_builder{Released: weftv1.Released_builder{Job: &id, Attempt: new(uint32(1)), Node: new("n1")}.Build()}.Build()
	if _, err := w.Commit(context.Background(), r.now, ledger.FactEntries([]*weftv1.Fact{released}), nil); err != nil {
		t.Fatal(err)
	}
	if steps == 0 || !ready(early.Wakes()) {
		t.Fatalf("%d early steps, and nothing wakes the assigner after the note", steps)
	}
	p.step(early)
	if got := p.assignment("n1"); len(got.GetAttempts()) != 0 {
		t.Fatalf("n1 still has %v", got.GetAttempts())
	}
}

func (p *replica) assignment(node string) *weftv1.Assignment {
	p.t.Helper()
	a, err := read(p.bus.Outbox(bus.StreamAssignments), node)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

func TestTouchedNodesAreWrittenOnceTheBusIsBack(t *testing.T) {
	r, p, id := running(t)
	r.request("cancel", weftv1.Request_builder{Cancel: weftv1.CancelJob_builder{Job: &id}.Build()})
	p.step(p.decider)
	r.bus.SetDown(true)
	p.step(p.assigner)
	p.step(p.assigner)
	if len(p.failures) != 2 {
		t.Fatalf("failures: %v; the second attempt had nothing to do", p.failures)
	}
	r.bus.SetDown(false)
	p.step(p.assigner)
	p.checkAssignments()
}

func TestANewLeaderWritesWhatIsMissingAndNothingElse(t *testing.T) {
	r, _, _ := running(t)
	last := func() uint64 {
		_, seq, _, err := r.bus.Outbox(bus.StreamAssignments).Last(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	before := last()
	b := r.leader("b")
	b.settle()
	if n := last() - before; n != 0 {
		t.Errorf("%d assignments are written again as they stood", n)
	}
	b.checkAssignments()
	r.bus.Recreate(bus.StreamAssignments) // it opts out of fsync
	c := r.leader("c")
	c.settle()
	c.checkAssignments()
	r.publish(bus.StreamAssignments, bus.SubjectAssign("n1"), []byte("garbage"))
	d := r.leader("d")
	d.settle()
	d.checkAssignments()
}

func TestAWriteOfSomebodyElseIsLookedAt(t *testing.T) {
	r, p, id := running(t)
	r.publish(bus.StreamAssignments, bus.SubjectAssign("n1"), []byte("garbage"))
	r.request("cancel", weftv1.Request_builder{Cancel: weftv1.CancelJob_builder{Job: &id}.Build()})
	p.step(p.decider)
	p.step(p.assigner)
	if len(p.failures) != 1 || !errors.Is(p.failures[0], bus.ErrPosition) {
		t.Fatalf("failures: %v", p.failures)
	}
	p.step(p.assigner)
	p.checkAssignments()
}

func TestAStaleLeaderNeverWritesALowerAssignment(t *testing.T) {
	r, old, id := running(t)
	// Cut off from the ledger, the old one believes that it leads, and something touched n1.
	old.ledger.PlanReads(manyDrops...)
	old.assigner.giveBack(map[string]bool{"n1": true})
	clear(old.assigner.wrote)
	b := r.leader("b")
	r.request("cancel", weftv1.Request_builder{Cancel: weftv1.CancelJob_builder{Job: &id}.Build()})
	b.pass(time.Second)
	if len(b.assignment("n1").GetAttempts()) != 0 {
		t.Fatal("the job was not cancelled")
	}
	old.step(old.assigner)
	if len(old.failures) != 1 || !errors.Is(old.failures[0], ledger.ErrMoved) {
		t.Fatalf("failures: %v", old.failures)
	}
	b.checkAssignments()
}

func TestEventsGoOnWhereTheyStood(t *testing.T) {
	r, p, id := running(t)
	r.agents["n1"].release(id, 1, true) // three facts in one commit
	p.step(p.decider)
	// The announcer dies after each number of events.
	for n := range 2 {
		b := r.leader(fmt.Sprint("b", n))
		b.announcer.out = &failing{Outbox: b.announcer.out, after: 1}
		b.step(b.announcer)
		if len(b.failures) != 1 {
			t.Fatalf("failures: %v", b.failures)
		}
	}
	c := r.leader("c")
	c.settle()
	c.checkEvents()
}

// failing is an outbox that stores so many appends, and then no more.
type failing struct {
	bus.Outbox
	after int
}

func (f *failing) Append(ctx context.Context, expected uint64, m bus.Message) (uint64, error) {
	if f.after--; f.after < 0 {
		return 0, bus.ErrUnavailable
	}
	return f.Outbox.Append(ctx, expected, m)
}

func TestTwoAnnouncersWriteTheSame(t *testing.T) {
	r, old, id := running(t)
	b := r.leader("b")
	// The old one does not step its projection, so it believes on.
	r.agents["n1"].release(id, 1, true)
	b.step(b.decider)
	for range 3 {
		b.step(b.announcer)
		old.step(old.announcer)
	}
	b.checkEvents()
}

// lagging is a history that is behind until it is let go.
type lagging struct {
	ledger.Log
	behind, rewound bool
	wake            chan struct{}
}

func (l *lagging) Wake() <-chan struct{} {
	l.wake = make(chan struct{}, 1) // as the adapters do: a channel of its own for every caller
	return l.wake
}

func (l *lagging) Read(ctx context.Context, from uint64, limit int) ([]ledger.Record, error) {
	if l.behind || l.rewound {
		return nil, nil
	}
	return l.Log.Read(ctx, from, limit)
}

func (l *lagging) Tail(ctx context.Context) (ledger.Tail, error) {
	l.rewound = false
	return l.Log.Tail(ctx)
}

func TestTheAnnouncerMissesNoWakeOfItsHistory(t *testing.T) {
	r, p, _ := running(t)
	lag := &lagging{Log: r.log, behind: true}
	p.announcer = NewAnnouncer(p.proj, p.writer, lag, r.bus.Outbox(bus.StreamEvents))
	r.submit(2)
	p.step(p.decider)
	drain(p.announcer.Wakes())
	p.step(p.announcer)
	// The record arrives after the step and before the loop asks what to wait for.
	lag.behind = false
	lag.wake <- struct{}{}
	if !ready(p.announcer.Wakes()) {
		t.Fatal("the wake is lost")
	}
	p.settle()
	p.checkEvents()
}

func TestAHistoryThatLostItsEndIsAskedAgain(t *testing.T) {
	r, p, _ := running(t)
	lag := &lagging{Log: r.log}
	p.announcer = NewAnnouncer(p.proj, p.writer, lag, r.bus.Outbox(bus.StreamEvents))
	p.settle()
	lag.rewound = true
	r.submit(2)
	p.pass(lookEvery + time.Second)
	p.checkEvents()
}

func TestVoidRecordsAreNotAnnounced(t *testing.T) {
	r, p, id := running(t)
	lie := weftv1.Fact_builder{JobSucceeded: weftv1.JobSucceeded_builder{Job: &id}.Build()}.Build()
	c := weftv1.Commit_builder{Term: new(uint64(1)), Id: new("x"), Prev: []byte("elsewhere"), TimeNs: new(int64(1 << 62)),
		Entries: ledger.FactEntries([]*weftv1.Fact{lie})}.Build()
	for range 2 {
		r.log.Force([]byte{0xff, 0xff})
		r.log.Force(bytesOf(t, c))
		r.submit(int(r.log.Force(nil)))
		p.pass(10 * time.Second)
		p = r.leader(fmt.Sprint("after ", id, r.now))
		p.pass(time.Second)
		p.checkEvents()
	}
}

func TestExpiredEventsAreNotToldAgain(t *testing.T) {
	r, _, _ := running(t)
	r.now = r.now.Add(31 * 24 * time.Hour)
	n := uint64(len(r.messages(bus.StreamEvents)))
	if err := r.bus.Inbox(bus.StreamEvents, "").Trim(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	p := r.leader("b")
	r.submit(2)
	p.pass(time.Second)
	for _, m := range r.messages(bus.StreamEvents) {
		if m.Header[bus.HeaderJob] == jobID(1) && m.Subject == bus.SubjectEvent("demo", "job-submitted") {
			t.Fatalf("told again: %s", m.Data)
		}
	}
	if n := len(r.messages(bus.StreamEvents)); n == 0 || p.job(jobID(2)).Phase != cell.Running {
		t.Fatalf("%d new events, job 2 is %s", n, p.job(jobID(2)).Phase)
	}
}

func TestEventsGoOnAfterTheLedgerLostItsEnd(t *testing.T) {
	r, p, _ := running(t)
	for i := range 10 {
		r.submit(10 + i)
		p.pass(time.Second)
	}
	p.checkEvents()
	told := len(r.messages(bus.StreamEvents))
	r.log.LoseAfter(p.proj.Position().Seq - 8)
	b := r.replica("b")
	if _, err := b.writer.Adopt(context.Background(), r.now); err != nil {
		t.Fatal(err)
	}
	b.settle()
	r.submit(90)
	b.pass(time.Second)
	found := false
	for _, m := range r.messages(bus.StreamEvents)[told:] {
		found = found || m.Header[bus.HeaderJob] == jobID(90)
	}
	if !found {
		t.Fatal("the events of what happened since are missing")
	}
}

func TestTheLedgerMayBePurgedBelowTheEvents(t *testing.T) {
	r, p, _ := running(t)
	for i := range 3 { // the announcer is behind
		r.submit(i + 3)
		p.step(p.decider)
	}
	r.submit(2)
	p.step(p.decider)
	r.log.Trim(p.proj.Position().Seq)
	p.step(p.announcer)
	if n := len(p.failures); n > 0 {
		t.Fatal(p.failures)
	}
	if got := r.messages(bus.StreamEvents); got[len(got)-1].Header[bus.HeaderJob] != jobID(2) {
		t.Fatalf("the last event is of %s", got[len(got)-1].Subject)
	}
}

func TestAStrangerInEventsIsNamed(t *testing.T) {
	r, _, _ := running(t)
	r.publish(bus.StreamEvents, bus.SubjectEvent("demo", "nonsense"), []byte("hi"))
	b := r.leader("b")
	b.step(b.announcer)
	if len(b.failures) != 1 {
		t.Fatalf("failures: %v", b.failures)
	}
}

// The election's own commit wakes everybody; whoever then finds no leader sleeps until the next commit.
func TestWhoeverTheElectionWakesFindsALeader(t *testing.T) {
	p := newRig(t).replica("a")
	leads := false
	p.proj.OnCommit(func(ledger.Position, *weftv1.Commit) { leads = p.writer.Leading() })
	p.lead()
	if !leads {
		t.Fatal("woken before it leads")
	}
}

package shell

import (
	"context"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
)

func (p *replica) trimFor(d time.Duration) {
	p.t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(trimEvery)
		p.step(p.trimmer)
	}
	if len(p.failures) > 0 {
		p.t.Fatal(p.failures)
	}
}

func first(t *testing.T, r *rig, stream string) uint64 {
	t.Helper()
	in := r.messages(stream)
	if len(in) == 0 {
		return 0
	}
	return in[0].Seq
}

func TestInputsAreTrimmedAnHourAfterTheyWereConsumed(t *testing.T) {
	r, p, _ := running(t)
	p.trimFor(59 * time.Minute)
	if first(t, r, bus.StreamRequests) != 1 || first(t, r, bus.StreamReports) != 1 {
		t.Fatal("trimmed within the hour")
	}
	r.submit(2)
	p.step(p.decider)
	unread := r.submit(3) // nobody consumes it
	p.trimFor(3 * time.Minute)
	if got := first(t, r, bus.StreamRequests); got != 3 {
		t.Fatalf("REQUESTS begins at %d", got)
	}
	if got := first(t, r, bus.StreamReports); got != 0 {
		t.Fatalf("REPORTS begins at %d", got)
	}
	p.trimFor(24 * time.Hour)
	in := r.messages(bus.StreamRequests)
	if len(in) != 1 || in[0].Seq != 4 {
		t.Fatalf("%d requests are left; %s was never consumed", len(in), unread)
	}
	if n := len(p.trimmer.marks); n > 61 {
		t.Errorf("%d marks are kept", n)
	}
}

func TestAStreamMadeAnewIsNotTrimmedByOldMarks(t *testing.T) {
	r, p, _ := running(t)
	p.trimFor(59 * time.Minute)
	r.bus.Recreate(bus.StreamRequests)
	r.submit(5)
	p.trimFor(30 * time.Minute)
	if got := first(t, r, bus.StreamRequests); got != 1 {
		t.Fatal("an input that nobody consumed is gone")
	}
	p.settle()
	if p.state().Job(jobID(5)) == nil {
		t.Fatal("the job is lost")
	}
	p.trimFor(20 * time.Minute)
	if got := first(t, r, bus.StreamRequests); got != 1 {
		t.Fatal("an input of the last hour is gone")
	}
}

func TestAnOlderLedgerKeepsItsInputs(t *testing.T) {
	r, p, _ := running(t)
	r.submit(2)
	p.settle()
	p.trimFor(59 * time.Minute)
	// An hour-old ledger is put back: the last submit is to be consumed again.
	at := p.proj.Position().Seq
	for p.state().Job(jobID(2)) != nil {
		at--
		r.log.LoseAfter(at)
		if _, err := p.proj.CatchUp(context.Background(), p.now); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.writer.Adopt(context.Background(), p.now); err != nil {
		t.Fatal(err)
	}
	p.trimFor(2 * time.Minute)
	p.settle()
	if p.state().Job(jobID(2)) == nil {
		t.Fatal("the job is lost: its request was trimmed")
	}
}

func TestAStandbyTrimsNothing(t *testing.T) {
	r, old, _ := running(t)
	old.trimFor(30 * time.Minute)
	b := r.leader("b")
	old.step(old.proj)
	old.trimFor(time.Hour)
	if first(t, r, bus.StreamRequests) != 1 {
		t.Fatal("a standby trims")
	}
	b.trimFor(30 * time.Minute) // its hour begins with its term
	if first(t, r, bus.StreamRequests) != 1 {
		t.Fatal("a new leader trims at once")
	}
	r.submit(2)
	b.settle()
	old.lead()
	old.settle()
	old.trimFor(2 * trimEvery)
	if first(t, r, bus.StreamRequests) != 1 {
		t.Fatal("one that leads again trims at once")
	}
}

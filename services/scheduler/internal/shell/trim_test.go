package shell

import (
	"context"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
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

// The ledger loses only what its oldest kept snapshot covers and what was announced; a scheduler that starts then finds all.
func TestTheLedgerIsTrimmedBehindSnapshots(t *testing.T) {
	r, p, _ := running(t)
	snaps := memledger.NewSnapshots()
	p.trimmer.TrimRecords(Records{Log: r.log, Snapshots: snaps, Announcer: p.announcer})
	begin := func() uint64 {
		tail, err := r.log.Tail(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tail.First
	}
	var taken []uint64
	snapshot := func() {
		m, ok, err := ledger.NewSnapshotter(p.proj, r.log, snaps, ledger.SnapshotterOptions{}).Write(t.Context())
		if err != nil || !ok {
			t.Fatal(err)
		}
		taken = append(taken, m.Seq)
	}
	snapshot()
	p.trimFor(2 * trimEvery)
	if begin() != 1 {
		t.Fatal("trimmed behind a single snapshot")
	}
	for _, n := range []int{7, 9} {
		r.submit(n)
		p.step(p.decider) // and not announced
	}
	behind := p.announcer.Through()
	snapshot()
	r.submit(8)
	p.step(p.decider)
	snapshot()
	all, _ := snaps.List(t.Context())
	for _, m := range all {
		if m.Seq == taken[0] {
			_ = snaps.Delete(t.Context(), m)
		}
	}
	p.trimFor(2 * trimEvery)
	if begin() != 1 || taken[1] <= behind {
		t.Fatalf("trimmed to %d, announced up to %d", begin(), behind)
	}
	p.settle()
	p.trimFor(2 * trimEvery)
	if got := begin(); got != taken[1] {
		t.Fatalf("the ledger begins at %d, its oldest snapshot is of %d", got, taken[1])
	}

	fresh := ledger.NewProjection[*cell.State](r.log, cellfold.Fold(), snaps)
	if _, err := fresh.CatchUp(t.Context(), p.now); err != nil {
		t.Fatal(err)
	}
	fresh.View(func(s *cell.State, _ ledger.Position) {
		if cell.Hash(s) != cell.Hash(p.state()) || s.Job(jobID(7)) == nil {
			t.Error("the state is another after trimming")
		}
	})
	p.trimFor(2 * trimEvery)
	p.settle()
	told := map[string]int{}
	for _, m := range r.messages(bus.StreamEvents) {
		told[m.Header[bus.HeaderJob]]++
	}
	for _, n := range []int{7, 8, 9} {
		if told[jobID(n)] == 0 {
			t.Errorf("nothing was announced of job %d", n)
		}
	}
	if len(p.failures) > 0 {
		t.Error(p.failures)
	}
}

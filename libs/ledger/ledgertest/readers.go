package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// strangers write into the log without being its leader: nobody folds that, everybody passes it over alike.
func strangers(t *testing.T, h Harness) {
	a, b := open(t, h, "a"), open(t, h, "b")
	a.lead(t)
	at := a.commit(t, "one")
	b.catchUp(t)
	enc := func(c *weftv1.Commit) []byte {
		d, err := ledger.Encode(c)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	later := at.TimeNS + 1
	forged := []*weftv1.Entry{Note("forged")}
	h.Force(t, []byte("no commit at all"))
	h.Force(t, enc(weftv1.Commit_builder{ // no link
		Term: new(at.Term), Id: new("x"), TimeNs: &later, Entries: forged,
	}.Build()))
	h.Force(t, enc(weftv1.Commit_builder{ // a term nobody opened
		Term: new(at.Term + 1), Id: new("y"), Prev: at.Hash, TimeNs: &later, Entries: forged,
	}.Build()))
	h.Force(t, enc(weftv1.Commit_builder{ // a term that is over
		Term: new(at.Term - 1), Id: new("z"), Prev: at.Hash, TimeNs: &later, Entries: forged,
	}.Build()))
	h.Force(t, enc(weftv1.Commit_builder{ // time stands still
		Term: new(at.Term), Id: new("w"), Prev: at.Hash, TimeNs: new(at.TimeNS), Entries: forged,
	}.Build()))
	b.catchUp(t)
	b.wantFacts(t, "one")
	if at := b.Proj.Position(); at.Seq != 7 || len(b.Breaks) < 5 {
		t.Fatalf("b stands at %d after %d breaks", at.Seq, len(b.Breaks))
	}
	a.commit2(t)
	a.lead(t) // no rival won, so it may lead on
	a.commit(t, "two")
	b.catchUp(t)
	same(t, a, b)
	b.wantFacts(t, "one", "two")
}

func unknownKind(t *testing.T, h Harness) {
	a, b := open(t, h, "a"), open(t, h, "b")
	a.lead(t)
	a.commit(t, "one")
	later := func(ignorable bool) *weftv1.Entry {
		return weftv1.Entry_builder{Kind: new("from-the-future"), Fact: []byte{1}, Ignorable: &ignorable}.Build()
	}
	if _, err := a.Writer.Commit(ctxOf(t), a.now, []*weftv1.Entry{later(true), Note("two")}, nil); err != nil {
		t.Fatal(err)
	}
	b.catchUp(t)
	b.wantFacts(t, "one", "two")
	var unknown *ledger.UnknownKind
	if _, err := a.Writer.Commit(ctxOf(t), a.now, []*weftv1.Entry{later(false)}, nil); !errors.As(err, &unknown) {
		t.Fatalf("a leader that does not know what it writes: %v", err)
	}
	_, err := b.Proj.CatchUp(ctxOf(t), b.now)
	if !errors.As(err, &unknown) || unknown.Kind != "from-the-future" || unknown.Seq != 4 {
		t.Fatalf("reader of an unknown kind: %v", err)
	}
	if err := b.Proj.WaitFor(ctxOf(t), 4); !errors.As(err, &unknown) {
		t.Fatalf("whoever waits is told: %v", err)
	}
	if _, _, err := b.Proj.Step(ctxOf(t), b.now); !errors.As(err, &unknown) {
		t.Fatalf("it stays stopped: %v", err)
	}
	if at := b.Proj.Position(); at.Seq != 3 {
		t.Fatalf("it passed over what it does not know: at %d", at.Seq)
	}
	b.wantFacts(t, "one", "two")
}

func snapshotsPort(t *testing.T, h Harness) {
	s, ctx := h.Snapshots(t), ctxOf(t)
	if ms, err := s.List(ctx); err != nil || len(ms) != 0 {
		t.Fatalf("list of none: %v, %v", ms, err)
	}
	data := bytes.Repeat([]byte("state"), 100_000)
	m := ledger.SnapshotMeta{
		Seq: 7, Term: 2, TimeNS: -5, Hash: ledger.Hash([]byte("c")), State: ledger.Hash(data), Fold: 3, CreatedNS: 11,
	}
	other := m
	other.Seq, other.Hash = 9, ledger.Hash([]byte("d"))
	for range 2 {
		if err := s.Put(ctx, m, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Put(ctx, other, []byte("x")); err != nil {
		t.Fatal(err)
	}
	ms, err := h.Snapshots(t).List(ctx)
	if err != nil || len(ms) != 2 {
		t.Fatalf("list of two: %v, %v", ms, err)
	}
	got := ms[0]
	if got.Seq != 7 {
		got = ms[1]
	}
	if fmt.Sprint(got) != fmt.Sprint(m) {
		t.Fatalf("listed %+v, put %+v", got, m)
	}
	if d, err := s.Get(ctx, got); err != nil || !bytes.Equal(d, data) {
		t.Fatalf("got %d bytes, %v", len(d), err)
	}
	if err := s.Delete(ctx, m); err != nil {
		t.Fatal(err)
	}
	if ms, err := s.List(ctx); err != nil || len(ms) != 1 || ms[0].Seq != 9 {
		t.Fatalf("list after a delete: %v, %v", ms, err)
	}
	if _, err := s.Get(ctx, m); err == nil {
		t.Fatal("got a deleted snapshot")
	}
}

// history commits n facts, with a snapshot after those listed.
func history(t testing.TB, h Harness, n int, freeze ...int) *Replica {
	t.Helper()
	a := openWithSnapshots(t, h, "a")
	a.lead(t)
	for i := 1; i <= n; i++ {
		a.commit(t, fmt.Sprintf("f%d", i))
		for _, f := range freeze {
			if f == i {
				a.snapshot(t, h)
			}
		}
	}
	return a
}

func snapshotAndTail(t *testing.T, h Harness) {
	a := history(t, h, 20, 5, 15)
	full := open(t, h, "full")
	full.catchUp(t)
	b := openWithSnapshots(t, h, "b")
	b.catchUp(t)
	same(t, full, b)
	same(t, a, b)
	if len(b.Resets) != 1 || b.Resets[0].Seq != 16 || len(b.Seen) != 5 {
		t.Fatalf("b began at %v and read %v", b.Resets, b.Seen)
	}
	h.Trim(t, 10) // the log's beginning goes; the newer snapshot covers it
	c := openWithSnapshots(t, h, "c")
	c.catchUp(t)
	same(t, full, c)
	c.lead(t)
	c.commit(t, "f21")
	naked := open(t, h, "naked")
	if _, err := naked.Proj.CatchUp(ctxOf(t), naked.now); err == nil {
		t.Fatal("started without the records that were trimmed")
	}
}

// spoilt is a store of snapshots on a bad disk.
type spoilt struct {
	ledger.Snapshots
	seqs map[uint64]bool
}

func (s spoilt) Get(ctx context.Context, m ledger.SnapshotMeta) ([]byte, error) {
	d, err := s.Snapshots.Get(ctx, m)
	if err == nil && s.seqs[m.Seq] {
		d[len(d)-1] ^= 1
	}
	return d, err //nolint:wrapcheck // a decorator passes errors as they are
}

func corruptSnapshot(t *testing.T, h Harness) {
	a := history(t, h, 20, 5, 15)
	for _, c := range []struct {
		bad  map[uint64]bool
		from uint64
	}{
		{map[uint64]bool{16: true}, 6},          // skipped for the next older one
		{map[uint64]bool{16: true, 6: true}, 0}, // and then for the whole log
	} {
		b := NewReplica(h.Open(t), spoilt{h.Snapshots(t), c.bad}, "b")
		b.catchUp(t)
		same(t, a, b)
		if n := 21 - int(c.from); len(b.Seen) != n {
			t.Fatalf("read %d commits, want %d", len(b.Seen), n)
		}
	}
}

// snapshotOfLostBranch: a deposed leader's snapshot stands in the store and its commit even stands in the log, yet it is
// not on the chain.
func snapshotOfLostBranch(t *testing.T, h Harness) {
	a := openWithSnapshots(t, h, "a")
	a.lead(t)
	a.commit(t, "kept")
	lose := h.Image(t)
	a.commit(t, "lost1")
	a.commit(t, "lost2")
	lose()
	b := openWithSnapshots(t, h, "b")
	b.lead(t)
	b.commit(t, "new")
	a.commit(t, "zombie")
	a.snapshot(t, h)
	b.commit2(t)
	b.lead(t)
	b.commit(t, "after")
	c := openWithSnapshots(t, h, "c")
	c.catchUp(t)
	same(t, b, c)
	c.wantFacts(t, "kept", "new", "after")
}

func sharedReaders(t *testing.T, h Harness) {
	a, b := open(t, h, "a"), open(t, h, "b")
	a.lead(t)
	ctx, cancel := context.WithCancel(ctxOf(t))
	var wg sync.WaitGroup
	const commits = 40
	for range 4 {
		wg.Go(func() {
			last := uint64(0)
			for last < commits+1 {
				if err := b.Proj.WaitFor(ctx, last+1); err != nil {
					t.Error(err)
					return
				}
				b.Proj.View(func(s *State, at ledger.Position) {
					if at.Seq < last || (s.Count != at.Seq-1) {
						t.Errorf("at %d after %d with %d facts", at.Seq, last, s.Count)
					}
					last = at.Seq
				})
			}
		})
	}
	var follow sync.WaitGroup
	for _, r := range []*Replica{a, b} { // the leader follows too, and skips what it knows
		w := r.Log.Wake()
		follow.Go(func() {
			for ctx.Err() == nil {
				did, _, err := r.Proj.Step(ctx, epoch)
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
				if !did {
					select {
					case <-w:
					case <-ctx.Done():
					}
				}
			}
		})
	}
	for i := range commits {
		a.commit(t, fmt.Sprint(i))
	}
	wg.Wait()
	cancel()
	follow.Wait()
	same(t, a, b)
	if len(a.Seen) != commits+1 || len(b.Seen) != commits+1 || len(a.Breaks)+len(b.Breaks) != 0 {
		t.Fatalf("hooks saw %d and %d of %d, breaks %v %v", len(a.Seen), len(b.Seen), commits+1, a.Breaks, b.Breaks)
	}
}

// takeover drives two replicas' leadership by a clock of the test: the standby leads once the leader's beats stop.
func takeover(t *testing.T, h Harness) {
	ctx, bus := ctxOf(t), membus.New()
	a, b := open(t, h, "a"), open(t, h, "b")
	la := ledger.NewLeadership(bus.Caller(), a.Writer, "weft.leader.test", ledger.LeadershipOptions{})
	lb := ledger.NewLeadership(bus.Caller(), b.Writer, "weft.leader.test", ledger.LeadershipOptions{})
	now := epoch
	step := func(l *ledger.Leadership) {
		t.Helper()
		for did := true; did; {
			var err error
			if did, _, err = l.Step(ctx, now); err != nil {
				t.Fatal(err)
			}
		}
	}
	until := func(d time.Duration, ls ...*ledger.Leadership) {
		t.Helper()
		for end := now.Add(d); now.Before(end); now = now.Add(250 * time.Millisecond) {
			for _, l := range ls {
				step(l)
			}
			a.catchUp(t)
			b.catchUp(t)
		}
	}
	until(2*time.Second, la)
	if !a.Writer.Leading() {
		t.Fatal("a heard nobody and does not lead")
	}
	until(20*time.Second, la, lb)
	if !a.Writer.Leading() || b.Writer.Leading() || a.Writer.Term() != 1 {
		t.Fatalf("the standby did not keep quiet: term %d", a.Writer.Term())
	}
	until(3*time.Second, lb)
	if b.Writer.Leading() {
		t.Fatal("the standby took over too early")
	}
	until(2*time.Second, lb)
	if !b.Writer.Leading() || a.Writer.Leading() || b.Writer.Term() != 2 {
		t.Fatalf("no takeover: term %d", b.Writer.Term())
	}
	until(20*time.Second, la, lb)
	if !b.Writer.Leading() || b.Writer.Term() != 2 {
		t.Fatalf("the old leader did not keep quiet: term %d", b.Writer.Term())
	}
	b.Writer.Resign() // an orderly end: nobody opened another term, so it may lead again at once
	until(time.Second, lb)
	if !b.Writer.Leading() || b.Writer.Term() != 3 {
		t.Fatalf("did not lead on: term %d", b.Writer.Term())
	}
}

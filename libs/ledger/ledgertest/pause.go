package ledgertest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
)

// pausedLeader stops a leader's process within an append, as SIGSTOP does, while another one takes over: what it decided
// before is refused when it wakes, and what was stored before counts, though it learns so last.
func pausedLeader(t *testing.T, h Harness) {
	log := faultledger.Wrap(h.Open(t))
	a, b := NewReplica(log, nil, "a"), open(t, h, "b")
	paused := func(f faultledger.Fault, note string) (wakes func() error) {
		log.PlanAppends(f)
		ended := make(chan error, 1)
		ctx := ctxOf(t)
		go func() {
			_, err := a.tryCommit(ctx, note)
			ended <- err
		}()
		select {
		case <-log.Held():
		case err := <-ended:
			t.Fatalf("the append was not held: %v", err)
		}
		return func() error {
			log.Resume()
			return <-ended
		}
	}
	a.lead(t)
	a.commit(t, "a1")
	wakes := paused(faultledger.Hold, "decided before the pause")
	b.lead(t)
	b.commit(t, "b1")
	b.commit(t, "b2")
	if !a.Writer.Leading() {
		t.Fatal("a knows already")
	}
	if err := wakes(); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("a woke and its append gave %v", err)
	}
	if a.Writer.Leading() {
		t.Fatal("a leads on after a conflict")
	}
	a.catchUp(t)
	same(t, a, b)
	a.wantFacts(t, "a1", "b1", "b2")

	// Again with a single record behind the pause, so that the place is taken by the election itself.
	a.lead(t)
	wakes = paused(faultledger.Hold, "decided before the pause")
	b.lead(t)
	if err := wakes(); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("a woke and its append gave %v", err)
	}
	a.catchUp(t)
	same(t, a, b)

	a.lead(t)
	wakes = paused(faultledger.HoldAck, "stored before the pause")
	b.lead(t)
	b.commit(t, "b3")
	if err := wakes(); err != nil {
		t.Fatalf("what was stored before the pause: %v", err)
	}
	if _, err := a.tryCommit(ctxOf(t), "zombie"); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("and its next commit: %v", err)
	}
	a.catchUp(t)
	same(t, a, b)
	a.wantFacts(t, "a1", "b1", "b2", "stored before the pause", "b3")
	c := open(t, h, "c")
	c.catchUp(t)
	same(t, b, c)
	for _, r := range []*Replica{a, b, c} {
		if len(r.Breaks) != 0 {
			t.Fatalf("a pause broke the chain: %+v", r.Breaks)
		}
	}
}

// slowReader falls far behind, by more than what an adapter may read ahead, and then misses and repeats nothing.
func slowReader(t *testing.T, h Harness) {
	l, writer, ctx := h.Open(t), h.Open(t), ctxOf(t)
	mustAppend(t, writer, 0, "c1")
	if recs := readAll(t, l, 1); len(recs) != 1 {
		t.Fatalf("read %d records", len(recs))
	}
	want := []string{"1:c1"}
	const n = 30 // 15 MB
	for i := uint64(1); i < n; i++ {
		id := fmt.Sprintf("c%d", i+1)
		if _, err := writer.Append(ctx, i, id, raw(t, id, ledger.MaxCommit-64)); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%d:%s", i+1, id))
	}
	wantIDs(t, readAll(t, l, 1), want...)
	mustAppend(t, writer, n, "last")
	wantIDs(t, readAll(t, l, n+1), fmt.Sprintf("%d:last", n+1))
}

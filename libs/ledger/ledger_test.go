package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var now = time.Unix(1_700_000_000, 0)

func commit(r *ledgertest.Replica, notes ...string) error {
	var es []*weftv1.Entry
	for _, n := range notes {
		es = append(es, ledgertest.Note(n))
	}
	_, err := r.Writer.Commit(context.Background(), now, es, nil)
	return err
}

func facts(r *ledgertest.Replica) (out []string) {
	r.Proj.View(func(s *ledgertest.State, _ ledger.Position) { out = slices.Clone(s.Facts) })
	return out
}

func leading(t *testing.T, log ledger.Log) *ledgertest.Replica {
	t.Helper()
	r := ledgertest.NewReplica(log, nil, "a")
	if err := r.Writer.Lead(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAppendOfUnknownFate(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault faultledger.Fault
		next  error    // of the commit after
		want  []string // facts in the end
	}{
		{"dropped", faultledger.Drop, nil, []string{"one", "three", "four"}},
		{"stored", faultledger.LoseAck, ledger.ErrMoved, []string{"one", "two", "four"}},
		{"late", faultledger.Late, nil, []string{"one", "three", "four"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := faultledger.Wrap(memledger.New())
			a := leading(t, log)
			if err := commit(a, "one"); err != nil {
				t.Fatal(err)
			}
			log.PlanAppends(c.fault)
			if err := commit(a, "two"); !errors.Is(err, ledger.ErrUnavailable) {
				t.Fatalf("commit under a fault: %v", err)
			}
			if !a.Writer.Leading() {
				t.Fatal("an unknown fate cost the leadership")
			}
			if err := commit(a, "three"); !errors.Is(err, c.next) {
				t.Fatalf("the commit after: %v, want %v", err, c.next)
			}
			for _, err := range log.Land(t.Context()) {
				if !errors.Is(err, ledger.ErrConflict) {
					t.Fatalf("the late append landed: %v", err)
				}
			}
			if err := commit(a, "four"); err != nil {
				t.Fatal(err)
			}
			if got := facts(a); !slices.Equal(got, c.want) {
				t.Fatalf("facts %q, want %q", got, c.want)
			}
		})
	}
}

// TestDecidedOnOldState: the projection's own loop may fold a commit whose fate was unknown; what was decided before
// must not be committed after it.
func TestDecidedOnOldState(t *testing.T) {
	log := faultledger.Wrap(memledger.New())
	a := leading(t, log)
	log.PlanAppends(faultledger.LoseAck)
	if err := commit(a, "input 1"); !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := a.Proj.CatchUp(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if err := commit(a, "input 1 again"); !errors.Is(err, ledger.ErrMoved) {
		t.Fatalf("commit of what was decided before: %v", err)
	}
	if err := commit(a, "input 2"); err != nil {
		t.Fatal(err)
	}
	if got := facts(a); !slices.Equal(got, []string{"input 1", "input 2"}) {
		t.Fatalf("facts %q", got)
	}
}

func TestUnreadableLog(t *testing.T) {
	log := faultledger.Wrap(memledger.New())
	a := leading(t, log)
	log.PlanReads(faultledger.Drop)
	if _, err := a.Proj.CatchUp(t.Context(), now); !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatalf("catch up: %v", err)
	}
	if err := commit(a, "one"); err != nil { // nothing was lost by that
		t.Fatal(err)
	}
}

func TestSplitGroups(t *testing.T) {
	group := func(name string, sizes ...int) []*weftv1.Entry {
		var g []*weftv1.Entry
		for _, n := range sizes {
			g = append(g, weftv1.Entry_builder{Kind: &name, Fact: bytes.Repeat([]byte{1}, n)}.Build())
		}
		return g
	}
	const half = ledger.MaxCommit / 2
	groups := [][]*weftv1.Entry{
		group("a", 100, 100), group("b", half, 1000), group("c", half), group("d", 10), group("e", half-10_000),
	}
	batches, err := ledger.SplitGroups(groups)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	var flat []*weftv1.Entry
	for _, b := range batches {
		kinds := ""
		for _, e := range b {
			kinds += e.GetKind()
		}
		got = append(got, kinds)
		flat = append(flat, b...)
		data, err := ledger.Encode(weftv1.Commit_builder{Entries: b}.Build())
		if err != nil || len(data) > ledger.MaxCommit {
			t.Fatalf("a batch of %d bytes, %v", len(data), err)
		}
	}
	if want := []string{"aabb", "cde"}; !slices.Equal(got, want) {
		t.Fatalf("batches %q, want %q", got, want)
	}
	if !slices.Equal(flat, slices.Concat(groups...)) {
		t.Fatal("order changed, or entries were lost")
	}
	var tooLarge *ledger.TooLarge
	if _, err := ledger.SplitGroups([][]*weftv1.Entry{group("x", half, half)}); !errors.As(err, &tooLarge) {
		t.Fatalf("a group over the limit: %v", err)
	}
}

func TestFactEntry(t *testing.T) {
	f := weftv1.Fact_builder{QueueSet: weftv1.QueueSet_builder{Queue: new("demo")}.Build()}.Build()
	e := ledger.FactEntry(f)
	back := &weftv1.Fact{}
	if err := proto.Unmarshal(e.GetFact(), back); err != nil || e.GetKind() != "queue_set" || !proto.Equal(f, back) {
		t.Fatalf("entry %v, back %v, %v", e, back, err)
	}
}

func TestLeadershipAlone(t *testing.T) {
	a := ledgertest.NewReplica(memledger.New(), nil, "a")
	l := ledger.NewLeadership(nil, a.Writer, "", ledger.LeadershipOptions{Alone: true})
	if _, _, err := l.Step(t.Context(), now); err != nil || !a.Writer.Leading() {
		t.Fatalf("does not lead at once: %v", err)
	}
	// A restart of the same machine: another replica name, the next term, at once.
	b := ledgertest.NewReplica(a.Log, nil, "b")
	l = ledger.NewLeadership(nil, b.Writer, "", ledger.LeadershipOptions{Alone: true})
	if _, _, err := l.Step(t.Context(), now); err != nil || b.Writer.Term() != 2 {
		t.Fatalf("term %d: %v", b.Writer.Term(), err)
	}
}

// TestLeadershipAfterStranger: a stranger's record makes the leader step down, and lead again without a pause, because
// nobody opened another term.
func TestLeadershipAfterStranger(t *testing.T) {
	log := memledger.New()
	a := ledgertest.NewReplica(log, nil, "a")
	l := ledger.NewLeadership(nil, a.Writer, "", ledger.LeadershipOptions{Alone: true})
	step := func() {
		t.Helper()
		if _, _, err := l.Step(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	step()
	log.Force([]byte("stranger"))
	if err := commit(a, "one"); !errors.Is(err, ledger.ErrConflict) {
		t.Fatal(err)
	}
	step()
	if err := commit(a, "two"); err != nil {
		t.Fatal(err)
	}
	if got := facts(a); !slices.Equal(got, []string{"two"}) || a.Writer.Term() != 2 {
		t.Fatalf("facts %q in term %d", got, a.Writer.Term())
	}
}

func TestSnapshotter(t *testing.T) {
	log, snaps := memledger.New(), memledger.NewSnapshots()
	a := ledgertest.NewReplica(log, snaps, "a")
	if err := a.Writer.Lead(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	b := ledgertest.NewReplica(log, snaps, "b")
	leader := ledger.NewSnapshotter(a.Proj, log, snaps, ledger.SnapshotterOptions{Every: 10, Keep: 2, Leading: a.Writer.Leading})
	standby := ledger.NewSnapshotter(b.Proj, log, snaps, ledger.SnapshotterOptions{Every: 10, Keep: 2})
	step := func(r *ledgertest.Replica, s *ledger.Snapshotter[*ledgertest.State]) {
		t.Helper()
		for range 2 { // the second finds the end
			if _, err := r.Proj.CatchUp(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			if _, _, err := r.Proj.Step(t.Context(), now); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := s.Step(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	seqs := func() (out []uint64) {
		ms, err := snaps.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range ms {
			out = append(out, m.Seq)
		}
		return out
	}
	for i := 2; i <= 60; i++ {
		if err := commit(a, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		step(a, leader)
		if i <= 35 {
			step(b, standby)
		}
	}
	// The standby wrote at 10, 20, 30; the leader only twice as far behind the last.
	if got := seqs(); !slices.Equal(got, []uint64{30, 50}) {
		t.Fatalf("snapshots at %v", got)
	}
	c := ledgertest.NewReplica(log, snaps, "c")
	if _, err := c.Proj.CatchUp(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if len(c.Seen) != 10 || !slices.Equal(facts(c), facts(a)) {
		t.Fatalf("start from the snapshot read %v: facts %q, want %q", c.Seen, facts(c), facts(a))
	}
}

// Who is woken must find what the hooks noted: a wake before them is one that is lost.
func TestWakeFollowsHooks(t *testing.T) {
	log := memledger.New()
	a := leading(t, log)
	b := ledgertest.NewReplica(log, nil, "b")
	wake := b.Proj.Wake()
	noted := 0
	b.Proj.OnCommit(func(ledger.Position, *weftv1.Commit) {
		select {
		case <-wake:
			if noted > 0 { // the first step also opens the log
				t.Error("woken before the hook had run")
			}
		default:
		}
		noted++
	})
	for i := range 4 { // the first finds the commit that opened the term
		if i > 0 {
			if err := commit(a, "x"); err != nil {
				t.Fatal(err)
			}
		}
		for did := true; did; {
			var err error
			if did, _, err = b.Proj.Step(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			if did {
				select {
				case <-wake:
				default:
					t.Error("not woken after the hook")
				}
			}
		}
	}
	if noted != 4 { // the term, and three
		t.Errorf("%d commits noted", noted)
	}
}

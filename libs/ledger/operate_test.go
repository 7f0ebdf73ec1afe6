package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var opNow = time.Unix(1_800_000_000, 0)

// book is a log with snapshots and a leader.
type book struct {
	t     *testing.T
	log   *memledger.Log
	snaps *memledger.Snapshots
	*ledgertest.Replica
}

func newBook(t *testing.T) *book {
	t.Helper()
	c := &book{t: t, log: memledger.New(), snaps: memledger.NewSnapshots()}
	c.Replica = c.replica("a")
	c.lead()
	return c
}

func (c *book) replica(name string) *ledgertest.Replica {
	return ledgertest.NewReplica(c.log, c.snaps, name)
}

func (c *book) lead() {
	c.t.Helper()
	if err := c.Writer.Lead(c.t.Context(), opNow); err != nil {
		c.t.Fatal(err)
	}
}

func (c *book) commit(n int) uint64 {
	c.t.Helper()
	for i := range n {
		if _, err := c.Writer.Commit(c.t.Context(), opNow, []*weftv1.Entry{ledgertest.Note(fmt.Sprint("note ", i))}, nil); err != nil {
			c.t.Fatal(err)
		}
	}
	return c.Proj.Position().Seq
}

func (c *book) snapshot() ledger.SnapshotMeta {
	c.t.Helper()
	m, ok, err := ledger.NewSnapshotter(c.Proj, c.log, c.snaps, ledger.SnapshotterOptions{}).Write(c.t.Context())
	if err != nil || !ok {
		c.t.Fatal("no snapshot", err)
	}
	return m
}

func (c *book) verify(confirmed uint64) *ledger.Audit {
	c.t.Helper()
	a, err := ledger.Verify(c.t.Context(), c.log, ledgertest.Fold(), c.snaps, confirmed)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

// read returns the raw record at a place.
func (c *book) read(seq uint64) []byte {
	c.t.Helper()
	rs, err := c.log.Read(c.t.Context(), seq, 1)
	if err != nil || len(rs) != 1 {
		c.t.Fatal(err)
	}
	return slices.Clone(rs[0].Data)
}

// rewrite replaces what stands from a place on.
func (c *book) rewrite(from uint64, change func(i int, data []byte) []byte) {
	c.t.Helper()
	rs, err := c.log.Read(c.t.Context(), from, 10_000)
	if err != nil {
		c.t.Fatal(err)
	}
	c.log.LoseAfter(from - 1)
	for i, r := range rs {
		c.log.Force(change(i, r.Data))
	}
}

func TestVerifyCountsAndComparesSnapshots(t *testing.T) {
	c := newBook(t)
	c.commit(5)
	c.snapshot()
	c.log.Force([]byte("a stranger's")) // void, between commits
	c.lead()
	c.commit(3)
	c.snapshot()
	a := c.verify(0)
	if len(a.Faults) > 0 {
		t.Fatal(a.Faults)
	}
	m, _, _ := c.Proj.Freeze()
	if a.Records != 11 || a.Commits != 10 || a.Facts != 8 || a.Terms != 2 || !slices.Equal(a.Void, []uint64{7}) || a.Snapshots != 2 || a.Leader != "a" ||
		string(a.State) != string(m.State) {
		t.Fatalf("%+v", a)
	}

	c.log.Trim(6) // the first snapshot stands at 6
	b := c.verify(0)
	if len(b.Faults) > 0 || b.Start != 6 || string(b.State) != string(a.State) || b.Commits != 4 || b.Snapshots != 2 {
		t.Fatalf("from a snapshot: %+v", b)
	}
}

// Each kind of damage is named at its record, with a cure.
func TestVerifyNamesTheBreak(t *testing.T) {
	for name, x := range map[string]struct {
		do   func(c *book)
		seq  uint64
		want string
	}{
		"an altered record": {func(c *book) {
			c.rewrite(4, func(i int, b []byte) []byte {
				if i == 0 {
					b = slices.Clone(b)
					b[len(b)-1] ^= 1
				}
				return b
			})
		}, 4, "altered or lost"},
		"a record replaced by rubbish": {func(c *book) {
			c.rewrite(4, func(i int, b []byte) []byte {
				if i == 0 {
					return []byte{0xff, 0xff}
				}
				return b
			})
		}, 4, "altered or lost"},
		"a damaged snapshot": {func(c *book) {
			c.snaps.Corrupt(c.snapshot())
		}, 9, "damaged"},
		"a snapshot of another state": {func(c *book) {
			m, data, _ := c.Proj.Freeze()
			data[0] ^= 1
			m.State = ledger.Hash(data)
			_ = c.snaps.Put(context.Background(), m, data)
		}, 9, "not the state"},
		"a snapshot of a lost branch": {func(c *book) {
			m, data, _ := c.Proj.Freeze()
			m.Hash = ledger.Hash([]byte("another"))
			_ = c.snaps.Put(context.Background(), m, data)
		}, 9, "branch that was lost"},
		"a lost end that a snapshot knows": {func(c *book) {
			c.snapshot()
			c.log.LoseAfter(5)
		}, 9, "weft ledger adopt"},
		"trimmed without a snapshot": {func(c *book) {
			c.log.Trim(4)
		}, 4, "weft ledger restore"},
		"an unknown kind": {func(c *book) {
			k := "from_tomorrow"
			if _, err := c.Writer.Commit(context.Background(), opNow, []*weftv1.Entry{weftv1.Entry_builder{Kind: &k}.Build()}, nil); err == nil {
				c.t.Error("folded")
			}
		}, 10, "newer"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newBook(t)
			c.commit(8)
			x.do(c)
			a := c.verify(0)
			if len(a.Faults) != 1 || a.Faults[0].Seq != x.seq || !strings.Contains(a.Faults[0].Error(), x.want) {
				t.Fatalf("faults %v, want one at %d with %q", a.Faults, x.seq, x.want)
			}
		})
	}
	c := newBook(t)
	end := c.commit(3)
	if a := c.verify(end); len(a.Faults) > 0 {
		t.Fatal(a.Faults)
	}
	if a := c.verify(end + 1); len(a.Faults) != 1 || a.Faults[0].Seq != end+1 {
		t.Fatalf("what is known elsewhere is not missed: %v", a.Faults)
	}
}

// What a deposed leader leaves is void and no fault, whether the chain went on or not.
func TestVerifyPassesOverTheDeposed(t *testing.T) {
	c := newBook(t)
	c.commit(2)
	old, err := ledger.Decode(c.read(3))
	if err != nil {
		t.Fatal(err)
	}
	from := c.read(2)
	for range 2 { // a branch of two, from an older place
		old.SetPrev(ledger.Hash(from))
		old.SetTimeNs(old.GetTimeNs() + 1)
		b, err := ledger.Encode(old)
		if err != nil {
			t.Fatal(err)
		}
		c.log.Force(b)
		from = b
	}
	if a := c.verify(0); len(a.Faults) > 0 {
		t.Fatalf("at the end of the log: %v", a.Faults)
	}
	if _, err := c.Proj.CatchUp(t.Context(), opNow); err != nil {
		t.Fatal(err)
	}
	c.lead()
	if a := c.verify(0); len(a.Faults) > 0 || len(a.Void) != 2 {
		t.Fatalf("%+v", a)
	}
}

func (c *book) tail() uint64 {
	t, err := c.log.Tail(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return t.Last
}

// A process that starts after the loss knows of it only from outside; adopting fills every lost place before anybody
// else may lead.
func TestAdoptFillsWhatWasLost(t *testing.T) {
	c := newBook(t)
	end := c.commit(9)
	c.log.LoseAfter(4)

	b := c.replica("b")
	b.Writer.Confirmed = func(context.Context) (uint64, error) { return end, nil }
	var loss *ledger.Loss
	if err := b.Writer.Lead(t.Context(), opNow); !errors.As(err, &loss) || loss.Had.Seq != end || loss.Tail.Last != 4 || !strings.Contains(err.Error(), "weft ledger adopt") {
		t.Fatalf("led a log of which %d is known: %v", end, err)
	}
	standby := c.replica("s")
	standby.Writer.Confirmed = b.Writer.Confirmed
	if err := standby.Writer.Lead(t.Context(), opNow); !errors.As(err, &loss) {
		t.Fatal(err)
	}

	adopter := c.replica("adopt")
	adopter.Writer.Confirmed = b.Writer.Confirmed
	asked := 0
	adopter.Writer.OnAdopt = func(ctx context.Context, now time.Time) error {
		asked++
		_, err := adopter.Writer.Commit(ctx, now, []*weftv1.Entry{ledgertest.Note("adopted")}, nil)
		return err
	}
	adopter.Proj.OnCommit(func(at ledger.Position, _ *weftv1.Commit) {
		if at.Seq <= 4 || at.Seq > end {
			return
		}
		if _, err := standby.Proj.CatchUp(t.Context(), opNow); err != nil {
			t.Error(err)
		}
		if standby.Proj.Lost() == nil {
			t.Errorf("at %d the loss counts as adopted", at.Seq)
		}
	})
	got, err := adopter.Writer.Adopt(t.Context(), opNow)
	if err != nil || got == nil || got.Had.Seq != end || asked != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if at := adopter.Proj.Position().Seq; at != end+1 {
		t.Errorf("the election stands at %d, want %d: a lost place may not mean something new", at, end+1)
	}
	for _, r := range []*ledgertest.Replica{standby, b} {
		if err := r.Writer.Lead(t.Context(), opNow); err != nil {
			t.Fatalf("after the adoption: %v", err)
		}
	}
	if a := c.verify(end); len(a.Faults) > 0 || len(a.Void) > 0 || a.Facts != 4 {
		t.Fatalf("%+v", a)
	}
}

// Cut short anywhere, an adoption has not happened: whoever comes next still sees the loss and may adopt again.
func TestAdoptCutShort(t *testing.T) {
	for cut := uint64(5); cut <= 10; cut++ {
		c := newBook(t)
		end := c.commit(9)
		c.snapshot() // beyond the end that stays
		c.log.LoseAfter(4)
		ctx, cancel := context.WithCancel(t.Context())
		a := c.replica("adopt")
		a.Proj.OnCommit(func(at ledger.Position, _ *weftv1.Commit) {
			if at.Seq == cut {
				cancel()
			}
		})
		if _, err := a.Writer.Adopt(ctx, opNow); err == nil {
			t.Fatal("not cut short")
		}
		// What b knows from outside is what agents and events say; the snapshot is overrun by the filling at the end.
		b := c.replica("b")
		b.Writer.Confirmed = func(context.Context) (uint64, error) { return end, nil }
		var loss *ledger.Loss
		if err := b.Writer.Lead(t.Context(), opNow); cut < end && !errors.As(err, &loss) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if _, err := b.Writer.Adopt(t.Context(), opNow); err != nil {
			t.Fatal(err)
		}
		if err := c.replica("d").Writer.Lead(t.Context(), opNow); err != nil {
			t.Fatal(err)
		}
	}
}

// Only what two good snapshots cover may go, and after it went every reader and every prover still works.
func TestCovered(t *testing.T) {
	c := newBook(t)
	covered := func() uint64 {
		t.Helper()
		seq, err := ledger.Covered(t.Context(), c.log, c.snaps, ledgertest.Fold())
		if err != nil {
			t.Fatal(err)
		}
		return seq
	}
	c.commit(5)
	first := c.snapshot()
	if covered() != 0 {
		t.Fatal("one snapshot is not enough")
	}
	c.commit(5)
	second := c.snapshot()
	if got := covered(); got != first.Seq {
		t.Fatalf("covered to %d, want %d", got, first.Seq)
	}
	c.snaps.Corrupt(second)
	if covered() != 0 {
		t.Fatal("a damaged snapshot covers nothing")
	}
	c.commit(5)
	c.snapshot()
	if got := covered(); got != first.Seq {
		t.Fatalf("covered to %d, want %d", got, first.Seq)
	}
	before, _, _ := c.Proj.Freeze()
	if err := c.log.TrimBefore(t.Context(), first.Seq); err != nil {
		t.Fatal(err)
	}
	if covered() != 0 {
		t.Fatal("it is trimmed already")
	}
	fresh := c.replica("fresh")
	if _, err := fresh.Proj.CatchUp(t.Context(), opNow); err != nil {
		t.Fatal(err)
	}
	if m, _, _ := fresh.Proj.Freeze(); string(m.State) != string(before.State) {
		t.Fatal("the state is another")
	}
	// One that has proven nothing yet, and read what is gone, can still write a snapshot.
	old := ledgertest.NewReplica(c.log, c.snaps, "old")
	old.Proj = c.Proj
	c.commit(2)
	if m := c.snapshot(); m.Seq != c.tail() {
		t.Fatalf("snapshot at %d of %d", m.Seq, c.tail())
	}
	if a := c.verify(0); a.Start != first.Seq || len(a.Faults) != 1 || a.Faults[0].Seq != second.Seq {
		t.Fatalf("%+v", a)
	}
}

// A prover whose proof lies before the trimmed part begins at the oldest record left.
func TestProofAfterTrimming(t *testing.T) {
	c := newBook(t)
	c.commit(5)
	other := c.replica("other") // writes the snapshots, so that c's projection proves nothing
	for range 2 {
		if _, err := other.Proj.CatchUp(t.Context(), opNow); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := ledger.NewSnapshotter(other.Proj, c.log, c.snaps, ledger.SnapshotterOptions{}).Write(t.Context()); err != nil || !ok {
			t.Fatal(err)
		}
		c.commit(3)
	}
	c.log.Trim(6)
	if m := c.snapshot(); m.Seq != c.tail() || len(c.Breaks) > 0 {
		t.Fatalf("snapshot at %d of %d; breaks %v", m.Seq, c.tail(), c.Breaks)
	}
}

package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Replica is one process of a service: a handle, a projection, a writer.
type Replica struct {
	Log    ledger.Log
	Proj   *ledger.Projection[*State]
	Writer *ledger.Writer[*State]
	Breaks []ledger.Break
	Resets []ledger.Position
	Seen   []uint64 // sequences that OnCommit was called with

	now time.Time
}

// NewReplica opens a replica; snaps may be nil.
func NewReplica(log ledger.Log, snaps ledger.Snapshots, name string) *Replica {
	p := ledger.NewProjection(log, Fold(), snaps)
	r := &Replica{Log: log, Proj: p, Writer: ledger.NewWriter(log, p, "test", name), now: epoch}
	p.OnBreak(func(b ledger.Break) { r.Breaks = append(r.Breaks, b) })
	p.OnReset(func(at ledger.Position) { r.Resets = append(r.Resets, at) })
	p.OnCommit(func(at ledger.Position, _ *weftv1.Commit) { r.Seen = append(r.Seen, at.Seq) })
	return r
}

func open(t testing.TB, h Harness, name string) *Replica { return NewReplica(h.Open(t), nil, name) }

func openWithSnapshots(t testing.TB, h Harness, name string) *Replica {
	return NewReplica(h.Open(t), h.Snapshots(t), name)
}

func (r *Replica) catchUp(t testing.TB) {
	t.Helper()
	if _, err := r.Proj.CatchUp(ctxOf(t), r.now); err != nil {
		t.Fatal(err)
	}
}

func (r *Replica) lead(t testing.TB) {
	t.Helper()
	if err := r.Writer.Lead(ctxOf(t), r.now); err != nil {
		t.Fatal(err)
	}
	if !r.Writer.Leading() {
		t.Fatal("does not lead after Lead")
	}
}

func (r *Replica) tryCommit(ctx context.Context, notes ...string) (ledger.Position, error) {
	var es []*weftv1.Entry
	for _, n := range notes {
		es = append(es, Note(n))
	}
	return r.Writer.Commit(ctx, r.now, es, nil) //nolint:wrapcheck // the tests look at it as it is
}

func (r *Replica) commit(t testing.TB, notes ...string) ledger.Position {
	t.Helper()
	at, err := r.tryCommit(ctxOf(t), notes...)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func (r *Replica) facts() (out []string) {
	r.Proj.View(func(s *State, _ ledger.Position) { out = slices.Clone(s.Facts) })
	return out
}

func (r *Replica) wantFacts(t testing.TB, want ...string) {
	t.Helper()
	if got := r.facts(); !slices.Equal(got, want) {
		t.Fatalf("facts %q, want %q", got, want)
	}
}

// same fails unless both replicas have the same state at the same place.
func same(t testing.TB, a, b *Replica) {
	t.Helper()
	hash := func(r *Replica) string {
		out := ""
		r.Proj.View(func(s *State, at ledger.Position) {
			out = fmt.Sprintf("%d term %d %x state %x", at.Seq, at.Term, at.Hash, ledger.Hash(encode(s)))
		})
		return out
	}
	if x, y := hash(a), hash(b); x != y {
		t.Fatalf("replicas differ:\n%s\n%s", x, y)
	}
}

func commitAndFold(t *testing.T, h Harness) {
	a, b := open(t, h, "a"), open(t, h, "b")
	if _, err := a.tryCommit(ctxOf(t), "x"); !errors.Is(err, ledger.ErrNotLeading) {
		t.Fatalf("commit without leading: %v", err)
	}
	w := a.Proj.Wake()
	a.lead(t)
	at := a.commit(t, "one", "two")
	if at.Seq != 2 || at.Term != 1 || at.TimeNS <= epoch.UnixNano() {
		t.Fatalf("position after the first commit: %+v", at)
	}
	select {
	case <-w:
	default:
		t.Fatal("a commit of one's own did not wake")
	}
	cur := weftv1.Cursor_builder{Stream: new("IN"), Seq: new(uint64(9))}.Build()
	if _, err := a.Writer.Commit(ctxOf(t), a.now, []*weftv1.Entry{Note("three")}, []*weftv1.Cursor{cur}); err != nil {
		t.Fatal(err)
	}
	a.wantFacts(t, "one", "two", "three")
	if !slices.Equal(a.Seen, []uint64{1, 2, 3}) {
		t.Fatalf("hooks saw %v", a.Seen)
	}
	b.catchUp(t)
	same(t, a, b)
	a.catchUp(t) // reading its own records again changes nothing
	if !slices.Equal(a.Seen, []uint64{1, 2, 3}) || len(a.Breaks) != 0 {
		t.Fatalf("after reading its own records: hooks saw %v, breaks %v", a.Seen, a.Breaks)
	}
	if who, term := b.Proj.Leader(); who != "a" || term != 1 {
		t.Fatalf("leader %q term %d", who, term)
	}
	big := Note(string(make([]byte, ledger.MaxCommit)))
	var tooLarge *ledger.TooLarge
	if _, err := a.Writer.Commit(ctxOf(t), a.now, []*weftv1.Entry{big}, nil); !errors.As(err, &tooLarge) {
		t.Fatalf("a commit over the limit: %v", err)
	}
	if !a.Writer.Leading() {
		t.Fatal("a commit over the limit cost the leadership")
	}
	a.commit(t, "four")
	if err := b.Proj.WaitFor(ctxOf(t), 3); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := b.Proj.WaitFor(short, 4); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait for what was not read: %v", err)
	}
}

func zombieLeader(t *testing.T, h Harness) {
	a, b := open(t, h, "a"), open(t, h, "b")
	a.lead(t)
	a.commit(t, "a1")
	b.lead(t) // a is paused and does not see it
	b.commit(t, "b1")
	if !a.Writer.Leading() {
		t.Fatal("a knows already")
	}
	if _, err := a.tryCommit(ctxOf(t), "zombie"); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("the deposed leader's commit: %v", err)
	}
	if a.Writer.Leading() {
		t.Fatal("a leads on after a conflict")
	}
	if _, err := a.tryCommit(ctxOf(t), "zombie"); !errors.Is(err, ledger.ErrNotLeading) {
		t.Fatalf("its next commit: %v", err)
	}
	a.catchUp(t)
	same(t, a, b)
	a.wantFacts(t, "a1", "b1")

	// And a leader that reads of its successor steps down by that alone.
	a.lead(t)
	b.catchUp(t)
	if b.Writer.Leading() {
		t.Fatal("b read a higher term and leads on")
	}
	if _, err := b.tryCommit(ctxOf(t), "zombie"); !errors.Is(err, ledger.ErrNotLeading) {
		t.Fatalf("the commit of a leader that read a higher term: %v", err)
	}
	a.commit(t, "a2")
	b.catchUp(t)
	same(t, a, b)
	a.wantFacts(t, "a1", "b1", "a2")
}

// zombieAfterTailLoss is the hole that expected sequences alone leave: the log loses its end, a new leader writes other
// records there, and the old leader's next append fits by its number.
func zombieAfterTailLoss(t *testing.T, h Harness) {
	a := open(t, h, "a")
	a.lead(t)
	a.commit(t, "kept")
	lose := h.Image(t)
	a.commit(t, "lost1")
	a.commit(t, "lost2") // 4
	lose()
	b := open(t, h, "b")
	b.lead(t)             // 3'
	b.commit(t, "new")    // 4'
	a.commit(t, "zombie") // 5 fits: nothing tells a yet
	b.commit2(t)
	b.lead(t)
	b.commit(t, "after")
	if !slices.ContainsFunc(b.Breaks, func(x ledger.Break) bool { return x.Seq == 5 && x.Void }) {
		t.Fatalf("b did not void the zombie's record: %+v", b.Breaks)
	}
	b.wantFacts(t, "kept", "new", "after")
	a.catchUp(t)
	if a.Writer.Leading() || len(a.Resets) == 0 {
		t.Fatalf("a leads: %t, resets %v", a.Writer.Leading(), a.Resets)
	}
	same(t, a, b)
	c := open(t, h, "c")
	c.catchUp(t)
	same(t, b, c)
}

// commit2 commits where a stranger's record stands: a conflict, after which this replica reads on.
func (r *Replica) commit2(t testing.TB) {
	t.Helper()
	if _, err := r.tryCommit(ctxOf(t), "never"); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("commit where another record stands: %v", err)
	}
}

func tailLoss(t *testing.T, h Harness) {
	a, b := open(t, h, "a"), open(t, h, "b")
	a.lead(t)
	a.commit(t, "kept")
	lose := h.Image(t)
	at := a.commit(t, "lost")
	b.catchUp(t)
	lose()
	a.commit2(t)
	var loss *ledger.Loss
	if err := a.Writer.Lead(ctxOf(t), a.now); !errors.As(err, &loss) || loss.Had.Seq != at.Seq || loss.Tail.Last != 2 {
		t.Fatalf("lead a log that lost its end: %v", err)
	}
	a.wantFacts(t, "kept")

	// A reader without anything to read looks at the tail now and then.
	b.now = b.now.Add(time.Minute)
	for range 3 {
		if _, _, err := b.Proj.Step(ctxOf(t), b.now); err != nil {
			t.Fatal(err)
		}
	}
	b.wantFacts(t, "kept")
	if b.Proj.Lost() == nil {
		t.Fatal("the reader did not notice the loss")
	}

	got, err := a.Writer.Adopt(ctxOf(t), a.now)
	if err != nil || got == nil || got.Had.Seq != at.Seq {
		t.Fatalf("adopt: %+v, %v", got, err)
	}
	a.commit(t, "new")
	b.catchUp(t)
	same(t, a, b)
	if b.Proj.Lost() != nil {
		t.Fatal("the loss was adopted, yet b still holds it against the log")
	}
	b.lead(t)
}

func lossBeyondSnapshot(t *testing.T, h Harness) {
	a := openWithSnapshots(t, h, "a")
	a.lead(t)
	a.commit(t, "kept")
	lose := h.Image(t)
	a.commit(t, "lost")
	a.snapshot(t, h)
	lose()
	b := openWithSnapshots(t, h, "b") // never saw what was lost, but the snapshot did
	var loss *ledger.Loss
	if err := b.Writer.Lead(ctxOf(t), b.now); !errors.As(err, &loss) || loss.Had.Seq != 3 {
		t.Fatalf("lead a log that ends before a snapshot: %v", err)
	}
	if got, err := b.Writer.Adopt(ctxOf(t), b.now); err != nil || got == nil {
		t.Fatalf("adopt: %+v, %v", got, err)
	}
	b.commit(t, "new")
	c := openWithSnapshots(t, h, "c")
	c.lead(t)
	c.wantFacts(t, "kept", "new")
}

// snapshot freezes and stores.
func (r *Replica) snapshot(t testing.TB, h Harness) ledger.SnapshotMeta {
	t.Helper()
	m, data, ok := r.Proj.Freeze()
	if !ok {
		t.Fatal("nothing to freeze")
	}
	if err := h.Snapshots(t).Put(ctxOf(t), m, data); err != nil {
		t.Fatal(err)
	}
	return m
}

// forgetful is a log whose end is asked of a replica that lags, once.
type forgetful struct {
	ledger.Log
	lies uint64 // where it says that it ends; 0 = the truth
}

func (l *forgetful) Tail(ctx context.Context) (ledger.Tail, error) {
	t, err := l.Log.Tail(ctx)
	if l.lies != 0 {
		t.Last, l.lies = l.lies, 0
	}
	return t, err //nolint:wrapcheck // a decorator passes errors as they are
}

// tailMisreported: an end that comes too early is taken for a loss, and the record that is there after all disproves it.
func tailMisreported(t *testing.T, h Harness) {
	a := open(t, h, "a")
	log := &forgetful{Log: h.Open(t)}
	b := NewReplica(log, nil, "b")
	a.lead(t)
	a.commit(t, "one")
	a.commit(t, "two")
	b.catchUp(t)
	log.lies = 2
	b.catchUp(t)
	if len(b.Resets) != 1 {
		t.Fatalf("b took an early end for the truth: resets %v", b.Resets)
	}
	same(t, a, b)
	if loss := b.Proj.Lost(); loss != nil {
		t.Fatalf("b has read what it holds for lost: %v", loss)
	}
	b.lead(t)
	b.commit(t, "three")
}

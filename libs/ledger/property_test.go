package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// world is some replicas on one log that goes through everything the contract allows.
type world struct {
	mem      *memledger.Log
	snaps    *memledger.Snapshots
	logs     []*faultledger.Log
	replicas []*ledgertest.Replica
	notes    int
}

func (w *world) add(snaps ledger.Snapshots) {
	log := faultledger.Wrap(w.mem)
	w.logs = append(w.logs, log)
	w.replicas = append(w.replicas, ledgertest.NewReplica(log, snaps, fmt.Sprintf("r%d", len(w.replicas))))
}

// digest is a replica's place and state.
func digest(t testingT, r *ledgertest.Replica) string {
	if _, err := r.Proj.CatchUp(context.Background(), now); err != nil {
		t.Fatalf("catch up: %v", err)
	}
	out := ""
	r.Proj.View(func(s *ledgertest.State, at ledger.Position) {
		out = fmt.Sprintf("at %d term %d %x: %x", at.Seq, at.Term, at.Hash, ledgertest.Fold().Encode(s))
	})
	return out
}

type testingT interface {
	Fatalf(format string, args ...any)
}

// TestEveryReaderAgrees: whatever leaders, zombies, strangers, lost acknowledgements and lost tails have left in the log,
// a reader that was there, a reader from any snapshot, and a reader of the whole log hold the same state.
func TestEveryReaderAgrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		w := &world{mem: memledger.New(), snaps: memledger.NewSnapshots()}
		for range 3 {
			w.add(w.snaps)
		}
		pick := rapid.IntRange(0, 2)
		cut := false
		t.Repeat(map[string]func(*rapid.T){
			"lead": func(t *rapid.T) {
				r := w.replicas[pick.Draw(t, "who")]
				err := r.Writer.Lead(ctx, now)
				var loss *ledger.Loss
				if errors.As(err, &loss) {
					if !cut {
						t.Fatalf("a loss where none was: %v", err)
					}
					_, err = r.Writer.Adopt(ctx, now)
				}
				if err != nil && !errors.Is(err, ledger.ErrConflict) && !errors.Is(err, ledger.ErrUnavailable) {
					t.Fatalf("lead: %v", err)
				}
			},
			"commit": func(t *rapid.T) {
				i := pick.Draw(t, "who")
				r := w.replicas[i]
				w.logs[i].PlanAppends(rapid.SampledFrom([]faultledger.Fault{
					faultledger.None, faultledger.None, faultledger.None, faultledger.Drop, faultledger.LoseAck, faultledger.Late,
				}).Draw(t, "fault"))
				w.notes++
				_, err := r.Writer.Commit(ctx, now, []*weftv1.Entry{ledgertest.Note(fmt.Sprintf("n%d", w.notes))}, nil)
				ok := errors.Is(err, ledger.ErrConflict) || errors.Is(err, ledger.ErrUnavailable) ||
					errors.Is(err, ledger.ErrNotLeading) || errors.Is(err, ledger.ErrMoved)
				if err != nil && !ok {
					t.Fatalf("commit: %v", err)
				}
			},
			"land":     func(t *rapid.T) { w.logs[pick.Draw(t, "who")].Land(ctx) },
			"stranger": func(*rapid.T) { w.mem.Force([]byte("stranger")) },
			"step": func(t *rapid.T) {
				if _, _, err := w.replicas[pick.Draw(t, "who")].Proj.Step(ctx, now); err != nil {
					t.Fatalf("step: %v", err)
				}
			},
			"snapshot": func(t *rapid.T) {
				r := w.replicas[pick.Draw(t, "who")]
				before, _ := w.snaps.List(ctx)
				s := ledger.NewSnapshotter(r.Proj, w.mem, w.snaps, ledger.SnapshotterOptions{Every: 1, Keep: 1000})
				if _, _, err := s.Step(ctx, now); err != nil {
					t.Fatalf("snapshot: %v", err)
				}
				after, _ := w.snaps.List(ctx)
				if len(after) > len(before) && rapid.IntRange(0, 3).Draw(t, "bad disk") == 0 {
					w.snaps.Corrupt(after[len(after)-1])
				}
			},
			"lose the tail": func(t *rapid.T) {
				tail, _ := w.mem.Tail(ctx)
				if tail.Last < 3 {
					t.Skip("nothing to lose")
				}
				w.mem.LoseAfter(tail.Last - rapid.Uint64Range(1, 2).Draw(t, "records"))
				cut = true
			},
			"": func(t *rapid.T) {
				full := ledgertest.NewReplica(w.mem, nil, "full")
				want := digest(t, full)
				fromSnapshot := ledgertest.NewReplica(w.mem, w.snaps, "snap")
				if got := digest(t, fromSnapshot); got != want {
					t.Fatalf("from a snapshot: %s\nwhole log:       %s", got, want)
				}
			},
		})
		want := digest(t, ledgertest.NewReplica(w.mem, nil, "full"))
		// A leader that won last and commits is what everybody converges to, also those on a branch that was lost.
		last := ledgertest.NewReplica(w.mem, nil, "last")
		if got := digest(t, last); got != want {
			t.Fatalf("two readers of the whole log differ: %s, %s", got, want)
		}
		if _, err := last.Writer.Adopt(ctx, now); err != nil {
			t.Fatalf("the last leader: %v", err)
		}
		// What a reader learnt on a lost branch is refuted by the first commit that is new to it.
		for _, r := range w.replicas {
			for i := 0; last.Proj.Position().Seq <= r.Proj.Position().Seq; i++ {
				if err := commit(last, fmt.Sprintf("end %d", i)); err != nil {
					t.Fatalf("the last leader commits: %v", err)
				}
			}
		}
		want = digest(t, last)
		for i, r := range w.replicas {
			if got := digest(t, r); got != want {
				t.Fatalf("replica %d: %s\nwant:      %s", i, got, want)
			}
		}
	})
}

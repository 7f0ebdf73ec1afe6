package api

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func consumed(seq uint64) []*weftv1.Cursor {
	return []*weftv1.Cursor{weftv1.Cursor_builder{Stream: new(bus.StreamRequests), CreatedNs: new(int64(1)), Seq: &seq}.Build()}
}

func refused(seq uint64, why string) []*weftv1.Entry {
	return ledger.FactEntries([]*weftv1.Fact{weftv1.Fact_builder{InputRejected: weftv1.InputRejected_builder{
		Stream: new(bus.StreamRequests), Seq: &seq, Reason: &why,
	}.Build()}.Build()})
}

func TestTracker(t *testing.T) {
	ctx := context.Background()
	log := memledger.New()
	proj := ledger.NewProjection(log, cellfold.Fold(), nil)
	tr := newTracker(proj)
	w := ledger.NewWriter(log, proj, "scheduler", "s")
	if err := w.Lead(ctx, time.Now()); err != nil {
		t.Fatal(err)
	}
	// Nobody consumed it: the wait ends with its context, and leaves nothing behind.
	short, cancel := context.WithCancel(ctx)
	cancel()
	if _, _, err := tr.wait(short, 1); !errors.Is(err, context.Canceled) || len(tr.waiters) != 0 {
		t.Errorf("%v, %d waiters", err, len(tr.waiters))
	}
	next := tr.next()
	if _, err := w.Commit(ctx, time.Now(), refused(2, "no room"), consumed(3)); err != nil {
		t.Fatal(err)
	}
	<-next // woken by the commit itself, on its goroutine
	for seq, want := range map[uint64]string{1: "", 2: "no room", 3: ""} {
		if why, no, err := tr.wait(ctx, seq); err != nil || why != want || no != (want != "") {
			t.Errorf("request %d: %q, %v, %v", seq, why, no, err)
		}
	}
	if len(tr.rejected) != 0 {
		t.Error("a refusal that was read is kept")
	}
	// A follower that starts from a snapshot knows where REQUESTS stands, before the next commit.
	meta, data, ok := proj.Freeze()
	if !ok {
		t.Fatal("no snapshot")
	}
	snaps := memledger.NewSnapshots()
	if err := snaps.Put(ctx, meta, data); err != nil {
		t.Fatal(err)
	}
	late := ledger.NewProjection(log, cellfold.Fold(), snaps)
	tr = newTracker(late)
	if _, err := late.CatchUp(ctx, time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, no, err := tr.wait(ctx, 3); err != nil || no {
		t.Errorf("%v, %v", no, err)
	}
}

func TestTrackerForgetsOldRefusals(t *testing.T) {
	tr := newTracker(ledger.NewProjection(memledger.New(), cellfold.Fold(), nil))
	for seq := range uint64(2 * keptRejections) {
		tr.reject(seq, "x")
	}
	if len(tr.rejected) != keptRejections || len(tr.order) != keptRejections || tr.rejected[2*keptRejections-1] != "x" {
		t.Errorf("%d refusals kept, %d in order", len(tr.rejected), len(tr.order))
	}
}

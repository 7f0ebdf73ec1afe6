package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// A Chain passes over exactly the records that a Projection passes over.
func TestChainAgreesWithTheProjection(t *testing.T) {
	ctx, now := context.Background(), time.Unix(1_800_000_000, 0)
	log := memledger.New()
	proj := ledger.NewProjection[*cell.State](log, cellfold.Fold(), nil)
	w := ledger.NewWriter(log, proj, "s", "a")
	fact := func(q string) []*weftv1.Entry {
		return ledger.FactEntries([]*weftv1.Fact{weftv1.Fact_builder{QueueSet: weftv1.QueueSet_builder{Queue: &q}.Build()}.Build()})
	}
	foreign, err := ledger.Encode(weftv1.Commit_builder{Term: new(uint64(1)), Id: new("x"), Prev: []byte("y"), TimeNs: new(int64(1 << 62)), Entries: fact("lie")}.Build())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := w.Lead(ctx, now); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Commit(ctx, now, fact("q"+string(rune('a'+i))), nil); err != nil {
			t.Fatal(err)
		}
		log.Force([]byte{0xff})
		log.Force(foreign)
	}
	recs, err := log.Read(ctx, 1, 100)
	if err != nil {
		t.Fatal(err)
	}
	for from := range len(recs) - 2 {
		var c ledger.Chain
		for _, r := range recs[from:] {
			void := (r.Seq-1)%4 >= 2
			if from > 0 && r.Seq == recs[from].Seq && void {
				break // a chain may only begin at a record that counts
			}
			if _, ok := c.Next(r); ok == void {
				t.Fatalf("from %d: record %d counts: %t", from+1, r.Seq, ok)
			}
		}
	}
}

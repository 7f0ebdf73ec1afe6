package allinone

import (
	"context"
	"sync"
	"testing"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
)

// A condition may ask the projection while others wait for its lock: a start once hung for ever in that.
func TestConditionsMayAskTheProjection(t *testing.T) {
	f := &Fabric{proj: ledger.NewProjection(memledger.New(), cellfold.Fold(), nil), done: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for ctx.Err() == nil {
				f.proj.Wake()
			}
		})
	}
	for range 2000 {
		if err := f.until(ctx, func(*cell.State) bool { _, term := f.proj.Leader(); return term == 0 }); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	others.Wait()
}

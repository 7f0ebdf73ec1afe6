package memledger_test

import (
	"context"
	"testing"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
)

func TestContract(t *testing.T) {
	ledgertest.Run(t, func(testing.TB) ledgertest.Harness {
		log, snaps := memledger.New(), memledger.NewSnapshots()
		return ledgertest.Harness{
			Open:  func(testing.TB) ledger.Log { return log },
			Force: func(_ testing.TB, data []byte) { log.Force(data) },
			Image: func(t testing.TB) func() {
				tail, err := log.Tail(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				return func() { log.LoseAfter(tail.Last) }
			},
			Trim:      func(_ testing.TB, seq uint64) { log.Trim(seq) },
			Recreate:  func(testing.TB) { log.Recreate() },
			Snapshots: func(testing.TB) ledger.Snapshots { return snaps },
		}
	})
}

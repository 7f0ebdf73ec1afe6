package memledger_test

import (
	"testing"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
)

func TestContract(t *testing.T) {
	ledgertest.Run(t, func(testing.TB) ledgertest.Harness {
		log, snaps := memledger.New(), memledger.NewSnapshots()
		return ledgertest.Harness{
			Open:      func(testing.TB) ledger.Log { return log },
			Force:     func(_ testing.TB, data []byte) { log.Force(data) },
			LoseAfter: func(_ testing.TB, seq uint64) { log.LoseAfter(seq) },
			Trim:      func(_ testing.TB, seq uint64) { log.Trim(seq) },
			Recreate:  func(testing.TB) { log.Recreate() },
			Snapshots: func(testing.TB) ledger.Snapshots { return snaps },
		}
	})
}

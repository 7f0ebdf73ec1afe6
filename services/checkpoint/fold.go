package checkpoint

import (
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

// Name of the service, as in terms and subjects.
const Name = "checkpoint"

// Fold is the fold of CHECKPOINTS, for operators' tools that read the log.
func Fold() ledger.Fold[*keeper.Index] { return fold() }

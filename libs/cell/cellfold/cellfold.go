// Package cellfold joins the cell's state to the ledger library. It owns nothing but that seam, so that libs/cell stays
// free of it.
package cellfold

import (
	"errors"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Fold is the fold of LEDGER into the state of the cell.
func Fold() ledger.Fold[*cell.State] {
	return ledger.Fold[*cell.State]{
		New:     cell.NewState,
		Apply:   apply,
		Encode:  cell.Encode,
		Decode:  cell.Decode,
		Version: cell.FoldVersion,
	}
}

func apply(s *cell.State, c *weftv1.Commit, seq uint64) error {
	err := cell.Apply(s, c, seq)
	if u := (*cell.UnknownKind)(nil); errors.As(err, &u) {
		return &ledger.UnknownKind{Kind: u.Kind, Seq: u.Seq}
	}
	return err
}

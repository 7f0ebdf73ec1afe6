package operate

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/services/checkpoint"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
	"github.com/weft-fabric/weft/services/scheduler"
)

// Book is one ledger of a fabric.
type Book struct {
	Name  string
	Log   ledger.Log
	Snaps ledger.Snapshots

	// Verify reads all of it.
	Verify func(ctx context.Context) (*ledger.Audit, error)
	// Snapshot writes one of the newest state; ok is false if there is nothing to write one of.
	Snapshot func(ctx context.Context) (m ledger.SnapshotMeta, ok bool, err error)
	// Lost is what is known to be lost, or nil.
	Lost func(ctx context.Context) (*ledger.Loss, error)
	// Adopt accepts what is left.
	Adopt func(ctx context.Context) (*ledger.Loss, error)
}

// Books opens the ledgers of a fabric: LEDGER and CHECKPOINTS.
func (b *Bus) Books(ctx context.Context) ([]*Book, error) {
	cells, err := open(ctx, b, bus.StreamLedger, cellfold.Fold(), func(log ledger.Log, p *ledger.Projection[*cell.State]) *ledger.Writer[*cell.State] {
		return scheduler.Adopter(ctx, log, p, b.Core, b.Nodes)
	})
	if err != nil {
		return nil, err
	}
	// The scheduler has read CHECKPOINTS up to a place that it keeps in its own ledger.
	read := func(created int64) func(context.Context) (uint64, error) {
		return func(ctx context.Context) (seq uint64, err error) {
			log, err := natsledger.Open(ctx, b.Core, bus.StreamLedger)
			if err != nil {
				return 0, err
			}
			defer log.Close()
			snaps, err := natsledger.OpenSnapshots(ctx, b.Core, bus.StreamLedger)
			if err != nil {
				return 0, err
			}
			p := ledger.NewProjection(log, cellfold.Fold(), snaps)
			if _, err := p.CatchUp(ctx, time.Now()); err != nil {
				return 0, err
			}
			p.View(func(s *cell.State, _ ledger.Position) {
				if c := s.Cursor(bus.StreamCheckpoints); c.GetCreatedNs() == created {
					seq = c.GetSeq()
				}
			})
			return seq, nil
		}
	}
	saves, err := open(ctx, b, bus.StreamCheckpoints, checkpoint.Fold(), func(log ledger.Log, p *ledger.Projection[*keeper.Index]) *ledger.Writer[*keeper.Index] {
		w := ledger.NewWriter(log, p, checkpoint.Name, "adopt-"+strings.ToLower(rand.Text()))
		w.Confirmed = func(ctx context.Context) (uint64, error) {
			tail, err := log.Tail(ctx)
			if err != nil {
				return 0, err
			}
			return read(tail.CreatedNS)(ctx)
		}
		return w
	})
	if err != nil {
		return nil, err
	}
	return []*Book{cells, saves}, nil
}

// open opens one ledger. Every action reads it anew, by a projection of its own.
func open[S any](ctx context.Context, b *Bus, stream string, fold ledger.Fold[S],
	writer func(ledger.Log, *ledger.Projection[S]) *ledger.Writer[S],
) (*Book, error) {
	reader := func() (*natsledger.Log, error) {
		l, err := natsledger.Open(ctx, b.Core, stream)
		if err == nil {
			b.close = append(b.close, l.Close)
		}
		return l, err
	}
	log, err := reader()
	if err != nil {
		return nil, err
	}
	proof, err := reader()
	if err != nil {
		return nil, err
	}
	snaps, err := natsledger.OpenSnapshots(ctx, b.Core, stream)
	if err != nil {
		return nil, err
	}
	fresh := func() (*ledger.Projection[S], *ledger.Writer[S]) {
		p := ledger.NewProjection(log, fold, snaps)
		return p, writer(log, p)
	}
	return &Book{
		Name: stream, Log: proof, Snaps: snaps,
		Verify: func(ctx context.Context) (*ledger.Audit, error) {
			_, w := fresh()
			confirmed, err := w.Confirmed(ctx)
			if err != nil {
				return nil, err
			}
			return ledger.Verify(ctx, log, fold, snaps, confirmed)
		},
		Snapshot: func(ctx context.Context) (ledger.SnapshotMeta, bool, error) {
			p, w := fresh()
			// Of a ledger that lost its end none is written: it would be taken for all there was.
			loss, err := w.Survey(ctx, time.Now())
			if err != nil {
				return ledger.SnapshotMeta{}, false, err
			}
			if loss != nil {
				return ledger.SnapshotMeta{}, false, fmt.Errorf("%s: %w", stream, loss)
			}
			return ledger.NewSnapshotter(p, proof, snaps, ledger.SnapshotterOptions{}).Write(ctx)
		},
		Lost: func(ctx context.Context) (*ledger.Loss, error) {
			_, w := fresh()
			return w.Survey(ctx, time.Now())
		},
		Adopt: func(ctx context.Context) (*ledger.Loss, error) {
			_, w := fresh()
			return w.Adopt(ctx, time.Now())
		},
	}, nil
}

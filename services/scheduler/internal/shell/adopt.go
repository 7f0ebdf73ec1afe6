package shell

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// Reports is REPORTS as an adoption needs it.
type Reports struct {
	In  bus.Inbox
	Out bus.Outbox // asked where the stream ends
}

// Takeup is how an adoption begins: the reports that the lost commits had consumed are read again, so that what had ended
// well stays ended, and then every node is doubted, so that only what agents say from now on counts as what they hold.
// The order matters: a hello of the lost time must not end the doubt.
func Takeup(proj *Projection, w *Writer, reports Reports, policy lifecycle.Policy) func(context.Context, time.Time) error {
	return func(ctx context.Context, now time.Time) error {
		if err := reread(ctx, now, proj, w, reports, policy); err != nil {
			return fmt.Errorf("read the reports again: %w", err)
		}
		var groups [][]*weftv1.Entry
		proj.View(func(s *cell.State, _ ledger.Position) {
			for _, f := range lifecycle.Doubt(s) {
				groups = append(groups, []*weftv1.Entry{ledger.FactEntry(f)})
			}
		})
		batches, err := ledger.SplitGroups(groups)
		if err != nil {
			return err
		}
		for _, b := range batches {
			if _, err := w.Commit(ctx, now, b, nil); err != nil {
				return fmt.Errorf("doubt the nodes: %w", err)
			}
		}
		return nil
	}
}

// reread consumes the reports up to the stream's end as it is now.
func reread(ctx context.Context, now time.Time, proj *Projection, w *Writer, reports Reports, policy lifecycle.Policy) error {
	_, end, ok, err := reports.Out.Last(ctx)
	if err != nil || !ok {
		return err
	}
	name, created, err := reports.In.Stream(ctx)
	if err != nil {
		return err
	}
	seq := uint64(0)
	proj.View(func(s *cell.State, _ ledger.Position) {
		if c := s.Cursor(name); c.GetCreatedNs() == created {
			seq = c.GetSeq()
		}
	})
	if seq >= end {
		return nil
	}
	reports.In.Seek(seq)
	for seq < end {
		in, err := reports.In.Next(ctx, batch)
		if err != nil {
			return err
		}
		if len(in) == 0 {
			select {
			case <-reports.In.Wake():
			case <-ctx.Done():
				return fmt.Errorf("at %d of %d: %w", seq, end, ctx.Err())
			}
		}
		for _, msg := range in {
			seq = msg.Seq
			if err := takeReport(ctx, now, proj, w, msg, policy); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeReport commits what one report makes true, and that it was consumed. One that is refused was refused before.
func takeReport(ctx context.Context, now time.Time, proj *Projection, w *Writer, msg bus.Input, policy lifecycle.Policy) error {
	var facts []*weftv1.Fact
	proj.View(func(s *cell.State, _ ledger.Position) {
		s = s.Overlay()
		at := max(now.UnixNano(), s.TimeNS())
		for _, c := range decideReport(msg) {
			if _, bad := c.Command.(poison); bad {
				continue
			}
			got, _ := lifecycle.Decide(s, c.Command, at, policy)
			for _, f := range got {
				cell.Evolve(s, f, at)
			}
			facts = append(facts, got...)
		}
	})
	cursor := weftv1.Cursor_builder{Stream: &msg.Stream, CreatedNs: &msg.CreatedNS, Seq: &msg.Seq}.Build()
	if _, err := w.Commit(ctx, now, ledger.FactEntries(facts), []*weftv1.Cursor{cursor}); err != nil {
		return fmt.Errorf("report %d: %w", msg.Seq, err)
	}
	return nil
}

// Confirmed is the newest ledger record that EVENTS and ASSIGNMENTS tell of: both are written only after the record they
// tell of was stored.
func Confirmed(events, assignments bus.Outbox) func(context.Context) (uint64, error) {
	return func(ctx context.Context) (uint64, error) {
		seq := uint64(0)
		m, _, ok, err := events.Last(ctx)
		if err != nil {
			return 0, fmt.Errorf("the last event: %w", err)
		}
		if n, _, is := positionOf(m); ok && is {
			seq = n
		}
		if m, _, ok, err = assignments.Last(ctx); err != nil {
			return 0, fmt.Errorf("the last assignment: %w", err)
		}
		if n, err := assignedAt(m.Data); ok && err == nil {
			seq = max(seq, n)
		}
		return seq, nil
	}
}

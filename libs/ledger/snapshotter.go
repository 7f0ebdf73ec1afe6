package ledger

import (
	"context"
	"fmt"
	"time"
)

// SnapshotterOptions tune a Snapshotter; the zero value is the default.
type SnapshotterOptions struct {
	Every   uint64      // records between snapshots; 50,000
	Keep    int         // snapshots kept; 4
	Leading func() bool // whether this replica leads; nil = never
}

// Snapshotter writes snapshots of a projection. A standby writes one every so many records; a leader only when twice as
// many have passed without one, because freezing holds up its commits. It is a run.Shell.
type Snapshotter[S any] struct {
	proj   *Projection[S]
	log    Log
	snaps  Snapshots
	opts   SnapshotterOptions
	wake   <-chan struct{}
	newest uint64 // newest snapshot known
	listed bool
}

// NewSnapshotter returns the shell. log is read apart from the projection, so it must be a reader of its own.
func NewSnapshotter[S any](proj *Projection[S], log Log, snaps Snapshots, opts SnapshotterOptions) *Snapshotter[S] {
	if opts.Every == 0 {
		opts.Every = 50_000
	}
	if opts.Keep == 0 {
		opts.Keep = 4
	}
	return &Snapshotter[S]{proj: proj, log: log, snaps: snaps, opts: opts, wake: proj.Wake()}
}

// Wakes is the projection's.
func (s *Snapshotter[S]) Wakes() []<-chan struct{} { return []<-chan struct{}{s.wake} }

// Step writes a snapshot if one is due.
func (s *Snapshotter[S]) Step(ctx context.Context, _ time.Time) (bool, time.Time, error) {
	if !s.proj.Synced() {
		return false, time.Time{}, nil
	}
	seq := s.proj.Position().Seq
	if s.listed && !s.due(seq) {
		return false, time.Time{}, nil
	}
	if err := s.look(ctx, seq); err != nil { // somebody else may have written one
		return false, time.Time{}, err
	}
	if !s.due(seq) {
		return false, time.Time{}, nil
	}
	m, ok, err := s.write(ctx, s.newest)
	if err != nil || !ok {
		return false, time.Time{}, err
	}
	s.newest = m.Seq
	return true, time.Time{}, s.prune(ctx)
}

// Write writes a snapshot now, whatever is due. ok is false if there is nothing to write one of, or if the chain in the
// log does not lead to what the projection holds.
func (s *Snapshotter[S]) Write(ctx context.Context) (m SnapshotMeta, ok bool, err error) {
	if m, ok, err = s.write(ctx, 0); err != nil || !ok {
		return m, false, err
	}
	return m, true, s.prune(ctx)
}

func (s *Snapshotter[S]) write(ctx context.Context, after uint64) (SnapshotMeta, bool, error) {
	m, data, ok := s.proj.Freeze()
	if !ok || m.Seq <= after {
		return m, false, nil
	}
	if ok, err := s.proj.prove(ctx, s.log, m); err != nil || !ok {
		return m, false, err
	}
	if err := s.snaps.Put(ctx, m, data); err != nil {
		return m, false, fmt.Errorf("write a snapshot at %d: %w", m.Seq, err)
	}
	return m, true, nil
}

func (s *Snapshotter[S]) due(seq uint64) bool {
	every := s.opts.Every
	if s.opts.Leading != nil && s.opts.Leading() {
		every *= 2
	}
	return seq >= s.newest+every
}

// look finds the newest snapshot that this fold could use, ignoring those beyond the end.
func (s *Snapshotter[S]) look(ctx context.Context, seq uint64) error {
	all, err := s.snaps.List(ctx)
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	s.newest, s.listed = 0, true
	for _, m := range all {
		if m.Fold == s.proj.fold.Version && m.Seq <= seq {
			s.newest = max(s.newest, m.Seq)
		}
	}
	return nil
}

// prune deletes all but the newest few, of any fold: an older version may still have to start.
func (s *Snapshotter[S]) prune(ctx context.Context) error {
	all, err := s.snaps.List(ctx)
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	sortSnapshots(all)
	for ; len(all) > s.opts.Keep; all = all[1:] {
		if err := s.snaps.Delete(ctx, all[0]); err != nil {
			return fmt.Errorf("delete the snapshot at %d: %w", all[0].Seq, err)
		}
	}
	return nil
}

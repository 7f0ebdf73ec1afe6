package ledger

import (
	"bytes"
	"context"
	"fmt"
)

// Covered returns the first record that has to stay: those before it are in the oldest snapshot kept, from which every
// reader can start instead. It is 0 while nothing may go: there must be two snapshots that were read back, decoded and
// found on the chain, so that no single bad block takes the history with it.
func Covered[S any](ctx context.Context, log Log, snaps Snapshots, fold Fold[S]) (uint64, error) {
	tail, err := log.Tail(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for the ledger's end: %w", err)
	}
	all, err := snaps.List(ctx)
	if err != nil {
		return 0, fmt.Errorf("list the ledger's snapshots: %w", err)
	}
	sortSnapshots(all)
	if len(all) < 2 || all[0].Seq <= tail.First { // known without reading anything: this is asked often
		return 0, nil
	}
	covered, good := uint64(0), 0
	for _, m := range all {
		ok, err := usable(ctx, log, snaps, fold, tail, m)
		if err != nil {
			return 0, err
		}
		if !ok {
			continue
		}
		if good++; good == 1 {
			covered = m.Seq
		}
		if good == 2 {
			return covered, nil
		}
	}
	return 0, nil
}

// usable says whether a reader of this fold could start from a snapshot.
func usable[S any](ctx context.Context, log Log, snaps Snapshots, fold Fold[S], tail Tail, m SnapshotMeta) (bool, error) {
	if m.Fold != fold.Version || m.CreatedNS != tail.CreatedNS || m.Seq < tail.First || m.Seq > tail.Last {
		return false, nil
	}
	recs, err := log.Read(ctx, m.Seq, 1)
	if err != nil {
		return false, fmt.Errorf("read the commit of a snapshot: %w", err)
	}
	if len(recs) == 0 || recs[0].Seq != m.Seq || !bytes.Equal(Hash(recs[0].Data), m.Hash) {
		return false, nil
	}
	data, err := snaps.Get(ctx, m)
	if err != nil || !bytes.Equal(Hash(data), m.State) {
		return false, nil //nolint:nilerr // one that can't be read is none
	}
	_, err = fold.Decode(data)
	return err == nil, nil
}

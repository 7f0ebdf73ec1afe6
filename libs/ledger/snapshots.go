package ledger

import (
	"bytes"
	"context"
	"slices"
)

// SnapshotMeta says what a snapshot is of. None is "the latest": a reader takes the newest one that lies on the chain.
type SnapshotMeta struct {
	Seq       uint64 // the commit after which the state was frozen
	Term      uint64
	TimeNS    int64
	Hash      []byte // of the commit's stored bytes; the log must hold the same at Seq
	State     []byte // BLAKE3-256 of the data
	Fold      uint32 // version of the fold that encoded it
	CreatedNS int64  // creation time of the log
}

// position is where a reader of the snapshot continues.
func (m SnapshotMeta) position() Position {
	return Position{Seq: m.Seq, Term: m.Term, Hash: m.Hash, TimeNS: m.TimeNS}
}

// same tells snapshots apart by place and content.
func (m SnapshotMeta) same(o SnapshotMeta) bool {
	return m.Seq == o.Seq && m.Fold == o.Fold && bytes.Equal(m.Hash, o.Hash)
}

// Snapshots is the port to stored snapshots of one log.
type Snapshots interface {
	// Put stores a snapshot; putting one that exists again is harmless.
	Put(ctx context.Context, m SnapshotMeta, data []byte) error
	// List returns all of them, in any order.
	List(ctx context.Context) ([]SnapshotMeta, error)
	// Get returns the data as stored. The caller checks the state hash.
	Get(ctx context.Context, m SnapshotMeta) ([]byte, error)
	Delete(ctx context.Context, m SnapshotMeta) error
}

// sortSnapshots orders by place in the log, oldest first.
func sortSnapshots(ms []SnapshotMeta) {
	slices.SortFunc(ms, func(a, b SnapshotMeta) int {
		switch {
		case a.Seq < b.Seq:
			return -1
		case a.Seq > b.Seq:
			return 1
		}
		return bytes.Compare(a.Hash, b.Hash)
	})
}

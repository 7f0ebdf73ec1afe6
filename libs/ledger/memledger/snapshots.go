package memledger

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/weft-fabric/weft/libs/ledger"
)

// Snapshots is a ledger.Snapshots in memory.
type Snapshots struct {
	mu   sync.Mutex
	all  []ledger.SnapshotMeta
	data [][]byte
}

// NewSnapshots returns an empty store.
func NewSnapshots() *Snapshots { return &Snapshots{} }

func (s *Snapshots) find(m ledger.SnapshotMeta) int {
	return slices.IndexFunc(s.all, func(o ledger.SnapshotMeta) bool {
		return o.Seq == m.Seq && o.Fold == m.Fold && bytes.Equal(o.Hash, m.Hash)
	})
}

// Put implements ledger.Snapshots.
func (s *Snapshots) Put(_ context.Context, m ledger.SnapshotMeta, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(m); i >= 0 {
		s.all[i], s.data[i] = m, slices.Clone(data)
		return nil
	}
	s.all, s.data = append(s.all, m), append(s.data, slices.Clone(data))
	return nil
}

// List implements ledger.Snapshots.
func (s *Snapshots) List(context.Context) ([]ledger.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all), nil
}

// Get implements ledger.Snapshots.
func (s *Snapshots) Get(_ context.Context, m ledger.SnapshotMeta) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.find(m)
	if i < 0 {
		return nil, fmt.Errorf("snapshot of record %d: not found", m.Seq)
	}
	return slices.Clone(s.data[i]), nil
}

// Delete implements ledger.Snapshots.
func (s *Snapshots) Delete(_ context.Context, m ledger.SnapshotMeta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(m); i >= 0 {
		s.all, s.data = slices.Delete(s.all, i, i+1), slices.Delete(s.data, i, i+1)
	}
	return nil
}

// Corrupt flips a bit of a stored snapshot, as a bad disk does.
func (s *Snapshots) Corrupt(m ledger.SnapshotMeta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.find(m); i >= 0 && len(s.data[i]) > 0 {
		s.data[i][0] ^= 1
	}
}

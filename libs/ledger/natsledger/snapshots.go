package natsledger

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
)

// Snapshots keeps the snapshots of one ledger in the bucket of snapshots.
type Snapshots struct {
	store jetstream.ObjectStore
	name  string // of the ledger's stream
}

// OpenSnapshots opens the snapshots of a ledger.
func OpenSnapshots(ctx context.Context, conn *bus.Conn, stream string) (*Snapshots, error) {
	store, err := conn.JS().ObjectStore(ctx, bus.BucketSnapshots)
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", bus.BucketSnapshots, err)
	}
	return &Snapshots{store: store, name: stream}, nil
}

// The keys of what an object says about itself.
const (
	keyStream  = "weft-stream"
	keySeq     = "weft-seq"
	keyTerm    = "weft-term"
	keyTime    = "weft-time"
	keyHash    = "weft-hash"
	keyState   = "weft-state"
	keyFold    = "weft-fold"
	keyCreated = "weft-created"
)

func (s *Snapshots) object(m ledger.SnapshotMeta) string {
	return fmt.Sprintf("%s.%020d.%d.%.8x", s.name, m.Seq, m.Fold, m.Hash)
}

// Put implements ledger.Snapshots.
func (s *Snapshots) Put(ctx context.Context, m ledger.SnapshotMeta, data []byte) error {
	u := func(v uint64) string { return strconv.FormatUint(v, 10) }
	i := func(v int64) string { return strconv.FormatInt(v, 10) }
	_, err := s.store.Put(ctx, jetstream.ObjectMeta{
		Name: s.object(m),
		Metadata: map[string]string{
			keyStream: s.name, keySeq: u(m.Seq), keyTerm: u(m.Term), keyTime: i(m.TimeNS), keyHash: hex.EncodeToString(m.Hash),
			keyState: hex.EncodeToString(m.State), keyFold: u(uint64(m.Fold)), keyCreated: i(m.CreatedNS),
		},
	}, bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("put snapshot %s: %w", s.object(m), err)
	}
	return nil
}

// List implements ledger.Snapshots. An object that doesn't say what it is counts as absent.
func (s *Snapshots) List(ctx context.Context) ([]ledger.SnapshotMeta, error) {
	infos, err := s.store.List(ctx)
	if errors.Is(err, jetstream.ErrNoObjectsFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var out []ledger.SnapshotMeta
	for _, info := range infos {
		if m, ok := parseMeta(info.Metadata); ok && info.Metadata[keyStream] == s.name && s.object(m) == info.Name {
			out = append(out, m)
		}
	}
	return out, nil
}

func parseMeta(md map[string]string) (m ledger.SnapshotMeta, ok bool) {
	var errs [7]error
	var fold uint64
	m.Seq, errs[0] = strconv.ParseUint(md[keySeq], 10, 64)
	m.Term, errs[1] = strconv.ParseUint(md[keyTerm], 10, 64)
	m.TimeNS, errs[2] = strconv.ParseInt(md[keyTime], 10, 64)
	m.Hash, errs[3] = hex.DecodeString(md[keyHash])
	m.State, errs[4] = hex.DecodeString(md[keyState])
	fold, errs[5] = strconv.ParseUint(md[keyFold], 10, 32)
	m.CreatedNS, errs[6] = strconv.ParseInt(md[keyCreated], 10, 64)
	m.Fold = uint32(fold) //nolint:gosec // parsed as 32 bits
	return m, errors.Join(errs[:]...) == nil
}

// Get implements ledger.Snapshots.
func (s *Snapshots) Get(ctx context.Context, m ledger.SnapshotMeta) ([]byte, error) {
	data, err := s.store.GetBytes(ctx, s.object(m))
	if err != nil {
		return nil, fmt.Errorf("get snapshot %s: %w", s.object(m), err)
	}
	return data, nil
}

// Delete implements ledger.Snapshots.
func (s *Snapshots) Delete(ctx context.Context, m ledger.SnapshotMeta) error {
	if err := s.store.Delete(ctx, s.object(m)); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
		return fmt.Errorf("delete snapshot %s: %w", s.object(m), err)
	}
	return nil
}

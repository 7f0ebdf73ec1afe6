// Package ledger is the append-only log of commits that a service's leader writes and everybody folds.
//
// It owns the order of commits, the compare-and-append that fences a deposed leader, the hash chain that every reader
// checks, and the projection that turns a log into a state. It never knows the facts it carries: LEDGER and CHECKPOINTS
// use it with facts of their own.
//
// Ordering: records come in sequence, without gaps, each exactly once. One append is in flight, ever: a pipelined one
// would re-open the door to a deposed leader.
package ledger

import (
	"context"
	"errors"
)

// Record is one stored commit.
type Record struct {
	Seq  uint64 // from 1
	Data []byte // stored bytes; the reader must not change them
}

// Tail says where a log stands.
type Tail struct {
	First     uint64 // oldest sequence still stored; Last+1 if none is
	Last      uint64 // newest sequence; 0 in a log never written
	CreatedNS int64  // creation time of the log; another value means another log
}

var (
	// ErrConflict: somebody else wrote at that place; reload, and do not assume anything was stored.
	ErrConflict = errors.New("ledger: another writer appended first")
	// ErrUnavailable: the log did not answer in time; whether the data was stored is unknown until Read tells.
	ErrUnavailable = errors.New("ledger: log unavailable")
	// ErrFull: the log's storage has no room. As with ErrUnavailable, only Read tells whether the data was stored: one
	// replica of several may have had room.
	ErrFull = errors.New("ledger: no room left in the log's storage")
)

// Log is the port to one stream of commits. Memory and NATS adapters pass ledgertest.
type Log interface {
	// Append stores data at sequence expected+1, or fails with ErrConflict. id is the commit's id: after a lost
	// acknowledgement the adapter reads back and succeeds if the record at expected+1 carries that id. It blocks until
	// the record is synced to disk; at most one call may be in flight.
	Append(ctx context.Context, expected uint64, id string, data []byte) (seq uint64, err error)
	// Read returns up to max records from sequence from on that are known to be stored, without waiting for more; an
	// empty result means the reader is at the tail.
	Read(ctx context.Context, from uint64, max int) ([]Record, error)
	// Tail asks where the log stands now.
	Tail(ctx context.Context) (Tail, error)
	// Wake returns a channel that receives (capacity one, never blocking the sender) when Read may have more.
	Wake() <-chan struct{}
}

// Trimmable is a log whose beginning can be removed, for ever.
type Trimmable interface {
	// TrimBefore removes every record before seq; what was removed already is no error.
	TrimBefore(ctx context.Context, seq uint64) error
}

// Package memledger is the ledger in memory, for tests and for the simulator: deterministic, without goroutines. It never
// fails by itself; package faultledger makes it.
package memledger

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/weft-fabric/weft/libs/ledger"
)

// Log is a ledger.Log that any number of writers and readers may share.
type Log struct {
	mu      sync.Mutex
	first   uint64
	records []ledger.Record // records[i].Seq == first+i
	created int64
	wakes   []chan struct{}
}

// New returns an empty log.
func New() *Log { return &Log{first: 1, created: 1} }

func (l *Log) last() uint64 { return l.first + uint64(len(l.records)) - 1 }

// Append implements ledger.Log.
func (l *Log) Append(ctx context.Context, expected uint64, id string, data []byte) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, errors.Join(ledger.ErrUnavailable, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last() != expected {
		if r, ok := l.at(expected + 1); ok && ledger.HasID(r.Data, id) {
			return r.Seq, nil
		}
		return 0, ledger.ErrConflict
	}
	l.push(data)
	return l.last(), nil
}

func (l *Log) push(data []byte) {
	l.records = append(l.records, ledger.Record{Seq: l.last() + 1, Data: slices.Clone(data)})
	l.wake()
}

func (l *Log) at(seq uint64) (ledger.Record, bool) {
	if seq < l.first || seq > l.last() {
		return ledger.Record{}, false
	}
	return l.records[seq-l.first], true
}

// Read implements ledger.Log.
func (l *Log) Read(_ context.Context, from uint64, limit int) ([]ledger.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from = max(from, l.first)
	if from > l.last() {
		return nil, nil
	}
	rest := l.records[from-l.first:]
	return slices.Clone(rest[:min(limit, len(rest))]), nil
}

// Tail implements ledger.Log.
func (l *Log) Tail(context.Context) (ledger.Tail, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return ledger.Tail{First: l.first, Last: l.last(), CreatedNS: l.created}, nil
}

// Wake implements ledger.Log; every caller gets a channel of its own.
func (l *Log) Wake() <-chan struct{} {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	l.wakes = append(l.wakes, ch)
	l.mu.Unlock()
	return ch
}

func (l *Log) wake() {
	for _, ch := range l.wakes {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// Force stores data behind the end without any check, as a stranger on the stream could.
func (l *Log) Force(data []byte) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.push(data)
	return l.last()
}

// LoseAfter forgets every record after seq, as a disk put back from a backup does.
func (l *Log) LoseAfter(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq < l.last() {
		l.records = l.records[:max(seq+1, l.first)-l.first]
	}
}

// Trim removes the records before seq.
func (l *Log) Trim(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = min(seq, l.last()+1)
	if seq > l.first {
		l.records = slices.Clone(l.records[seq-l.first:])
		l.first = seq
	}
}

// TrimBefore implements ledger.Trimmable.
func (l *Log) TrimBefore(_ context.Context, seq uint64) error {
	l.Trim(seq)
	return nil
}

// Recreate empties the log and gives it another creation time, as deleting and making the stream anew does.
func (l *Log) Recreate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.records, l.first = nil, 1
	l.created++
}

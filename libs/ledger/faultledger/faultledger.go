// Package faultledger wraps a ledger.Log and makes it fail where a test says so. It never fails by chance: whoever wants
// chance draws it and plans the fault.
package faultledger

import (
	"context"
	"sync"

	"github.com/weft-fabric/weft/libs/ledger"
)

// Fault is what happens to one call.
type Fault int

// Faults of Append; Drop also fits Read and Tail.
const (
	None    Fault = iota
	Drop          // nothing is stored, the caller learns ErrUnavailable
	LoseAck       // stored, the caller learns ErrUnavailable
	Late          // the caller learns ErrUnavailable; Land stores it if it still fits
	Hold          // the caller's process is paused before anything is sent, until Resume
	HoldAck       // stored; the caller's process is paused before it learns that, until Resume
)

// Log is a ledger.Log with planned faults.
type Log struct {
	ledger.Log

	mu      sync.Mutex
	appends []Fault
	reads   []Fault
	late    []func(context.Context) error
	resume  chan struct{} // closed by Resume
	held    chan struct{}
}

// Wrap returns log without any fault planned.
func Wrap(log ledger.Log) *Log {
	return &Log{Log: log, resume: make(chan struct{}), held: make(chan struct{}, 64)}
}

// Held receives once for each append that has come to its pause.
func (l *Log) Held() <-chan struct{} { return l.held }

// Resume lets every append go on that is held now.
func (l *Log) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.resume)
	l.resume = make(chan struct{})
}

// hold waits for Resume. It heeds no context: a paused process doesn't either.
func (l *Log) hold() {
	l.mu.Lock()
	resume := l.resume
	l.mu.Unlock()
	l.held <- struct{}{}
	<-resume
}

// PlanAppends queues faults for the next appends, one each.
func (l *Log) PlanAppends(fs ...Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appends = append(l.appends, fs...)
}

// PlanReads queues faults for the next reads and tails, one each.
func (l *Log) PlanReads(fs ...Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads = append(l.reads, fs...)
}

// Heal forgets the faults that have not come true yet.
func (l *Log) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.appends, l.reads = nil, nil
}

func (l *Log) take(q *[]Fault) Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(*q) == 0 {
		return None
	}
	f := (*q)[0]
	*q = (*q)[1:]
	return f
}

// Land delivers the appends that were late, in order, and returns how each ended.
func (l *Log) Land(ctx context.Context) []error {
	l.mu.Lock()
	late := l.late
	l.late = nil
	l.mu.Unlock()
	var errs []error
	for _, f := range late {
		errs = append(errs, f(ctx))
	}
	return errs
}

// Append implements ledger.Log.
func (l *Log) Append(ctx context.Context, expected uint64, id string, data []byte) (uint64, error) {
	switch l.take(&l.appends) {
	case Drop:
		return 0, ledger.ErrUnavailable
	case LoseAck:
		if _, err := l.Log.Append(ctx, expected, id, data); err != nil {
			return 0, err //nolint:wrapcheck // a decorator passes errors as they are
		}
		return 0, ledger.ErrUnavailable
	case Late:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.late = append(l.late, func(ctx context.Context) error {
			_, err := l.Log.Append(ctx, expected, id, data)
			return err //nolint:wrapcheck // a decorator passes errors as they are
		})
		return 0, ledger.ErrUnavailable
	case Hold:
		l.hold()
	case HoldAck:
		seq, err := l.Log.Append(ctx, expected, id, data)
		l.hold()
		return seq, err //nolint:wrapcheck // a decorator passes errors as they are
	case None:
	}
	return l.Log.Append(ctx, expected, id, data) //nolint:wrapcheck // a decorator passes errors as they are
}

// Read implements ledger.Log.
func (l *Log) Read(ctx context.Context, from uint64, limit int) ([]ledger.Record, error) {
	if l.take(&l.reads) == Drop {
		return nil, ledger.ErrUnavailable
	}
	return l.Log.Read(ctx, from, limit) //nolint:wrapcheck // a decorator passes errors as they are
}

// Tail implements ledger.Log.
func (l *Log) Tail(ctx context.Context) (ledger.Tail, error) {
	if l.take(&l.reads) == Drop {
		return ledger.Tail{}, ledger.ErrUnavailable
	}
	return l.Log.Tail(ctx) //nolint:wrapcheck // a decorator passes errors as they are
}

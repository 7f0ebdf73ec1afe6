// Package natsledger keeps a ledger in a JetStream stream.
//
// It owns the compare-and-append by expected last sequence, the resolution of lost acknowledgements by reading back, and
// a buffer that follows the stream. It never creates or configures streams; package bus declares them.
package natsledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
)

const (
	attempt = 2 * time.Second        // one try; trying again is harmless, because only one try can fit
	within  = 20 * time.Second       // one Append, all tries together: longer than two elections of the bus
	pause   = 100 * time.Millisecond // between tries
	ahead   = 4096                   // records that the follower may buffer before it waits for the reader

	aheadBytes = 4 << 20 // and how many bytes of them, give or take one batch
)

// Log is one stream as a ledger.Log. Any number may be open on one connection; one Log serves one projection, because it
// buffers what comes after that reader's position.
type Log struct {
	conn    *bus.Conn
	stream  jetstream.Stream
	name    string
	subject string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever what follows changes
	follow  context.CancelFunc
	epoch   uint64 // of the follower; an older one's deliveries are dropped
	buf     []ledger.Record
	bytes   int    // of buf
	next    uint64 // the follower delivers this sequence or a later one next
	want    uint64 // the reader has everything before
	known   uint64 // newest sequence known to be stored
	created int64  // creation time of the stream when last asked; 0 before
	rewound bool   // the log lost its end; nothing is read until Tail was asked
	wakes   []chan struct{}
	closed  bool
	done    sync.WaitGroup
}

// Open opens the ledger that a stream holds. The stream must have exactly one subject.
func Open(ctx context.Context, conn *bus.Conn, stream string) (*Log, error) {
	s, err := conn.JS().Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", stream, err)
	}
	info := s.CachedInfo()
	if len(info.Config.Subjects) != 1 {
		return nil, fmt.Errorf("open ledger %s: the stream takes subjects %q, a ledger has one", stream, info.Config.Subjects)
	}
	return &Log{
		conn: conn, stream: s, name: stream, subject: info.Config.Subjects[0],
		changed: make(chan struct{}), known: info.State.LastSeq,
	}, nil
}

// Close stops following. The connection stays open.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	l.stopFollowing()
	l.mu.Unlock()
	l.done.Wait()
}

// Append implements ledger.Log: one synchronous publish; whatever is not a plain success is read back.
func (l *Log) Append(ctx context.Context, expected uint64, id string, data []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := l.publish(ctx, expected, data)
		if err == nil {
			return expected + 1, nil
		}
		got, found, readErr := l.get(ctx, expected+1)
		switch {
		case found && ledger.HasID(got, id):
			return expected + 1, nil
		case found:
			return 0, fmt.Errorf("append to %s at %d: %w", l.name, expected+1, ledger.ErrConflict)
		case readErr == nil && refused(err):
			// Nothing stands there and the server says no. A replica that lags may not show yet what made it say so.
			if settled, cerr := l.settle(ctx, expected, err); settled {
				return 0, cerr
			}
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("append to %s at %d: %w: %w", l.name, expected+1, ledger.ErrUnavailable, err)
		case <-time.After(pause):
		}
	}
}

// publish tries once; nil means stored at expected+1 by this very message.
func (l *Log) publish(ctx context.Context, expected uint64, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	ack, err := l.conn.JS().PublishMsg(ctx, &nats.Msg{Subject: l.subject, Data: data},
		jetstream.WithExpectLastSequence(expected))
	if err != nil {
		return err //nolint:wrapcheck // the caller judges and wraps it
	}
	if ack.Sequence != expected+1 || ack.Duplicate || ack.Stream != l.name {
		return fmt.Errorf("acknowledged as %s %d (duplicate %t)", ack.Stream, ack.Sequence, ack.Duplicate)
	}
	return nil
}

// refused says whether the server has answered that it did not store the message.
func refused(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api)
}

// Codes of refusals that settle something.
const (
	codeWrongLastSequence         = 10071
	codeWrongLastSequenceConstant = 10164 // replicated streams know this one too
	codeStoreFailed               = 10077
	codeInsufficientResources     = 10023
	codeStorageExceeded           = 10047
	codeMemoryExceeded            = 10028
	codeAccountExceeded           = 10002
)

// settle decides what a refusal means when nothing is found at expected+1: settled is false to try again.
func (l *Log) settle(ctx context.Context, expected uint64, refusal error) (settled bool, err error) {
	var api *jetstream.APIError
	if !errors.As(refusal, &api) {
		return false, nil
	}
	switch api.ErrorCode {
	case codeWrongLastSequence, codeWrongLastSequenceConstant:
	case codeStoreFailed, codeInsufficientResources, codeStorageExceeded, codeMemoryExceeded, codeAccountExceeded:
		// Not tried again here: that would only hold up whoever could free room.
		return true, fmt.Errorf("append to %s at %d: %w: %w", l.name, expected+1, ledger.ErrFull, refusal)
	default:
		if api.Code >= 500 || api.Code == 404 || api.Code == 408 || api.Code == 429 {
			return false, nil // no leader, no quorum, overload: passing
		}
		return true, fmt.Errorf("append to %s at %d: %w", l.name, expected+1, refusal)
	}
	tail, err := l.Tail(ctx)
	if err != nil {
		return false, nil //nolint:nilerr // try again until ctx ends
	}
	// Something stands there that a lagging replica did not show: read again. Otherwise the log ends before expected,
	// or what stood there has been trimmed.
	if tail.Last > expected && tail.First <= expected+1 {
		return false, nil
	}
	return true, fmt.Errorf("append to %s at %d, which ends at %d: %w", l.name, expected+1, tail.Last, ledger.ErrConflict)
}

// get reads one record; found is false if there is none, with err set if nobody could say.
func (l *Log) get(ctx context.Context, seq uint64) (data []byte, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	m, err := l.stream.GetMsg(ctx, seq)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read record %d of %s: %w", seq, l.name, err)
	}
	return m.Data, true, nil
}

// Tail implements ledger.Log.
func (l *Log) Tail(ctx context.Context) (ledger.Tail, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	info, err := l.stream.Info(ctx)
	if err != nil {
		return ledger.Tail{}, fmt.Errorf("ask where %s ends: %w: %w", l.name, ledger.ErrUnavailable, err)
	}
	tail := ledger.Tail{First: info.State.FirstSeq, Last: info.State.LastSeq, CreatedNS: info.Created.UnixNano()}
	if info.State.Msgs == 0 {
		tail.First = tail.Last + 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if tail.Last+1 < l.next || l.created != 0 && tail.CreatedNS != l.created {
		l.stopFollowing() // what is buffered may be lost records
		l.next, l.want = tail.Last+1, tail.Last+1
	}
	l.known, l.created, l.rewound = tail.Last, tail.CreatedNS, false
	return tail, nil
}

// TrimBefore implements ledger.Trimmable.
func (l *Log) TrimBefore(ctx context.Context, seq uint64) error {
	if seq <= 1 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := l.stream.Purge(ctx, jetstream.WithPurgeSequence(seq)); err != nil {
		return fmt.Errorf("trim %s before %d: %w", l.name, seq, err)
	}
	return nil
}

package natsledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
)

// Read implements ledger.Log. It serves from what the follower has delivered, and waits for the follower only while the
// record asked for is known to be stored.
func (l *Log) Read(ctx context.Context, from uint64, limit int) ([]ledger.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	from = max(from, 1)
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return nil, fmt.Errorf("read %s: %w: closed", l.name, ledger.ErrUnavailable)
		}
		if l.rewound {
			l.mu.Unlock()
			return nil, nil
		}
		l.seek(from)
		if len(l.buf) > 0 {
			n := min(limit, len(l.buf))
			out := append([]ledger.Record(nil), l.buf[:n]...)
			l.mu.Unlock()
			return out, nil
		}
		if from > l.known {
			l.mu.Unlock()
			return nil, nil
		}
		changed := l.changed
		l.mu.Unlock()
		look := time.NewTimer(time.Second)
		select {
		case <-changed:
			look.Stop()
		case <-ctx.Done():
			look.Stop()
			return nil, fmt.Errorf("read %s from %d: %w: %w", l.name, from, ledger.ErrUnavailable, ctx.Err())
		case <-look.C: // perhaps the log has lost its end, or everything from here was trimmed
			if tail, err := l.Tail(ctx); err == nil && (from > tail.Last || tail.First > tail.Last) {
				return nil, nil
			}
		}
	}
}

// seek makes the buffer begin at from or later: by dropping what lies before, or by following anew. mu is held.
func (l *Log) seek(from uint64) {
	start := l.next
	if len(l.buf) > 0 {
		start = l.buf[0].Seq
	}
	if l.follow == nil || from < min(start, l.want) || from > l.next+ahead {
		l.restart(from)
		return
	}
	l.want = from
	if len(l.buf) > 0 && start < from {
		n := 0
		for n < len(l.buf) && l.buf[n].Seq < from {
			l.bytes -= len(l.buf[n].Data)
			n++
		}
		l.buf = l.buf[n:]
		l.change()
	}
}

// restart follows from a place on. mu is held.
func (l *Log) restart(from uint64) {
	l.stopFollowing()
	l.next, l.want = from, from
	ctx, cancel := context.WithCancel(context.Background())
	l.follow = cancel
	epoch := l.epoch
	l.done.Go(func() {
		err := bus.Follow(ctx, l.conn, l.name, "", from, func(ms []*bus.Msg) { l.deliver(ctx, epoch, ms) })
		rewound := errors.Is(err, bus.ErrRewound)
		if !rewound { // it could not work at all: do not spin
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.epoch != epoch {
			return
		}
		l.stopFollowing() // the next Read follows anew
		if rewound {      // but not before the reader has asked where the log stands now
			l.rewound = true
			l.wake()
		}
	})
}

// stopFollowing drops the follower. mu is held.
func (l *Log) stopFollowing() {
	if l.follow != nil {
		l.follow()
		l.follow = nil
	}
	l.epoch++
	l.buf, l.bytes = nil, 0
	l.change()
}

// deliver takes a batch in, and waits while the reader is far behind.
func (l *Log) deliver(ctx context.Context, epoch uint64, ms []*bus.Msg) {
	for {
		l.mu.Lock()
		if l.epoch != epoch {
			l.mu.Unlock()
			return
		}
		if len(l.buf) < ahead && l.bytes < aheadBytes {
			break
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
	defer l.mu.Unlock()
	for _, m := range ms {
		l.next = m.Seq + 1
		l.known = max(l.known, m.Seq)
		if m.Seq >= l.want {
			l.buf = append(l.buf, ledger.Record{Seq: m.Seq, Data: m.Data})
			l.bytes += len(m.Data)
		}
	}
	l.change()
	l.wake()
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

func (l *Log) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

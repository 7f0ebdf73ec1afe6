package busnats

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
)

// What an inbox reads ahead of its reader.
const (
	bufferMsgs  = 8192
	bufferBytes = 16 << 20
)

// NewInbox reads a stream, or the part of it that matches filter ("" = all), until ctx ends. Reading begins with the
// first Next or Seek.
func NewInbox(ctx context.Context, conn *bus.Conn, stream, filter string) bus.Inbox {
	i := &inbox{ctx: ctx, conn: conn, stream: stream, filter: filter, wake: make(chan struct{}, 1)}
	i.room = sync.NewCond(&i.mu)
	context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.room.Broadcast()
	})
	return i
}

type inbox struct {
	ctx            context.Context
	conn           *bus.Conn
	stream, filter string
	wake           chan struct{}

	mu      sync.Mutex
	room    *sync.Cond
	life    int                // number of the reader that may write buf
	stop    context.CancelFunc // of that reader
	buf     []bus.Input
	bytes   int
	created int64
}

func (i *inbox) Next(ctx context.Context, limit int) ([]bus.Input, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stop == nil {
		i.start(0)
	}
	if err := i.ctx.Err(); err != nil {
		return nil, err
	}
	n := min(limit, len(i.buf))
	out := i.buf[:n:n]
	i.buf = i.buf[n:]
	for _, m := range out {
		i.bytes -= len(m.Data)
	}
	if len(i.buf) > 0 {
		notify(i.wake)
	}
	i.room.Broadcast()
	return out, nil
}

func (i *inbox) Seek(seq uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.start(seq)
}

// start begins to read after seq, with an empty buffer; i.mu is held.
func (i *inbox) start(seq uint64) {
	if i.stop != nil {
		i.stop()
	}
	ctx, cancel := context.WithCancel(i.ctx)
	i.stop, i.buf, i.bytes = cancel, nil, 0
	i.life++
	i.room.Broadcast()
	go i.read(ctx, i.life, seq+1)
}

func (i *inbox) read(ctx context.Context, life int, from uint64) {
	sink := func(msgs []*bus.Msg) {
		i.mu.Lock()
		defer i.mu.Unlock()
		for len(i.buf) > 0 && (len(i.buf) >= bufferMsgs || i.bytes >= bufferBytes) && i.life == life && ctx.Err() == nil {
			i.room.Wait()
		}
		if i.life != life {
			return
		}
		for _, m := range msgs {
			i.buf = append(i.buf, bus.Input{
				Stream: i.stream, CreatedNS: m.CreatedNS, Seq: m.Seq, Subject: m.Subject, Header: m.Header, Data: m.Data,
			})
			i.bytes += len(m.Data)
			i.created = m.CreatedNS
		}
		notify(i.wake)
	}
	for ctx.Err() == nil {
		err := bus.Follow(ctx, i.conn, i.stream, i.filter, from, sink)
		if r := (*bus.Rewound)(nil); errors.As(err, &r) {
			slog.Warn("input stream rewound", "stream", i.stream, "error", err)
			from = i.rewind(life, r)
			continue
		}
		if ctx.Err() == nil { // the connection was closed under it
			slog.Debug("input stream ended", "stream", i.stream, "error", err)
			return
		}
	}
}

// rewind says where to go on in a stream that ends before what was read: at the start of a new one, behind the end of
// one that lost its tail. That is its end as the follower saw it: by now there may be more. What is buffered of the lost
// part is dropped.
func (i *inbox) rewind(life int, r *bus.Rewound) uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	next := r.Last + 1
	if i.created != 0 && i.created != r.CreatedNS {
		next = 1
	}
	i.created = r.CreatedNS
	if i.life == life {
		i.buf, i.bytes = nil, 0
	}
	return next
}

func (i *inbox) Stream(ctx context.Context) (string, int64, error) {
	ctx, cancel := i.conn.UntilDrop(ctx)
	defer cancel()
	s, err := i.conn.JS().Stream(ctx, i.stream)
	if err != nil {
		return "", 0, mapError(ctx, "read "+i.stream, err)
	}
	return i.stream, s.CachedInfo().Created.UnixNano(), nil
}

func (i *inbox) Trim(ctx context.Context, seq uint64) error {
	if seq == 0 {
		return nil
	}
	ctx, cancel := i.conn.UntilDrop(ctx)
	defer cancel()
	s, err := i.conn.JS().Stream(ctx, i.stream)
	if err != nil {
		return mapError(ctx, "trim "+i.stream, err)
	}
	return mapError(ctx, "trim "+i.stream, s.Purge(ctx, jetstream.WithPurgeSequence(seq+1)))
}

func (i *inbox) Wake() <-chan struct{} { return i.wake }

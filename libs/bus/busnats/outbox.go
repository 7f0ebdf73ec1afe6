package busnats

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
)

// NewOutbox writes a stream.
func NewOutbox(conn *bus.Conn, stream string) bus.Outbox {
	return &outbox{conn: conn, name: stream}
}

type outbox struct {
	conn *bus.Conn
	name string
}

func (o *outbox) publish(ctx context.Context, m bus.Message, opts ...jetstream.PublishOpt) (uint64, error) {
	ctx, cancel := o.conn.UntilDrop(ctx)
	defer cancel()
	msg, err := toNATS(m)
	if err != nil {
		return 0, err
	}
	ack, err := o.conn.JS().PublishMsg(ctx, msg, append(opts, jetstream.WithExpectStream(o.name))...)
	if err != nil {
		return 0, mapError(ctx, "write "+o.name, err)
	}
	return ack.Sequence, nil
}

func (o *outbox) Publish(ctx context.Context, m bus.Message) (uint64, error) {
	return o.publish(ctx, m)
}

func (o *outbox) Append(ctx context.Context, expected uint64, m bus.Message) (uint64, error) {
	seq, err := o.publish(ctx, m, jetstream.WithExpectLastSequence(expected))
	if err == nil && seq != expected+1 {
		err = fmt.Errorf("write %s: %w: stored at %d, expected %d", o.name, bus.ErrPosition, seq, expected+1)
	}
	if !errors.Is(err, bus.ErrPosition) && !errors.Is(err, bus.ErrUnavailable) {
		return seq, err
	}
	// Stored all the same? An earlier acknowledgement may have been lost.
	if at, found := o.at(ctx, expected+1); found {
		if same(at, m) {
			return expected + 1, nil
		}
		return 0, fmt.Errorf("write %s: %w: another message stands at %d", o.name, bus.ErrPosition, expected+1)
	}
	return 0, err
}

func (o *outbox) at(ctx context.Context, seq uint64) (bus.Message, bool) {
	ctx, cancel := o.conn.UntilDrop(ctx)
	defer cancel()
	if ctx.Err() != nil {
		return bus.Message{}, false
	}
	s, err := o.conn.JS().Stream(ctx, o.name)
	if err != nil {
		return bus.Message{}, false
	}
	raw, err := s.GetMsg(ctx, seq)
	if err != nil {
		return bus.Message{}, false
	}
	return fromRaw(raw), true
}

func fromRaw(r *jetstream.RawStreamMsg) bus.Message {
	return bus.Message{Subject: r.Subject, Header: fromHeader(r.Header), Data: r.Data}
}

func (o *outbox) Last(ctx context.Context) (bus.Message, uint64, bool, error) {
	ctx, cancel := o.conn.UntilDrop(ctx)
	defer cancel()
	for try := 0; ; try++ {
		s, err := o.conn.JS().Stream(ctx, o.name)
		if err != nil {
			return bus.Message{}, 0, false, mapError(ctx, "read "+o.name, err)
		}
		st := s.CachedInfo().State
		if st.Msgs == 0 {
			return bus.Message{}, st.LastSeq, false, nil
		}
		raw, err := s.GetMsg(ctx, st.LastSeq)
		if errors.Is(err, jetstream.ErrMsgNotFound) && try < 3 { // expired or purged between the two questions
			continue
		}
		if err != nil {
			return bus.Message{}, 0, false, mapError(ctx, "read "+o.name, err)
		}
		return fromRaw(raw), raw.Sequence, true, nil
	}
}

func (o *outbox) Put(ctx context.Context, expected uint64, m bus.Message) (uint64, error) {
	seq, err := o.publish(ctx, m, jetstream.WithExpectLastSequencePerSubject(expected))
	if !errors.Is(err, bus.ErrPosition) && !errors.Is(err, bus.ErrUnavailable) {
		return seq, err
	}
	if ctx.Err() != nil {
		return 0, err
	}
	cur, at, found, rerr := o.Get(ctx, m.Subject)
	if rerr == nil && found && at > expected {
		if same(cur, m) {
			return at, nil
		}
		return 0, fmt.Errorf("write %s: %w: %s was written at %d", o.name, bus.ErrPosition, m.Subject, at)
	}
	return 0, err
}

func (o *outbox) Get(ctx context.Context, subject string) (bus.Message, uint64, bool, error) {
	ctx, cancel := o.conn.UntilDrop(ctx)
	defer cancel()
	s, err := o.conn.JS().Stream(ctx, o.name)
	if err != nil {
		return bus.Message{}, 0, false, mapError(ctx, "read "+o.name, err)
	}
	raw, err := s.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return bus.Message{}, 0, false, nil
	}
	if err != nil {
		return bus.Message{}, 0, false, mapError(ctx, "read "+o.name, err)
	}
	return fromRaw(raw), raw.Sequence, true, nil
}

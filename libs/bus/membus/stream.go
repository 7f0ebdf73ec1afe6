package membus

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/libs/bus"
)

type stored struct {
	seq uint64
	m   bus.Message
}

func (m stored) size() int64 { return int64(len(m.m.Subject) + len(m.m.Data)) }

type stream struct {
	name       string
	created    int64
	msgs       []stored // ascending, may have gaps
	last       uint64
	bytes      int64
	perSubject bool
	discardOld bool
	maxBytes   int64
	subjects   []string
	wakes      []chan struct{}
}

func (s *stream) wakeAll() {
	for _, w := range s.wakes {
		notify(w)
	}
}

func (s *stream) newest(subject string) (stored, bool) {
	for _, m := range slices.Backward(s.msgs) {
		if m.m.Subject == subject {
			return m, true
		}
	}
	return stored{}, false
}

func (s *stream) at(seq uint64) (stored, bool) {
	i, ok := slices.BinarySearchFunc(s.msgs, seq, func(m stored, q uint64) int {
		switch {
		case m.seq < q:
			return -1
		case m.seq > q:
			return 1
		}
		return 0
	})
	if !ok {
		return stored{}, false
	}
	return s.msgs[i], true
}

func (s *stream) add(m bus.Message) (uint64, error) {
	if s.subjects != nil && !slices.ContainsFunc(s.subjects, func(p string) bool { return bus.SubjectMatches(p, m.Subject) }) {
		return 0, fmt.Errorf("%w: no stream %s for subject %s", bus.ErrUnavailable, s.name, m.Subject)
	}
	for k := range m.Header {
		if err := bus.CheckHeader(k); err != nil {
			return 0, err
		}
	}
	n := stored{m: bus.Message{Subject: m.Subject, Header: maps.Clone(m.Header), Data: bytes.Clone(m.Data)}}
	var old uint64
	if s.perSubject {
		if o, ok := s.newest(m.Subject); ok {
			old = o.seq
		}
	}
	if s.maxBytes > 0 && old == 0 {
		for s.discardOld && len(s.msgs) > 0 && s.bytes+n.size() > s.maxBytes {
			s.drop(s.msgs[0].seq)
		}
		if s.bytes+n.size() > s.maxBytes {
			return 0, fmt.Errorf("%w: %s", bus.ErrFull, s.name)
		}
	}
	if old != 0 {
		s.drop(old)
	}
	s.last++
	n.seq = s.last
	s.msgs = append(s.msgs, n)
	s.bytes += n.size()
	s.wakeAll()
	return n.seq, nil
}

func (s *stream) drop(seq uint64) {
	s.msgs = slices.DeleteFunc(s.msgs, func(m stored) bool {
		if m.seq == seq {
			s.bytes -= m.size()
			return true
		}
		return false
	})
}

// Outbox writes a stream.
func (b *Bus) Outbox(stream string) bus.Outbox { return &outbox{b, stream} }

type outbox struct {
	b    *Bus
	name string
}

func (o *outbox) lock(ctx context.Context) (*stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	o.b.mu.Lock()
	if o.b.down {
		o.b.mu.Unlock()
		return nil, bus.ErrUnavailable
	}
	return o.b.stream(o.name), nil
}

func (o *outbox) Publish(ctx context.Context, m bus.Message) (uint64, error) {
	s, err := o.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer o.b.mu.Unlock()
	return s.add(m)
}

func (o *outbox) Append(ctx context.Context, expected uint64, m bus.Message) (uint64, error) {
	s, err := o.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer o.b.mu.Unlock()
	if s.last != expected {
		if at, ok := s.at(expected + 1); ok && same(at.m, m) {
			return at.seq, nil
		}
		return 0, fmt.Errorf("%w: %s is at %d, expected %d", bus.ErrPosition, s.name, s.last, expected)
	}
	return s.add(m)
}

func (o *outbox) Last(ctx context.Context) (bus.Message, uint64, bool, error) {
	s, err := o.lock(ctx)
	if err != nil {
		return bus.Message{}, 0, false, err
	}
	defer o.b.mu.Unlock()
	if n := len(s.msgs); n > 0 {
		return s.msgs[n-1].m, s.msgs[n-1].seq, true, nil
	}
	return bus.Message{}, s.last, false, nil
}

func (o *outbox) Put(ctx context.Context, expected uint64, m bus.Message) (uint64, error) {
	s, err := o.lock(ctx)
	if err != nil {
		return 0, err
	}
	defer o.b.mu.Unlock()
	cur, ok := s.newest(m.Subject)
	if cur.seq != expected {
		if ok && cur.seq > expected && same(cur.m, m) {
			return cur.seq, nil
		}
		return 0, fmt.Errorf("%w: %s was written at %d, expected %d", bus.ErrPosition, m.Subject, cur.seq, expected)
	}
	return s.add(m)
}

func (o *outbox) Get(ctx context.Context, subject string) (bus.Message, uint64, bool, error) {
	s, err := o.lock(ctx)
	if err != nil {
		return bus.Message{}, 0, false, err
	}
	defer o.b.mu.Unlock()
	m, ok := s.newest(subject)
	return m.m, m.seq, ok, nil
}

func same(a, b bus.Message) bool {
	return a.Subject == b.Subject && bytes.Equal(a.Data, b.Data) && maps.Equal(a.Header, b.Header)
}

// Inbox reads a stream, or the part of it that matches filter ("" = all).
func (b *Bus) Inbox(stream, filter string) bus.Inbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stream(stream)
	i := &inbox{b: b, s: s, filter: filter, created: s.created, wake: make(chan struct{}, 1)}
	s.wakes = append(s.wakes, i.wake)
	if len(s.msgs) > 0 {
		notify(i.wake)
	}
	return i
}

type inbox struct {
	b       *Bus
	s       *stream
	filter  string
	created int64
	pos     uint64 // last sequence passed
	wake    chan struct{}
}

func (i *inbox) Next(ctx context.Context, limit int) ([]bus.Input, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	i.b.mu.Lock()
	defer i.b.mu.Unlock()
	if i.b.down {
		return nil, bus.ErrUnavailable
	}
	if i.created != i.s.created { // made anew: what is in it now was never read
		i.created, i.pos = i.s.created, 0
	}
	var out []bus.Input
	for _, m := range i.s.msgs {
		if m.seq <= i.pos || i.filter != "" && !bus.SubjectMatches(i.filter, m.m.Subject) {
			continue
		}
		if len(out) == limit {
			notify(i.wake)
			break
		}
		out = append(out, bus.Input{
			Stream: i.s.name, CreatedNS: i.s.created, Seq: m.seq, Subject: m.m.Subject,
			Header: maps.Clone(m.m.Header), Data: bytes.Clone(m.m.Data),
		})
	}
	if len(out) > 0 {
		i.pos = out[len(out)-1].Seq
	}
	return out, nil
}

func (i *inbox) Seek(seq uint64) {
	i.b.mu.Lock()
	defer i.b.mu.Unlock()
	i.pos = seq
	notify(i.wake)
}

func (i *inbox) Stream(ctx context.Context) (string, int64, error) {
	i.b.mu.Lock()
	defer i.b.mu.Unlock()
	if i.b.down {
		return "", 0, bus.ErrUnavailable
	}
	return i.s.name, i.s.created, ctx.Err()
}

func (i *inbox) Trim(ctx context.Context, seq uint64) error {
	i.b.mu.Lock()
	defer i.b.mu.Unlock()
	if i.b.down {
		return bus.ErrUnavailable
	}
	for len(i.s.msgs) > 0 && i.s.msgs[0].seq <= seq {
		i.s.drop(i.s.msgs[0].seq)
	}
	return ctx.Err()
}

func (i *inbox) Wake() <-chan struct{} { return i.wake }

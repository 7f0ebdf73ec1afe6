package membus

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
)

// Caller calls and serves on this bus.
func (b *Bus) Caller() bus.Caller { return caller{b} }

type caller struct{ b *Bus }

// Call reaches one member of each queue, and every server without a queue; the first answer counts. Without any it
// ends at once, as NATS does.
func (c caller) Call(subject string, data []byte, timeout time.Duration) bus.Pending {
	b := c.b
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &pending{b: b, deadline: b.now().Add(timeout), timeout: timeout, done: make(chan struct{})}
	if b.down || b.deliver(bus.Message{Subject: subject, Data: data}, p) == 0 {
		p.finish(bus.Reply{Err: fmt.Errorf("%w: %s", bus.ErrNoAnswer, subject)})
	}
	return p
}

func (c caller) Send(m bus.Message) error {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if !c.b.down {
		c.b.deliver(m, nil)
	}
	return nil
}

func (c caller) Serve(subject, queue string) (bus.Server, error) {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	s := &server{b: c.b, subject: subject, queue: queue, wake: make(chan struct{}, 1)}
	c.b.servers = append(c.b.servers, s)
	return s, nil
}

// deliver hands m to its servers and says how many there were; b.mu is held.
func (b *Bus) deliver(m bus.Message, p *pending) int {
	groups := map[string][]*server{}
	var to []*server
	var queues []string
	for _, s := range b.servers {
		if !bus.SubjectMatches(s.subject, m.Subject) {
			continue
		}
		if s.queue == "" {
			to = append(to, s)
			continue
		}
		key := s.subject + " " + s.queue
		if groups[key] == nil {
			queues = append(queues, key)
		}
		groups[key] = append(groups[key], s)
	}
	for _, key := range queues {
		g := groups[key]
		to = append(to, g[b.robin[key]%len(g)])
		b.robin[key]++
	}
	for _, s := range to {
		r := bus.Request{
			Subject: m.Subject, Header: maps.Clone(m.Header), Data: bytes.Clone(m.Data),
			Respond: func([]byte, *bus.Refusal) {},
		}
		if p != nil {
			r.Respond = func(data []byte, refusal *bus.Refusal) {
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.down || b.now().After(p.deadline) {
					return
				}
				if refusal != nil {
					p.finish(bus.Reply{Err: &bus.Refusal{Code: refusal.Code, Message: refusal.Message}})
					return
				}
				p.finish(bus.Reply{Data: bytes.Clone(data)})
			}
		}
		s.waiting = append(s.waiting, r)
		notify(s.wake)
	}
	return len(to)
}

type pending struct {
	b        *Bus
	deadline time.Time
	timeout  time.Duration
	once     sync.Once
	reply    bus.Reply
	done     chan struct{}
}

func (p *pending) finish(r bus.Reply) {
	p.once.Do(func() {
		p.reply = r
		close(p.done)
	})
}

func (p *pending) Poll() (bus.Reply, bool) {
	select {
	case <-p.done:
		return p.reply, true
	default:
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.b.now().Before(p.deadline) {
		return bus.Reply{}, false
	}
	p.finish(bus.Reply{Err: fmt.Errorf("%w in %v", bus.ErrNoAnswer, p.timeout)})
	return p.reply, true
}

// Wait blocks on the real clock: it is for tests that answer from another goroutine, not for stepped shells.
func (p *pending) Wait(ctx context.Context) bus.Reply {
	t := time.NewTimer(p.timeout)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.finish(bus.Reply{Err: fmt.Errorf("%w in %v", bus.ErrNoAnswer, p.timeout)})
	case <-ctx.Done():
		return bus.Reply{Err: ctx.Err()}
	}
	return p.reply
}

func (p *pending) Done() <-chan struct{} { return p.done }

type server struct {
	b              *Bus
	subject, queue string
	waiting        []bus.Request
	wake           chan struct{}
}

func (s *server) Next(limit int) []bus.Request {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	n := min(limit, len(s.waiting))
	out := slices.Clone(s.waiting[:n])
	s.waiting = slices.Delete(s.waiting, 0, n)
	if len(s.waiting) > 0 {
		notify(s.wake)
	}
	return out
}

func (s *server) Wake() <-chan struct{} { return s.wake }

func (s *server) Close() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.servers = slices.DeleteFunc(s.b.servers, func(o *server) bool { return o == s })
	s.waiting = nil
}

package busnats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weft-fabric/weft/libs/bus"
)

// Headers of a refusal.
const (
	headerCode    = "Weft-Refusal-Code"
	headerMessage = "Weft-Refusal-Message"
)

// serverBacklog bounds what waits in one server; more is lost, as in the network.
const serverBacklog = 16384

// NewCaller calls and serves in the connection's account.
func NewCaller(conn *bus.Conn) bus.Caller { return caller{conn, conn.NC()} }

type caller struct {
	conn *bus.Conn
	nc   *nats.Conn
}

func (c caller) Call(subject string, data []byte, timeout time.Duration) bus.Pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		ctx, undrop := c.conn.UntilDrop(context.Background())
		defer undrop()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		m, err := c.nc.RequestWithContext(ctx, subject, data)
		p.reply = reply(subject, m, err)
	}()
	return p
}

func reply(subject string, m *nats.Msg, err error) bus.Reply {
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return bus.Reply{Err: fmt.Errorf("%w: %s", bus.ErrNoAnswer, subject)}
	case err != nil:
		return bus.Reply{Err: fmt.Errorf("%w: call %s: %w", bus.ErrUnavailable, subject, err)}
	}
	if code := m.Header.Get(headerCode); code != "" {
		return bus.Reply{Err: &bus.Refusal{Code: code, Message: m.Header.Get(headerMessage)}}
	}
	return bus.Reply{Data: m.Data}
}

func (c caller) Send(m bus.Message) error {
	msg, err := toNATS(m)
	if err != nil {
		return err
	}
	if err := c.nc.PublishMsg(msg); err != nil {
		return fmt.Errorf("%w: send %s: %w", bus.ErrUnavailable, m.Subject, err)
	}
	return nil
}

func (c caller) Serve(subject, queue string) (bus.Server, error) {
	s := &server{wake: make(chan struct{}, 1)}
	sub, err := c.nc.QueueSubscribe(subject, queue, s.take)
	if err != nil {
		return nil, fmt.Errorf("bus: serve %s: %w", subject, err)
	}
	s.sub = sub
	// Whoever is told that the service runs may call at once.
	if err := c.nc.FlushTimeout(5 * time.Second); err != nil {
		_ = sub.Unsubscribe()
		return nil, fmt.Errorf("%w: serve %s: %w", bus.ErrUnavailable, subject, err)
	}
	return s, nil
}

type pending struct {
	reply bus.Reply
	done  chan struct{}
}

func (p *pending) Poll() (bus.Reply, bool) {
	select {
	case <-p.done:
		return p.reply, true
	default:
		return bus.Reply{}, false
	}
}

func (p *pending) Wait(ctx context.Context) bus.Reply {
	select {
	case <-p.done:
		return p.reply
	case <-ctx.Done():
		return bus.Reply{Err: ctx.Err()}
	}
}

func (p *pending) Done() <-chan struct{} { return p.done }

type server struct {
	sub  *nats.Subscription
	wake chan struct{}

	mu      sync.Mutex
	closed  bool
	waiting []bus.Request
}

func (s *server) take(m *nats.Msg) {
	r := bus.Request{Subject: m.Subject, Header: fromHeader(m.Header), Data: m.Data, Respond: func([]byte, *bus.Refusal) {}}
	if m.Reply != "" {
		if !bus.ReplyAllowed(m.Subject, m.Reply) {
			return // an answer would be a forgery in its sender's hands
		}
		var once sync.Once
		r.Respond = func(data []byte, refusal *bus.Refusal) { once.Do(func() { respond(m, data, refusal) }) }
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.waiting) >= serverBacklog {
		return
	}
	s.waiting = append(s.waiting, r)
	notify(s.wake)
}

// respond may fail like any message may be lost: the caller times out.
func respond(m *nats.Msg, data []byte, refusal *bus.Refusal) {
	out := &nats.Msg{Data: data}
	if refusal != nil {
		out.Header = nats.Header{headerCode: {refusal.Code}, headerMessage: {refusal.Message}}
		out.Data = nil
	}
	_ = m.RespondMsg(out)
}

func (s *server) Next(limit int) []bus.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	s.mu.Lock()
	s.closed, s.waiting = true, nil
	s.mu.Unlock()
	_ = s.sub.Unsubscribe()
}

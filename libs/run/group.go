package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Readier is a Service that others wait for: the next one of a group starts when Ready is closed.
type Readier interface {
	Ready() <-chan struct{}
}

// Func makes a Service of a function.
func Func(name string, f func(ctx context.Context) error) Service { return fn{name, f} }

type fn struct {
	name string
	f    func(ctx context.Context) error
}

func (f fn) Name() string                  { return f.name }
func (f fn) Run(ctx context.Context) error { return f.f(ctx) }

// Group runs services as one: started in order, stopped in reverse, each stopped only when those after it have returned.
// If one returns by itself, the group stops and fails with its error.
type Group struct {
	name     string
	services []Service
}

// NewGroup names a group.
func NewGroup(name string, services ...Service) *Group { return &Group{name, services} }

// Name of the group.
func (g *Group) Name() string { return g.name }

// member is one service at work.
type member struct {
	service Service
	stop    context.CancelFunc
	done    chan struct{}
	err     error
}

// Run implements Service.
func (g *Group) Run(ctx context.Context) error {
	var (
		members []*member
		once    sync.Once
		ended   = make(chan struct{}) // closed when a member returned that nobody had stopped
	)
	for _, s := range g.services {
		// Not a child of ctx: the end of ctx must reach the members one by one.
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		m := &member{service: s, stop: stop, done: make(chan struct{})}
		members = append(members, m)
		go func() {
			defer close(m.done)
			m.err = s.Run(own)
			if own.Err() == nil {
				if m.err == nil {
					m.err = errors.New("ended by itself")
				}
				once.Do(func() { close(ended) })
			}
		}()
		if r, ok := s.(Readier); ok {
			select {
			case <-r.Ready():
			case <-ended:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil || closed(ended) {
			break
		}
	}
	select {
	case <-ctx.Done():
	case <-ended:
	}
	var errs []error
	for _, m := range slices.Backward(members) {
		start := time.Now()
		m.stop()
		<-m.done
		if m.err != nil && !errors.Is(m.err, context.Canceled) {
			errs = append(errs, fmt.Errorf("%s: %w", m.service.Name(), m.err))
		}
		slog.Debug("service stopped", "service", m.service.Name(), "took", time.Since(start), "error", m.err)
	}
	slices.Reverse(errs)
	return errors.Join(errs...)
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

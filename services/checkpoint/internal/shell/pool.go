package shell

import (
	"context"
	"sync"
)

// Pool does what takes long beside the steps of a shell. work runs somewhere else and must not touch the shell; what it
// returns (nil = nothing) is called by Drain, on the shell's own goroutine.
type Pool interface {
	Go(work func(ctx context.Context) (then func()))
	// Drain calls what finished work left, and says whether there was any.
	Drain() bool
	Wake() <-chan struct{}
}

// Workers is a Pool of goroutines, which live as long as Run.
type Workers struct {
	mu     sync.Mutex
	queue  []func(context.Context) func()
	done   []func()
	queued chan struct{} // capacity one: there may be work
	wake   chan struct{}
}

// NewWorkers makes a pool; nothing is done before Run.
func NewWorkers() *Workers {
	return &Workers{queued: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
}

// Go implements Pool.
func (w *Workers) Go(work func(context.Context) func()) {
	w.mu.Lock()
	w.queue = append(w.queue, work)
	w.mu.Unlock()
	notify(w.queued)
}

// Drain implements Pool.
func (w *Workers) Drain() bool {
	w.mu.Lock()
	done := w.done
	w.done = nil
	w.mu.Unlock()
	for _, f := range done {
		f()
	}
	return len(done) > 0
}

// Wake implements Pool.
func (w *Workers) Wake() <-chan struct{} { return w.wake }

// Run works with n goroutines until ctx ends.
func (w *Workers) Run(ctx context.Context, n int) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { w.work(ctx) })
	}
	wg.Wait()
}

func (w *Workers) work(ctx context.Context) {
	for {
		f, more := w.take()
		if f == nil {
			select {
			case <-w.queued:
				continue
			case <-ctx.Done():
				return
			}
		}
		if more {
			notify(w.queued) // for the next goroutine
		}
		if ctx.Err() != nil {
			return
		}
		if then := f(ctx); then != nil {
			w.mu.Lock()
			w.done = append(w.done, then)
			w.mu.Unlock()
			notify(w.wake)
		}
	}
}

func (w *Workers) take() (f func(context.Context) func(), more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil, false
	}
	f, w.queue = w.queue[0], w.queue[1:]
	return f, len(w.queue) > 0
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

package shell

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewWorkers()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		release := make(chan struct{})
		var running, most atomic.Int32
		sum := 0 // only the one who drains touches it
		for range 20 {
			w.Go(func(context.Context) func() {
				now := running.Add(1)
				for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
				}
				<-release
				running.Add(-1)
				return func() { sum++ }
			})
		}
		w.Go(func(context.Context) func() { return nil })
		if w.Drain() {
			t.Error("something was done before Run")
		}
		go func() {
			defer close(ended)
			w.Run(ctx, 3)
		}()
		synctest.Wait()
		if running.Load() != 3 {
			t.Errorf("%d run at once, want 3", running.Load())
		}
		release <- struct{}{}
		synctest.Wait()
		select {
		case <-w.Wake():
		default:
			t.Error("no wake after work was done")
		}
		if !w.Drain() || sum != 1 || w.Drain() {
			t.Errorf("drained %d", sum)
		}
		close(release)
		synctest.Wait()
		w.Drain()
		if sum != 20 || most.Load() != 3 {
			t.Errorf("%d done, at most %d at once", sum, most.Load())
		}
		w.Go(func(context.Context) func() { return func() { sum++ } }) // to workers that are all idle
		synctest.Wait()
		w.Drain()
		if sum != 21 {
			t.Errorf("%d done", sum)
		}
		cancel()
		<-ended
		w.Go(func(context.Context) func() { return func() { sum++ } })
		synctest.Wait()
		if w.Drain() {
			t.Error("work was done after the end")
		}
	})
}

// TestWorkersUnderLoad: nothing is lost while many hand in and one drains.
func TestWorkersUnderLoad(t *testing.T) {
	w := NewWorkers()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.Run(ctx, 4) })
	const n, each = 8, 200
	for range n {
		wg.Go(func() {
			for range each {
				w.Go(func(context.Context) func() { return func() {} })
			}
		})
	}
	done := 0
	count := func() { done++ }
	for range n * each {
		w.Go(func(context.Context) func() { return count })
	}
	for done < n*each {
		<-w.Wake()
		w.Drain()
	}
	cancel()
	wg.Wait()
}

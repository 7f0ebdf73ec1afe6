package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"
)

// Clock tells the time; nil means time.Now. Waiting always uses the real one.
type Clock func() time.Time

// Backoff of a shell whose steps fail; jitter keeps shells from failing in step.
const (
	backoffMin = 20 * time.Millisecond
	backoffMax = 5 * time.Second
)

// Loop steps each shell in its own goroutine until ctx ends, and then waits for the steps under way. A shell is stepped
// again at once while it did something, then at its next deadline or wake; after an error it backs off, doubling from
// 20 ms to 5 s. A panic in a step is not caught: half-changed state must not go on.
func Loop(ctx context.Context, clock Clock, shells ...Shell) error {
	if clock == nil {
		clock = time.Now
	}
	var wg sync.WaitGroup
	for _, s := range shells {
		wg.Go(func() { loop(ctx, clock, s) })
	}
	wg.Wait()
	return nil
}

func loop(ctx context.Context, clock Clock, s Shell) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	backoff, failed := backoffMin, 0
	for ctx.Err() == nil {
		did, next, err := s.Step(ctx, clock())
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			failed++
			// At a shutdown, what a shell reads from may end before the shell does; that is no news.
			ended := errors.Is(err, context.Canceled)
			if (failed == 1 && !ended) || backoff == backoffMax {
				slog.Warn("step failed, trying again", "shell", name(s), "error", err, "failures", failed)
			} else {
				slog.Debug("step failed, trying again", "shell", name(s), "error", err, "failures", failed)
			}
			timer.Reset(backoff/2 + rand.N(backoff/2))
			backoff = min(2*backoff, backoffMax)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			continue
		}
		if failed > 1 {
			slog.Info("steps succeed again", "shell", name(s), "failures", failed)
		}
		backoff, failed = backoffMin, 0
		if did {
			continue
		}
		var deadline <-chan time.Time
		if !next.IsZero() {
			timer.Reset(max(next.Sub(clock()), 0))
			deadline = timer.C
		}
		wait(ctx, deadline, s.Wakes())
	}
}

// name tells people which shell it is.
func name(s Shell) string {
	if n, ok := s.(interface{ Name() string }); ok {
		return n.Name()
	}
	return fmt.Sprintf("%T", s)
}

// wait returns when one of the channels is ready. Few channels are the rule, and waiting is on the path of every
// message, so they do without reflection.
func wait(ctx context.Context, deadline <-chan time.Time, wakes []<-chan struct{}) {
	var w [6]<-chan struct{}
	if copy(w[:], wakes) == len(wakes) {
		select {
		case <-ctx.Done():
		case <-deadline:
		case <-w[0]:
		case <-w[1]:
		case <-w[2]:
		case <-w[3]:
		case <-w[4]:
		case <-w[5]:
		}
		return
	}
	cases := make([]reflect.SelectCase, 0, len(wakes)+2)
	recv := func(ch any) {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ch)})
	}
	recv(ctx.Done())
	recv(deadline)
	for _, ch := range wakes {
		recv(ch)
	}
	reflect.Select(cases)
}

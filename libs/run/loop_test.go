package run

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// script is a shell that does what its test says, and writes down when it was stepped.
type script struct {
	start time.Time
	steps []time.Duration
	step  func(n int, now time.Time) (bool, time.Time, error)
	wakes []<-chan struct{}
}

func (s *script) Step(_ context.Context, now time.Time) (bool, time.Time, error) {
	s.steps = append(s.steps, now.Sub(s.start))
	return s.step(len(s.steps), now)
}

func (s *script) Wakes() []<-chan struct{} { return s.wakes }

// during runs the shell for a while of virtual time; do acts meanwhile.
func (s *script) during(d time.Duration, do func()) {
	s.start = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Loop(ctx, nil, s)
	}()
	if do != nil {
		do()
	}
	time.Sleep(d)
	cancel()
	<-done
}

func TestStepsAgainWhileItDoesSomethingThenAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{step: func(n int, now time.Time) (bool, time.Time, error) {
			return n <= 3, now.Add(10 * time.Second), nil
		}}
		s.during(25*time.Second, nil)
		want := []time.Duration{0, 0, 0, 0, 10 * time.Second, 20 * time.Second}
		if len(s.steps) != len(want) {
			t.Fatalf("steps at %v, want %v", s.steps, want)
		}
		for i := range want {
			if s.steps[i] != want[i] {
				t.Fatalf("steps at %v, want %v", s.steps, want)
			}
		}
	})
}

func TestAnyWakeStepsAtOnce(t *testing.T) {
	for _, n := range []int{1, 6, 9} {
		synctest.Test(t, func(t *testing.T) {
			s := &script{step: func(int, time.Time) (bool, time.Time, error) { return false, time.Time{}, nil }}
			var last chan struct{}
			for range n {
				last = make(chan struct{}, 1)
				s.wakes = append(s.wakes, last)
			}
			s.during(time.Second, func() {
				time.Sleep(3 * time.Second)
				last <- struct{}{}
			})
			if len(s.steps) != 2 || s.steps[1] != 3*time.Second {
				t.Fatalf("%d wakes: steps at %v", n, s.steps)
			}
		})
	}
}

func TestErrorsBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		awake := make(chan struct{})
		close(awake) // always ready: it must not defeat the backoff
		s := &script{wakes: []<-chan struct{}{awake}, step: func(n int, _ time.Time) (bool, time.Time, error) {
			if n <= 30 {
				return false, time.Time{}, errors.New("no")
			}
			return false, time.Time{}, nil
		}}
		s.during(30*time.Second, func() {})
		if n := len(s.steps); n < 10 || n > 20 {
			t.Fatalf("%d steps in 30 s of errors: %v", n, s.steps)
		}
		if s.steps[1] > backoffMin {
			t.Fatalf("first retry after %v", s.steps[1])
		}
	})
}

// part is a service that notes start and stop.
func part(name string, log *[]string, ready bool) Service {
	p := &noted{name: name, log: log, ready: make(chan struct{})}
	if !ready {
		return Func(name, p.Run)
	}
	return p
}

type noted struct {
	name  string
	log   *[]string
	ready chan struct{}
}

func (n *noted) Name() string           { return n.name }
func (n *noted) Ready() <-chan struct{} { return n.ready }
func (n *noted) Run(ctx context.Context) error {
	time.Sleep(time.Second) // takes a while to get ready
	*n.log = append(*n.log, "+"+n.name)
	close(n.ready)
	<-ctx.Done()
	time.Sleep(time.Second)
	*n.log = append(*n.log, "-"+n.name)
	return ctx.Err()
}

func TestGroupStartsInOrderAndStopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log []string
		g := NewGroup("g", part("a", &log, true), part("b", &log, true), part("c", &log, true))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := g.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if got := join(log); got != "+a +b +c -c -b -a" {
			t.Fatal(got)
		}
	})
}

func TestGroupFailsWithItsFirstMember(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{{errors.New("disk full"), "bad: disk full"}, {nil, "bad: ended by itself"}} {
		synctest.Test(t, func(t *testing.T) {
			var log []string
			bad := Func("bad", func(context.Context) error { time.Sleep(5 * time.Second); return c.err })
			err := NewGroup("g", part("a", &log, true), bad).Run(t.Context())
			if err == nil || err.Error() != c.want || join(log) != "+a -a" {
				t.Fatalf("%v, %s", err, join(log))
			}
		})
	}
}

func join(s []string) string {
	out := ""
	for i, v := range s {
		if i > 0 {
			out += " "
		}
		out += v
	}
	return out
}

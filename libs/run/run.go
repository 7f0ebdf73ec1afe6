// Package run owns the life of services: loops, clock, goroutines, start and stop. Shells own none of them: a shell is
// steppable, and the same shell is stepped here in real time and by tests in virtual time.
package run

import (
	"context"
	"time"
)

// Shell is one loop of a service, one step at a time.
type Shell interface {
	// Step does what is due at now, without waiting for events. did says whether anything was done (then it is called
	// again at once); next is when time alone makes another step useful (zero = never). An error is logged by the loop,
	// which backs off and steps again: a shell must be correct after any failed step.
	Step(ctx context.Context, now time.Time) (did bool, next time.Time, err error)
	// Wakes are the channels on which an event makes another step useful.
	Wakes() []<-chan struct{}
}

// Service is a group of shells and background work with one life.
type Service interface {
	// Name as in architecture.md, such as scheduler.
	Name() string
	// Run works until ctx ends, then releases what it holds and returns. Any other return is a failure.
	Run(ctx context.Context) error
}

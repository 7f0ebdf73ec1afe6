// Package plan decides who gets what and where: one pure function of the state of the cell, the time and a policy, used
// unchanged by the service, by explain and by what-if. It proposes; the scheduler checks each step against its newest
// state and commits. It never does I/O and never asks the clock.
package plan

// Policy bounds and tunes planning.
type Policy struct {
	// Tries is how many gangs one plan tries to place at most; what is left is reported as such, never as impossible.
	Tries int
}

// DefaultPolicy is what a cell plans by unless told otherwise.
func DefaultPolicy() Policy { return Policy{Tries: 2000} }

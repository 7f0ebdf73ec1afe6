// Package cell is the domain: jobs, attempts, nodes, queues, and the one fold that turns facts into their state.
//
// It owns State and Evolve, the table of phases, feasibility (may this placement be?), and the field encoder that is
// both state hash and snapshot format. It never decides what should happen next (that is scheduler/lifecycle and
// allocator/plan), and never does I/O or asks the clock.
package cell

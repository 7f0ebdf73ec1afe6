package cell

import "slices"

// Phase is where a job is in its life.
type Phase string

// The phases of a job; allowed moves are in Moves.
const (
	Queued    Phase = "queued"    // waits for a place
	Starting  Phase = "starting"  // placed; not every rank runs yet
	Running   Phase = "running"   // every rank of the attempt started
	Stopping  Phase = "stopping"  // the attempt is being ended; its devices are still held
	Backoff   Phase = "backoff"   // waits out a delay before it is queued again
	Succeeded Phase = "succeeded" // every rank exited 0
	Failed    Phase = "failed"    // out of restarts, or over its run-time limit
	Cancelled Phase = "cancelled" // ended by a person
)

// Phases in the order of a life, as listings and the diagram show them.
var Phases = []Phase{Queued, Starting, Running, Stopping, Backoff, Succeeded, Failed, Cancelled}

// Moves is the table of allowed transitions; the empty phase is a job not yet submitted. The diagram in
// docs/architecture.md is generated from it. A stopping job succeeds only if every rank had finished before the order to
// stop reached it: one that saves and exits 0 because it was asked to end has not finished its work.
var Moves = map[Phase][]Phase{
	"":        {Queued},
	Queued:    {Starting, Cancelled},
	Starting:  {Running, Stopping},
	Running:   {Stopping, Succeeded},
	Stopping:  {Queued, Backoff, Succeeded, Failed, Cancelled},
	Backoff:   {Queued, Cancelled},
	Succeeded: nil,
	Failed:    nil,
	Cancelled: nil,
}

// Ended says whether no further move is possible.
func (p Phase) Ended() bool { return p == Succeeded || p == Failed || p == Cancelled }

// Active says whether an attempt holds a place.
func (p Phase) Active() bool { return p == Starting || p == Running || p == Stopping }

// Allowed says whether a job may move from one phase to another.
func Allowed(from, to Phase) bool { return slices.Contains(Moves[from], to) }

// Package reconcile is the rule of the node agent: given what the scheduler wants of this node and what is there, what
// to do next. It is pure: time is an argument, effects are returned as data, and deciding twice does no harm.
//
// It owns which attempts start, stop, die and are forgotten, what is said about them, and the node's fence. It never
// knows how: processes, files and the bus belong to the shell.
package reconcile

import (
	"cmp"
	"slices"
)

// ID names this node's part of one attempt.
type ID struct {
	Job     string
	Attempt uint32
}

// Compare orders ids by job, then attempt.
func (a ID) Compare(b ID) int {
	return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Attempt, b.Attempt))
}

// Order places assignments in time: by the creation of their stream, then by ledger sequence.
type Order struct {
	CreatedNS int64
	LedgerSeq uint64
}

// Stale says that an assignment is older than the one already obeyed, and must be refused. The same one again is not:
// obeying it twice does no harm. A stream that was made anew begins anew.
func Stale(have, got Order) bool {
	if got.CreatedNS != have.CreatedNS {
		return got.CreatedNS < have.CreatedNS
	}
	return got.LedgerSeq < have.LedgerSeq
}

// Want is one attempt of the desired set.
type Want struct {
	ID
	Stop     bool
	KillAtNS int64 // with Stop: when SIGKILL follows
}

// Phase is how far an attempt has come on this node.
type Phase uint8

// The phases, in order; an attempt may skip some, and never goes back.
const (
	Preparing Phase = iota // its files are being fetched; no process exists
	Starting               // its shim exists; whether ranks run is not known yet
	Running                // every rank was started
	Ended                  // no rank runs; something that one left may
	Empty                  // no process is left
)

func (p Phase) String() string {
	return [...]string{"preparing", "starting", "running", "ended", "empty"}[p]
}

// Attempt is what is there of one attempt.
type Attempt struct {
	ID
	Phase   Phase
	GraceNS int64 // between SIGTERM and SIGKILL, where nobody says more
	// HangAfterNS is how long ranks that once told of progress may tell of none; 0 = for ever.
	HangAfterNS int64
	BeatNS      int64 // when one of them last did; 0 = never

	Started   bool // every rank ran at some time
	Bad       int  // ranks that failed so far
	Failed    bool // it could not be started
	Completed bool // every rank exited 0, unasked
	Flushed   bool // its last output and saves have been handed on, or were given up

	Stopping bool  // SIGTERM was sent
	KillAtNS int64 // with Stopping: when SIGKILL follows
	KilledNS int64 // when SIGKILL was last sent; 0 = never
	EndedNS  int64 // from Ended on: since when

	// What this agent has said about it. A new agent says everything again.
	Said Said
}

// Said is what was reported.
type Said struct {
	Started  bool
	Hung     bool
	Bad      int // ranks
	Failed   bool
	Released bool
}

// World is everything a decision rests on.
type World struct {
	NowNS int64
	// Known says that an assignment was ever read. Without one, nothing is started or forgotten and all runs on.
	Known bool
	Want  []Want
	Have  []Attempt
	// FenceNS is when, unless contact comes back, every rank must be dead; 0 = never.
	FenceNS int64
}

// Why says what made an attempt end.
type Why string

// The reasons.
const (
	Assigned   Why = "assigned"    // the scheduler wants it stopped
	Unassigned Why = "unassigned"  // the scheduler knows nothing of it any more
	Fence      Why = "fence"       // no contact: others may soon take its place
	Overdue    Why = "overdue"     // it had its grace
	LeftBehind Why = "left-behind" // its ranks ended and something they started runs on
)

// Action is one effect for the shell to perform.
type Action interface{ of() ID }

type (
	// Launch means to prepare and start it.
	Launch struct{ ID }
	// Abandon means to stop preparing it; no process exists.
	Abandon struct{ ID }
	// Stop means SIGTERM now, and SIGKILL at KillAtNS.
	Stop struct {
		ID
		KillAtNS int64
		Why      Why
	}
	// Kill means SIGKILL to everything of it.
	Kill struct {
		ID
		Why Why
	}
	// SayStarted reports that all its ranks run.
	SayStarted struct{ ID }
	// SayExited reports the ranks that failed, all of them so far.
	SayExited struct{ ID }
	// SayHung reports that its ranks have told of no progress for too long. What becomes of them is not the agent's to
	// decide.
	SayHung struct{ ID }
	// SayFailed reports that it could not be started.
	SayFailed struct{ ID }
	// SayReleased reports that nothing of it is left here.
	SayReleased struct {
		ID
		Completed bool
	}
	// Forget removes its files.
	Forget struct{ ID }
)

func (i ID) of() ID { return i }

// KillAgainNS is how long after a SIGKILL it is sent again to what is still there.
const KillAgainNS = 1_000_000_000

// LeftBehindNS is how long after the end of the ranks what they left is killed.
const LeftBehindNS = 50_000_000

// Decide returns what to do now, and when time alone makes another decision useful (0 = never). Per attempt, reports
// come in the order in which things became true.
func Decide(w World) (do []Action, next int64) {
	later := func(t int64) {
		if t > w.NowNS && (next == 0 || t < next) {
			next = t
		}
	}
	want := map[ID]Want{}
	for _, x := range w.Want {
		want[x.ID] = x
	}
	have := slices.SortedFunc(slices.Values(w.Have), func(a, b Attempt) int { return a.Compare(b.ID) })
	held := map[ID]bool{}
	fenced := w.FenceNS != 0 && w.NowNS >= w.FenceNS
	for _, a := range have {
		held[a.ID] = true
		x, wanted := want[a.ID]
		do = append(do, say(w, a, later)...)
		end := ending(w, a, x, wanted)
		switch {
		case a.Phase == Empty:
			// The scheduler may count it as holding devices until it hears of the release, wanted or not.
			if w.Known && !wanted && (a.Said.Released || a.Flushed) {
				do = append(do, Forget{a.ID})
			}
		case a.Phase == Preparing:
			// Nothing runs, so there is nothing to be graceful about: only the fence itself counts.
			if fenced || w.Known && (!wanted || x.Stop) {
				do = append(do, Abandon{a.ID})
			}
		case a.Phase == Ended:
			// Usually nothing is left, and the next look finds that.
			if at := a.EndedNS + LeftBehindNS; w.NowNS < at {
				later(at)
			} else {
				do = append(do, kill(w, a, LeftBehind, later)...)
			}
		case end.why == "":
		case end.killAt <= w.NowNS:
			do = append(do, kill(w, a, end.why, later)...)
		case !a.Stopping || end.killAt < a.KillAtNS:
			do = append(do, Stop{a.ID, end.killAt, end.why})
			later(end.killAt)
		default:
			later(end.killAt)
		}
		if a.Phase < Ended && w.FenceNS != 0 {
			if a.Phase > Preparing {
				later(w.FenceNS - a.GraceNS)
			}
			later(w.FenceNS)
		}
	}
	for _, x := range slices.SortedFunc(slices.Values(w.Want), func(a, b Want) int { return a.Compare(b.ID) }) {
		switch {
		case held[x.ID] || !w.Known:
		case x.Stop:
			// Stopped before it began: nothing is here, and the scheduler waits to hear that. The shell remembers having
			// said so as an attempt that is Empty.
			do = append(do, SayReleased{x.ID, false})
		case !fenced:
			do = append(do, Launch{x.ID})
		}
	}
	return do, next
}

type end struct {
	why    Why
	killAt int64
}

// ending says whether and by when an attempt must end: the earliest of what its reasons demand.
func ending(w World, a Attempt, x Want, wanted bool) end {
	e := end{}
	sooner := func(why Why, at int64) {
		if e.why == "" || at < e.killAt {
			e = end{why, at}
		}
	}
	switch {
	case !w.Known:
	case !wanted:
		sooner(Unassigned, w.NowNS)
	case x.Stop:
		sooner(Assigned, x.KillAtNS)
	}
	if w.FenceNS != 0 && w.NowNS >= w.FenceNS-a.GraceNS {
		sooner(Fence, w.FenceNS)
	}
	// Once asked to stop, by this agent or one before it, the deadline stands.
	if a.Stopping {
		sooner(Overdue, a.KillAtNS)
	}
	return e
}

func kill(w World, a Attempt, why Why, later func(int64)) []Action {
	if again := a.KilledNS + KillAgainNS; a.KilledNS != 0 && again > w.NowNS {
		later(again)
		return nil
	}
	later(w.NowNS + KillAgainNS)
	return []Action{Kill{a.ID, why}}
}

// say returns the reports that are due about one attempt. A release comes last, after its output and saves, so that
// whoever acts on it finds them.
func say(w World, a Attempt, later func(int64)) []Action {
	var do []Action
	if a.Started && !a.Said.Started {
		do = append(do, SayStarted{a.ID})
	}
	if a.Bad > a.Said.Bad {
		do = append(do, SayExited{a.ID})
	}
	if a.Phase == Running && !a.Stopping && !a.Said.Hung && a.HangAfterNS != 0 && a.BeatNS != 0 {
		if at := a.BeatNS + a.HangAfterNS; w.NowNS >= at {
			do = append(do, SayHung{a.ID})
		} else {
			later(at)
		}
	}
	if a.Failed && !a.Said.Failed {
		do = append(do, SayFailed{a.ID})
	}
	if a.Phase == Empty && a.Flushed && !a.Said.Released {
		do = append(do, SayReleased{a.ID, a.Completed})
	}
	return do
}

package reconcile

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// node is a machine of numbers on which decisions are performed: what Decide asks for happens, processes do what a
// test says.
type node struct {
	now   int64
	fence int64
	known bool
	order Order
	want  []Want
	have  map[ID]*Attempt
	grace int64

	launched map[ID]int // how often processes of it were started
}

func newNode() *node {
	return &node{now: int64(time.Second), have: map[ID]*Attempt{}, launched: map[ID]int{}, grace: int64(10 * time.Second)}
}

// assign obeys an assignment unless it is stale.
func (n *node) assign(o Order, want []Want) bool {
	if n.known && Stale(n.order, o) {
		return false
	}
	n.known, n.order, n.want = true, o, want
	return true
}

func (n *node) world() World {
	w := World{NowNS: n.now, Known: n.known, Want: n.want, FenceNS: n.fence}
	for _, a := range n.have {
		w.Have = append(w.Have, *a)
	}
	return w
}

// settle decides and performs until nothing is left to do.
func (n *node) settle() (did []Action, next int64) {
	for range 20 {
		do, at := Decide(n.world())
		if len(do) == 0 {
			return did, at
		}
		for _, a := range do {
			n.perform(a)
		}
		did = append(did, do...)
	}
	panic(fmt.Sprintf("never settles: %v", did))
}

func (n *node) perform(a Action) {
	id := a.of()
	h := n.have[id]
	switch a := a.(type) {
	case Launch:
		n.have[id] = &Attempt{ID: id, Phase: Preparing, GraceNS: n.grace}
	case Abandon, Forget:
		delete(n.have, id)
	case Stop:
		h.Stopping, h.KillAtNS = true, a.KillAtNS
	case Kill:
		h.KilledNS = n.now
	case SayStarted:
		h.Said.Started = true
	case SayExited:
		h.Said.Bad = h.Bad
	case SayHung:
		h.Said.Hung = true
	case SayFailed:
		h.Said.Failed = true
	case SayReleased:
		if h == nil {
			h = &Attempt{ID: id, Phase: Empty, Flushed: true}
			n.have[id] = h
		}
		h.Said.Released = true
	}
}

// restart loses what an agent knows only in memory.
func (n *node) restart() {
	for id, a := range n.have {
		a.Said, a.KilledNS = Said{}, 0
		if a.BeatNS != 0 {
			a.BeatNS = n.now // it counts from its first look
		}
		// A run that was being prepared, or never existed, has no files that a new agent would keep.
		if a.Phase == Preparing || a.Phase == Empty && n.launched[id] == 0 && !a.Failed {
			delete(n.have, id)
		}
	}
}

func describe(as []Action) string {
	var b strings.Builder
	for _, a := range as {
		id := a.of()
		fmt.Fprintf(&b, "%s/%d ", id.Job, id.Attempt)
		switch a := a.(type) {
		case Launch:
			b.WriteString("launch")
		case Abandon:
			b.WriteString("abandon")
		case Stop:
			fmt.Fprintf(&b, "stop, kill at %v (%s)", time.Duration(a.KillAtNS), a.Why)
		case Kill:
			fmt.Fprintf(&b, "kill (%s)", a.Why)
		case SayStarted:
			b.WriteString("say started")
		case SayExited:
			b.WriteString("say exited")
		case SayHung:
			b.WriteString("say hung")
		case SayFailed:
			b.WriteString("say failed")
		case SayReleased:
			b.WriteString("say released")
			if a.Completed {
				b.WriteString(", completed")
			}
		case Forget:
			b.WriteString("forget")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (n *node) describe() string {
	var b strings.Builder
	ids := make([]ID, 0, len(n.have))
	for id := range n.have {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, ID.Compare)
	for _, id := range ids {
		fmt.Fprintf(&b, "%s/%d is %v\n", id.Job, id.Attempt, n.have[id].Phase)
	}
	return b.String()
}

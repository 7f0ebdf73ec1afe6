package window

// account numbers a node's batches within one life of its agent (an epoch) and finds the holes.
type account struct {
	epoch    string
	previous string // the epoch before: what is late of it is data, but no longer counted
	next     uint64 // number after the newest one seen; 0 = none seen yet
	gaps     []gap  // not there and not yet overdue, in order
	overdue  []gap  // counted as lost; kept to know a straggler from a duplicate

	received, lost, duplicates, late uint64
}

type gap struct {
	from, to uint64 // numbers, both missing
	since    int64  // when it was noticed
}

// maxGaps bounds the memory of holes; older ones are settled at once, or forgotten.
const maxGaps = 256

// count accounts for one batch: Kept = it is the newest, Late = it fills a hole, Duplicate = seen before.
func (a *account) count(epoch string, seq uint64, now int64) Outcome {
	switch {
	case a.next == 0:
		// The first batch ever seen: what came before it was not for us to see.
		a.epoch, a.next = epoch, seq+1
		a.received++
		return Kept
	case epoch == a.epoch:
	case epoch == a.previous:
		a.received++
		a.late++
		return Late
	default:
		// A new life of the agent. What the old one still owed will not come any more; the new one counts from 1.
		a.settle(now)
		a.previous, a.epoch, a.next, a.overdue = a.epoch, epoch, 1, nil
	}
	if seq >= a.next {
		if seq > a.next {
			a.gaps = append(a.gaps, gap{a.next, seq - 1, now})
			if len(a.gaps) > maxGaps {
				a.settleFirst()
			}
		}
		a.next = seq + 1
		a.received++
		return Kept
	}
	var found bool
	if a.gaps, found = fill(a.gaps, seq); !found {
		if a.overdue, found = fill(a.overdue, seq); !found {
			a.duplicates++
			return Duplicate
		}
		// It was counted as lost. A counter does not go back: it stays lost in time, though its data is kept.
	}
	a.received++
	a.late++
	return Late
}

// fill takes one number out of a list of holes.
func fill(gaps []gap, seq uint64) ([]gap, bool) {
	for i, g := range gaps {
		if seq < g.from || seq > g.to {
			continue
		}
		var rest []gap
		if g.from < seq {
			rest = append(rest, gap{g.from, seq - 1, g.since})
		}
		if seq < g.to {
			rest = append(rest, gap{seq + 1, g.to, g.since})
		}
		return append(append(append([]gap(nil), gaps[:i]...), rest...), gaps[i+1:]...), true
	}
	return gaps, false
}

// settle counts holes noticed at or before the given time as lost.
func (a *account) settle(before int64) {
	for len(a.gaps) > 0 && a.gaps[0].since <= before {
		a.settleFirst()
	}
}

func (a *account) settleFirst() {
	g := a.gaps[0]
	a.gaps = a.gaps[1:]
	a.lost += g.to - g.from + 1
	a.overdue = append(a.overdue, g)
	if len(a.overdue) > maxGaps {
		a.overdue = a.overdue[1:]
	}
}

package window

import "sort"

// Holder is who held a device.
type Holder struct {
	Job     string // id
	Name    string
	Queue   string
	Tenant  string
	Attempt uint32
	Milli   int64 // thousandths of the device; 1000 = all of it
}

// Place is one device of the fabric.
type Place struct {
	Node   string
	Device int32
}

// Holders remembers who held which device when, by ledger time, so that a late sample is charged to whoever held the
// device at the sample's own time.
type Holders struct {
	spans map[Place][]span
}

type span struct {
	holder Holder
	from   int64
	to     int64 // 0 = still
}

// NewHolders remembers nobody.
func NewHolders() *Holders { return &Holders{spans: map[Place][]span{}} }

// Held is one device held by somebody since a time.
type Held struct {
	Place Place
	Who   Holder
	Since int64
}

// Sync makes the given list the present, as of a time: who is not in it any more has let go by then. Saying the same
// again changes nothing.
func (h *Holders) Sync(held []Held, at int64) {
	type claim struct {
		place Place
		who   Holder
	}
	now := make(map[claim]bool, len(held))
	for _, x := range held {
		now[claim{x.Place, x.Who}] = true
	}
	for p, list := range h.spans {
		for i := range list {
			if list[i].to == 0 && !now[claim{p, list[i].holder}] {
				list[i].to = max(at, list[i].from+1)
			}
		}
	}
	for _, x := range held {
		h.take(x)
	}
}

func (h *Holders) take(x Held) {
	list := h.spans[x.Place]
	for i := range list {
		s := &list[i]
		if s.to == 0 && s.holder == x.Who {
			return
		}
		// A whole device has one holder: the one before let go no later than this one began, whenever that was noticed.
		if x.Who.Milli >= 1000 && s.to > x.Since && s.from < x.Since {
			s.to = x.Since
		}
	}
	h.spans[x.Place] = append(list, span{holder: x.Who, from: x.Since})
}

// At returns who held a device at a time, by job.
func (h *Holders) At(p Place, at int64) []Holder {
	var out []Holder
	for _, s := range h.spans[p] {
		if s.from <= at && (s.to == 0 || at < s.to) {
			out = append(out, s.holder)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Job < out[j].Job })
	return out
}

// Prune forgets what ended before a time.
func (h *Holders) Prune(before int64) {
	for p, list := range h.spans {
		kept := list[:0]
		for _, s := range list {
			if s.to == 0 || s.to > before {
				kept = append(kept, s)
			}
		}
		if len(kept) == 0 {
			delete(h.spans, p)
		} else {
			h.spans[p] = kept
		}
	}
}

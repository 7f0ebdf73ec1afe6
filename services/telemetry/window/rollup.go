package window

// Second is one second of a series.
type Second struct {
	At             int64 // start of the second
	Min, Max, Mean float64
	Samples        int
}

// ring holds one slot for each second of a span; a slot belongs to the second that its stamp says.
type ring struct{ slots []slot }

type slot struct {
	second   int64
	n        int32
	min, max float32 // of what is shown as a graph: 24 bits are plenty
	sum      float64
}

const second = int64(1e9)

func newRing(span int64) *ring {
	// One slot more than the span: its first and last second may both be cut.
	return &ring{slots: make([]slot, span/second+1)}
}

func (r *ring) add(at int64, v float64) {
	s := at / second
	x := &r.slots[s%int64(len(r.slots))]
	f := float32(v)
	switch {
	case x.n == 0 || x.second < s:
		*x = slot{second: s, n: 1, min: f, max: f, sum: v}
	case x.second == s:
		x.n, x.min, x.max, x.sum = x.n+1, min(x.min, f), max(x.max, f), x.sum+v
	}
	// A slot with a later second: this sample is older than the span.
}

func (r *ring) between(from, to int64) []Second {
	var out []Second
	n := int64(len(r.slots))
	first, last := (from+second-1)/second, (to-1)/second
	newest := int64(0)
	for i := range r.slots {
		newest = max(newest, r.slots[i].second)
	}
	last = min(last, newest)
	first = max(first, newest-n+1, 0)
	for s := first; s <= last; s++ {
		if x := r.slots[s%n]; x.n > 0 && x.second == s {
			out = append(out, Second{At: s * second, Min: float64(x.min), Max: float64(x.max), Mean: x.sum / float64(x.n), Samples: int(x.n)})
		}
	}
	return out
}

// Package bench measures the fabric from outside and prints one JSON line a figure, each beside an anchor that was
// measured in the same run on the same machine. It never judges by an absolute time alone where a ratio can speak.
package bench

import (
	"encoding/json"
	"io"
	"slices"
	"time"
)

// Figure is one measured figure.
type Figure struct {
	Name   string  `json:"name"`
	Ours   float64 `json:"ours"`
	Anchor float64 `json:"anchor"` // what the anchor took or reached in the same run
	Unit   string  `json:"unit"`
	Ratio  float64 `json:"ratio"` // ours / anchor
	Bar    string  `json:"bar"`
	Pass   bool    `json:"pass"`
	Note   string  `json:"note,omitempty"`
}

// Print writes the figure as one line.
func (f Figure) Print(w io.Writer) error {
	if f.Anchor != 0 {
		f.Ratio = f.Ours / f.Anchor
	}
	round := func(v float64) float64 { return float64(int64(v*1000+0.5)) / 1000 }
	f.Ours, f.Anchor, f.Ratio = round(f.Ours), round(f.Anchor), round(f.Ratio)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(f)
}

// quantile returns the q-quantile of durations (nearest rank).
func quantile(d []time.Duration, q float64) time.Duration {
	s := slices.Clone(d)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

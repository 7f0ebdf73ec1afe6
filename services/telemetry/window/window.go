package window

import (
	"fmt"
	"sort"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Config says how much is kept; all in nanoseconds.
type Config struct {
	Raw    int64 // raw batches
	Rollup int64 // one-second rollups
	Settle int64 // how long a missing batch may be late before it counts as lost
	Forget int64 // a node not heard of for this long is forgotten
}

// Default is what the service keeps.
func Default() Config {
	return Config{Raw: 120e9, Rollup: 900e9, Settle: 5e9, Forget: 3600e9}
}

// Window is the memory of all nodes.
type Window struct {
	cfg      Config
	nodes    map[string]*node
	rejected uint64
}

// New makes an empty window.
func New(cfg Config) *Window { return &Window{cfg: cfg, nodes: map[string]*node{}} }

// Key names one series of a node.
type Key struct {
	Device int32 // position in the node's inventory; -1 = the node itself
	Metric metric.ID
}

// node is one node's memory.
type node struct {
	account
	simulated bool
	arrived   int64 // when the newest batch came, our clock
	newest    int64 // end of the newest batch, the node's clock
	raw       []blob
	latest    map[Key]latest
	rollups   map[Key]*ring
}

type blob struct {
	t0, end int64
	data    []byte // as received
}

type latest struct {
	at, arrived int64
	value       float64
}

// Outcome says what became of a batch.
type Outcome uint8

// The outcomes of Add.
const (
	Kept      Outcome = iota
	Duplicate         // its number was seen before; nothing changed
	Late              // it came after its successors, and was kept
	Stale             // older than anything that is kept; counted as received and left out
)

// Add takes one batch as it was received at now.
func (w *Window) Add(data []byte, now int64) (Outcome, error) {
	m := &weftv1.MetricBatch{}
	if err := proto.Unmarshal(data, m); err != nil {
		w.rejected++
		return 0, fmt.Errorf("window: malformed batch: %w", err)
	}
	b, err := metric.Decode(m)
	if err != nil {
		w.rejected++
		return 0, fmt.Errorf("window: %w", err)
	}
	n := w.nodes[b.Node]
	if n == nil {
		n = &node{latest: map[Key]latest{}, rollups: map[Key]*ring{}}
		w.nodes[b.Node] = n
	}
	return n.add(&w.cfg, b, data, now), nil
}

func (n *node) add(cfg *Config, b *metric.Batch, data []byte, now int64) Outcome {
	order := n.count(b.Epoch, b.Seq, now)
	if order == Duplicate {
		return Duplicate
	}
	end := b.Time(b.Samples)
	n.simulated = b.Simulated
	n.arrived = max(n.arrived, now)
	if order == Kept && end <= n.newest-cfg.Raw {
		// A successor by number, far in the past by time: the node's clock was set back. Its story starts anew.
		n.newest, n.raw = 0, nil
		clear(n.latest)
		clear(n.rollups)
	}
	n.newest = max(n.newest, end)
	if end <= n.newest-cfg.Rollup {
		return Stale
	}
	if end > n.newest-cfg.Raw {
		i := sort.Search(len(n.raw), func(i int) bool { return n.raw[i].t0 > b.T0 })
		n.raw = append(n.raw, blob{})
		copy(n.raw[i+1:], n.raw[i:])
		n.raw[i] = blob{t0: b.T0, end: end, data: data}
	}
	cut := 0
	for cut < len(n.raw) && n.raw[cut].end <= n.newest-cfg.Raw {
		cut++
	}
	n.raw = n.raw[cut:]
	n.absorb(cfg, b, now, order == Kept)
	return order
}

// absorb takes a batch's values into the newest ones and the rollups. A batch that is the newest by number is the
// present even if the node's clock was set back a little.
func (n *node) absorb(cfg *Config, b *metric.Batch, now int64, present bool) {
	for i := range b.Series {
		s := &b.Series[i]
		id, ok := metric.ByName(s.Name)
		if !ok {
			continue // of a newer agent
		}
		k := Key{s.Device, id}
		var r *ring
		if metric.Of(id).Rollup {
			if r = n.rollups[k]; r == nil {
				r = newRing(cfg.Rollup)
				n.rollups[k] = r
			}
		}
		for j := range b.Samples {
			v, ok := s.At(j)
			if !ok {
				continue
			}
			at := b.Time(j)
			if l, known := n.latest[k]; !known || present || at >= l.at {
				n.latest[k] = latest{at: at, arrived: now, value: v}
			}
			if r != nil {
				r.add(at, v)
			}
		}
	}
}

// Tick settles what is overdue at now: gaps become losses, silent nodes are forgotten.
func (w *Window) Tick(now int64) {
	for name, n := range w.nodes {
		n.settle(now - w.cfg.Settle)
		if n.arrived < now-w.cfg.Forget {
			delete(w.nodes, name)
		}
	}
}

// Rejected counts batches that could not be read.
func (w *Window) Rejected() uint64 { return w.rejected }

// Nodes returns the names of the nodes that are known, sorted.
func (w *Window) Nodes() []string {
	out := make([]string, 0, len(w.nodes))
	for name := range w.nodes {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

// Stats is the account of one node.
type Stats struct {
	Received   uint64 // without duplicates
	Lost       uint64
	Missing    uint64 // not there, and not yet overdue
	Duplicates uint64
	Late       uint64
	Epoch      string
	Seq        uint64 // newest
	ArrivedNS  int64  // when the newest batch came, our clock
	NewestNS   int64  // end of the newest batch, the node's clock
	Simulated  bool
}

// Stats returns a node's account; ok is false for an unknown one.
func (w *Window) Stats(name string) (s Stats, ok bool) {
	n := w.nodes[name]
	if n == nil {
		return Stats{}, false
	}
	s = Stats{Received: n.received, Lost: n.lost, Duplicates: n.duplicates, Late: n.late, Epoch: n.epoch, Seq: n.next - 1,
		ArrivedNS: n.arrived, NewestNS: n.newest, Simulated: n.simulated}
	for _, g := range n.gaps {
		s.Missing += g.to - g.from + 1
	}
	return s, true
}

// staleAfter is how long a value stands for the present: three of its periods, and at least ten seconds.
func staleAfter(id metric.ID) int64 {
	return max(3*int64(metric.Of(id).Class.Every()), 10e9)
}

// Latest calls f with each series' newest value that still stands for the present, by device and metric; at is the
// node's time of measurement.
func (w *Window) Latest(name string, now int64, f func(k Key, value float64, at int64)) {
	n := w.nodes[name]
	if n == nil {
		return
	}
	keys := make([]Key, 0, len(n.latest))
	for k, l := range n.latest {
		if l.arrived >= now-staleAfter(k.Metric) {
			keys = append(keys, k)
		}
	}
	sort.Slice(keys, func(i, j int) bool {
		a, b := keys[i], keys[j]
		return a.Device < b.Device || a.Device == b.Device && a.Metric < b.Metric
	})
	for _, k := range keys {
		l := n.latest[k]
		f(k, l.value, l.at)
	}
}

// Point is one sample.
type Point struct {
	At    int64
	Value float64
}

// Range returns the raw samples of a series from from until before to, in order of time.
func (w *Window) Range(name string, k Key, from, to int64) []Point {
	n := w.nodes[name]
	if n == nil {
		return nil
	}
	var out []Point
	for _, r := range n.raw {
		if r.end <= from || r.t0 >= to {
			continue
		}
		m := &weftv1.MetricBatch{}
		if proto.Unmarshal(r.data, m) != nil {
			continue // it was readable when it was added
		}
		b, err := metric.Decode(m)
		if err != nil {
			continue
		}
		for i := range b.Series {
			s := &b.Series[i]
			if id, ok := metric.ByName(s.Name); !ok || id != k.Metric || s.Device != k.Device {
				continue
			}
			for j := range b.Samples {
				if v, ok := s.At(j); ok && b.Time(j) >= from && b.Time(j) < to {
					out = append(out, Point{b.Time(j), v})
				}
			}
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].At < out[j].At })
	return out
}

// Rollups returns a series' seconds from from until before to, in order; a second without samples is not there.
func (w *Window) Rollups(name string, k Key, from, to int64) []Second {
	n := w.nodes[name]
	if n == nil || n.rollups[k] == nil {
		return nil
	}
	return n.rollups[k].between(max(from, n.newest-w.cfg.Rollup), to)
}

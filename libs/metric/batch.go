package metric

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Batch is a decoded MetricBatch: columns of integers over a grid of times.
type Batch struct {
	Node      string
	Epoch     string
	Seq       uint64
	T0        int64 // time of sample 0, Unix ns
	DT        int64 // ns between samples
	Samples   int
	Simulated bool
	Series    []Series
}

// Time returns the time of sample i.
func (b *Batch) Time(i int) int64 { return b.T0 + int64(i)*b.DT }

// Series is one metric of one device (-1 = the node) over the batch's times.
type Series struct {
	Name   string
	Device int32
	Scale  float64
	ints   []int64 // one a sample; meaningless where not valid
	valid  []byte  // bit i, little-endian; nil = all
}

// NewSeries returns a column without values for a catalogued metric.
func NewSeries(id ID, device int32, samples int) Series {
	d := Of(id)
	return Series{Name: d.Name, Device: device, Scale: d.Scale, ints: make([]int64, samples), valid: make([]byte, (samples+7)/8)}
}

// Set records sample i. A value that the wire cannot carry (not a number, or too large) is left out.
func (s *Series) Set(i int, v float64) {
	n := math.Round(v / s.Scale)
	if math.IsNaN(n) || n > 1<<62 || n < -(1<<62) {
		return
	}
	s.ints[i] = int64(n)
	if s.valid != nil {
		s.valid[i/8] |= 1 << (i % 8)
	}
}

// At returns sample i; ok is false if it was not measured.
func (s *Series) At(i int) (v float64, ok bool) {
	if s.valid != nil && s.valid[i/8]&(1<<(i%8)) == 0 {
		return 0, false
	}
	return float64(s.ints[i]) * s.Scale, true
}

// Measured returns how many samples have a value.
func (s *Series) Measured() int {
	if s.valid == nil {
		return len(s.ints)
	}
	n := 0
	for _, b := range s.valid {
		n += bits.OnesCount8(b)
	}
	return n
}

// Encode makes the wire form. Series without any value are left out: absent is absent.
func Encode(b *Batch) *weftv1.MetricBatch {
	var series []*weftv1.MetricSeries
	for i := range b.Series {
		s := &b.Series[i]
		n := s.Measured()
		if n == 0 {
			continue
		}
		deltas := make([]int64, 0, n)
		last := int64(0)
		for j, v := range s.ints {
			if _, ok := s.At(j); ok {
				deltas = append(deltas, v-last)
				last = v
			}
		}
		valid := s.valid
		if n == b.Samples {
			valid = nil
		}
		series = append(series, weftv1.MetricSeries_builder{
			Name: new(s.Name), Device: new(s.Device), Scale: new(s.Scale), Deltas: deltas, Valid: valid,
		}.Build())
	}
	return weftv1.MetricBatch_builder{
		Node: new(b.Node), Epoch: new(b.Epoch), Seq: new(b.Seq), T0Ns: new(b.T0), DtNs: new(b.DT),
		Samples: new(uint32(b.Samples)), Series: series, Simulated: new(b.Simulated),
	}.Build()
}

// Limits of a batch that Decode accepts: a node cannot make its readers allocate without bound.
const (
	MaxSamples = 4096
	MaxSeries  = 8192
	maxName    = 128
	maxStep    = int64(3600e9)
)

var errBatch = errors.New("metric: malformed batch")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errBatch, fmt.Sprintf(format, args...))
}

// Decode reads the wire form and checks all of it; a batch is taken whole or not at all. Names that the catalogue does
// not know are kept: they come from a newer agent.
func Decode(m *weftv1.MetricBatch) (*Batch, error) {
	b := &Batch{Node: m.GetNode(), Epoch: m.GetEpoch(), Seq: m.GetSeq(), T0: m.GetT0Ns(), DT: m.GetDtNs(),
		Samples: int(m.GetSamples()), Simulated: m.GetSimulated()}
	switch {
	case b.Node == "" || len(b.Node) > maxName:
		return nil, malformed("no node")
	case b.Epoch == "" || len(b.Epoch) > maxName:
		return nil, malformed("no epoch")
	case b.Seq == 0 || b.Seq > 1<<62:
		return nil, malformed("number %d", b.Seq)
	case b.Samples < 1 || b.Samples > MaxSamples:
		return nil, malformed("%d samples", b.Samples)
	case b.DT <= 0 || b.DT > maxStep:
		return nil, malformed("step of %d ns", b.DT)
	case b.T0 <= 0 || b.T0 > 1<<62:
		return nil, malformed("time %d", b.T0)
	case len(m.GetSeries()) > MaxSeries:
		return nil, malformed("%d series", len(m.GetSeries()))
	}
	b.Series = make([]Series, 0, len(m.GetSeries()))
	for i, w := range m.GetSeries() {
		s, err := decodeSeries(w, b.Samples)
		if err != nil {
			return nil, malformed("series %d (%.64q): %v", i, w.GetName(), err)
		}
		b.Series = append(b.Series, s)
	}
	return b, nil
}

func decodeSeries(w *weftv1.MetricSeries, samples int) (Series, error) {
	s := Series{Name: w.GetName(), Device: w.GetDevice(), Scale: w.GetScale(), valid: w.GetValid()}
	switch {
	case s.Name == "" || len(s.Name) > maxName:
		return s, errors.New("no name")
	case s.Device < -1:
		return s, fmt.Errorf("device %d", s.Device)
	case !(s.Scale > 0) || math.IsInf(s.Scale, 1):
		return s, fmt.Errorf("scale %g", s.Scale)
	}
	if len(s.valid) == 0 {
		s.valid = nil
	} else if len(s.valid) != (samples+7)/8 || samples%8 != 0 && s.valid[len(s.valid)-1]>>(samples%8) != 0 {
		return s, errors.New("validity bits do not fit the samples")
	}
	s.ints = make([]int64, samples)
	if n := s.Measured(); n != len(w.GetDeltas()) {
		return s, fmt.Errorf("%d values for %d valid samples", len(w.GetDeltas()), n)
	}
	k, v := 0, int64(0)
	for j := range s.ints {
		if _, ok := s.At(j); ok {
			v += w.GetDeltas()[k]
			s.ints[j] = v
			k++
		}
	}
	return s, nil
}

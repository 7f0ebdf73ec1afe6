package window_test

import (
	"math"
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/telemetry/window"
)

const (
	sec   = int64(1e9)
	start = int64(1_700_000_000) * sec
)

var power = window.Key{Device: 0, Metric: metric.Power}

// fatal is what *testing.T and *rapid.T share.
type fatal interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// batch is second i of a node: ten samples of power, sample j worth 100 i + j watts; mask says which were measured.
func batch(t fatal, epoch string, seq uint64, t0 int64, value float64, mask uint16) []byte {
	t.Helper()
	s := metric.NewSeries(metric.Power, 0, 10)
	for j := range 10 {
		if mask&(1<<j) != 0 {
			s.Set(j, value+float64(j))
		}
	}
	b := &metric.Batch{Node: "n1", Epoch: epoch, Seq: seq, T0: t0, DT: sec / 10, Samples: 10, Series: []metric.Series{s}}
	data, err := proto.Marshal(metric.Encode(b))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func add(t fatal, w *window.Window, data []byte, now int64) window.Outcome {
	t.Helper()
	o, err := w.Add(data, now)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func stats(t fatal, w *window.Window) window.Stats {
	t.Helper()
	s, ok := w.Stats("n1")
	if !ok {
		t.Fatal("the node is not known")
	}
	return s
}

// Whatever is lost, doubled or reordered on the way, each number is in exactly one place of the account, and the samples
// that come out are those that arrived, once each, in order, with the gaps where they were.
func TestAccountAndSamplesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(t, "batches")
		type delivery struct{ i int }
		var way []delivery
		lost := 0
		masks := make([]uint16, n)
		for i := range n {
			masks[i] = uint16(rapid.IntRange(0, 1023).Draw(t, "mask"))
			switch rapid.IntRange(0, 5).Draw(t, "fate") {
			case 0:
				if i > 0 && i < n-1 { // the ends are not seen to be missing
					lost++
					continue
				}
			case 1:
				way = append(way, delivery{i})
			}
			way = append(way, delivery{i})
		}
		copies := len(way) - (n - lost)
		first := way[0].i
		for i := range way { // a little out of order, but the first stays first
			j := i + rapid.IntRange(0, min(3, len(way)-1-i)).Draw(t, "swap")
			if way[i].i != first && way[j].i != first {
				way[i], way[j] = way[j], way[i]
			}
		}
		w := window.New(window.Default())
		now := start
		for _, d := range way {
			now += sec / 10
			add(t, w, batch(t, "e", uint64(d.i+1), start+int64(d.i)*sec, float64(100*d.i), masks[d.i]), now)
		}
		w.Tick(now + 10*sec)
		s := stats(t, w)
		if int(s.Lost) != lost || int(s.Received) != n-lost || int(s.Duplicates) != copies || s.Missing != 0 {
			t.Fatalf("account %+v; %d of %d lost, %d copies", s, lost, n, copies)
		}
		arrived := map[int]bool{}
		for _, d := range way {
			arrived[d.i] = true
		}
		var want []window.Point
		for i := range n {
			for j := range 10 {
				if arrived[i] && masks[i]&(1<<j) != 0 {
					want = append(want, window.Point{At: start + int64(i)*sec + int64(j)*sec/10, Value: float64(100*i + j)})
				}
			}
		}
		got := w.Range("n1", power, 0, math.MaxInt64)
		if len(got) != len(want) {
			t.Fatalf("%d samples, want %d", len(got), len(want))
		}
		for i := range got {
			if got[i].At != want[i].At || math.Abs(got[i].Value-want[i].Value) > 1e-3 {
				t.Fatalf("sample %d: %+v, want %+v", i, got[i], want[i])
			}
		}
		checkRollups(t, w, want)
	})
}

func checkRollups(t *rapid.T, w *window.Window, want []window.Point) {
	seconds := map[int64]*window.Second{}
	for _, p := range want {
		at := p.At / sec * sec
		s := seconds[at]
		if s == nil {
			s = &window.Second{At: at, Min: p.Value, Max: p.Value}
			seconds[at] = s
		}
		s.Min, s.Max, s.Mean, s.Samples = min(s.Min, p.Value), max(s.Max, p.Value), s.Mean+p.Value, s.Samples+1
	}
	got := w.Rollups("n1", power, 0, math.MaxInt64)
	if len(got) != len(seconds) {
		t.Fatalf("%d rollups, want %d: a second without samples is not there", len(got), len(seconds))
	}
	for _, g := range got {
		s := seconds[g.At]
		if s == nil || s.Samples != g.Samples || math.Abs(s.Mean/float64(s.Samples)-g.Mean) > 1e-3 || math.Abs(s.Min-g.Min) > 0.01 || math.Abs(s.Max-g.Max) > 0.01 {
			t.Fatalf("rollup %+v, want %+v", g, s)
		}
	}
}

func TestMissingBecomesLostOnlyWhenOverdue(t *testing.T) {
	w := window.New(window.Default())
	add(t, w, batch(t, "e", 1, start, 0, 1023), start)
	add(t, w, batch(t, "e", 4, start+3*sec, 0, 1023), start+3*sec)
	w.Tick(start + 7*sec)
	if s := stats(t, w); s.Lost != 0 || s.Missing != 2 {
		t.Errorf("early: %+v", s)
	}
	if o := add(t, w, batch(t, "e", 3, start+2*sec, 0, 1023), start+7*sec); o != window.Late {
		t.Errorf("a straggler is %v", o)
	}
	w.Tick(start + 8*sec)
	if s := stats(t, w); s.Lost != 1 || s.Missing != 0 || s.Late != 1 {
		t.Errorf("overdue: %+v", s)
	}
	if o := add(t, w, batch(t, "e", 2, start+sec, 0, 1023), start+60*sec); o != window.Late {
		t.Errorf("a straggler that was given up is %v", o)
	}
	if s := stats(t, w); s.Lost != 1 {
		t.Errorf("the counter of losses went back: %+v", s)
	}
	if n := len(w.Range("n1", power, start+sec, start+2*sec)); n != 10 {
		t.Errorf("its samples are not kept: %d", n)
	}
	if o := add(t, w, batch(t, "e", 2, start+sec, 0, 1023), start+60*sec); o != window.Duplicate {
		t.Errorf("the same once more is %v", o)
	}
}

func TestFirstBatchEverIsNoGapButAFreshEpochCountsFromOne(t *testing.T) {
	w := window.New(window.Default())
	add(t, w, batch(t, "e1", 500, start, 0, 1), start)
	add(t, w, batch(t, "e1", 502, start+2*sec, 0, 1), start+2*sec)
	add(t, w, batch(t, "e2", 3, start+6*sec, 0, 1), start+6*sec)
	if s := stats(t, w); s.Lost != 1 || s.Missing != 2 || s.Epoch != "e2" {
		t.Errorf("%+v: 501 will not come any more, 1 and 2 may", s)
	}
	if o := add(t, w, batch(t, "e1", 501, start+sec, 0, 1), start+7*sec); o != window.Late {
		t.Errorf("a straggler of the life before is %v", o)
	}
	w.Tick(start + 60*sec)
	if s := stats(t, w); s.Lost != 3 || s.Received != 4 {
		t.Errorf("%+v", s)
	}
}

func TestWhatIsOldGoes(t *testing.T) {
	w := window.New(window.Default())
	for i := range int64(1000) {
		add(t, w, batch(t, "e", uint64(i+1), start+i*sec, float64(i), 1), start+i*sec)
	}
	raw := w.Range("n1", power, 0, math.MaxInt64)
	if len(raw) != 120 || raw[0].At != start+880*sec {
		t.Errorf("%d raw samples, the first at +%d s", len(raw), (raw[0].At-start)/sec)
	}
	r := w.Rollups("n1", power, 0, math.MaxInt64)
	if len(r) != 900 || r[0].At != start+100*sec || r[899].Mean != 999 {
		t.Errorf("%d rollups, from +%d s", len(r), (r[0].At-start)/sec)
	}
	if o := add(t, w, batch(t, "e", 2000, start+3000*sec, 0, 1), start+3000*sec); o != window.Kept {
		t.Fatal(o)
	}
	if r := w.Rollups("n1", power, 0, math.MaxInt64); len(r) != 1 {
		t.Errorf("%d rollups after half an hour of silence", len(r))
	}
	if o := add(t, w, batch(t, "e", 1999, start+10*sec, 0, 1), start+3000*sec); o != window.Stale {
		t.Errorf("a batch older than everything kept is %v", o)
	}
	w.Tick(start + 3000*sec + 3601*sec)
	if n := w.Nodes(); len(n) != 0 {
		t.Errorf("a node silent for an hour is remembered: %v", n)
	}
}

func latest(w *window.Window, now int64) map[window.Key]float64 {
	out := map[window.Key]float64{}
	w.Latest("n1", now, func(k window.Key, v float64, _ int64) { out[k] = v })
	return out
}

func TestLatestIsAbsentOnceItIsOld(t *testing.T) {
	w := window.New(window.Default())
	add(t, w, batch(t, "e", 1, start, 100, 1023), start)
	if got := latest(w, start+9*sec); !reflect.DeepEqual(got, map[window.Key]float64{power: 109}) {
		t.Errorf("got %v", got)
	}
	if got := latest(w, start+11*sec); len(got) != 0 {
		t.Errorf("an old value stands for the present: %v", got)
	}
}

func TestClockSetBack(t *testing.T) {
	w := window.New(window.Default())
	add(t, w, batch(t, "e", 1, start, 100, 1023), start)
	// By half a minute: both stories are kept, the newer number is the present.
	add(t, w, batch(t, "e", 2, start-30*sec, 200, 1023), start+sec)
	if got := latest(w, start+sec)[power]; got != 209 {
		t.Errorf("latest %v", got)
	}
	// By an hour: the story starts anew.
	add(t, w, batch(t, "e", 3, start-3600*sec, 300, 1023), start+2*sec)
	if got := w.Range("n1", power, 0, math.MaxInt64); len(got) != 10 || math.Abs(got[0].Value-300) > 1e-6 {
		t.Errorf("%d samples", len(got))
	}
}

func TestRejected(t *testing.T) {
	w := window.New(window.Default())
	if _, err := w.Add([]byte{0xff, 0xff}, start); err == nil {
		t.Error("garbage accepted")
	}
	bad, _ := proto.Marshal(weftv1.MetricBatch_builder{Node: new("n1")}.Build())
	if _, err := w.Add(bad, start); err == nil {
		t.Error("a batch without times accepted")
	}
	if w.Rejected() != 2 || len(w.Nodes()) != 0 {
		t.Errorf("%d rejected, nodes %v", w.Rejected(), w.Nodes())
	}
}

func TestUnknownMetricsOfANewerAgentDoNoHarm(t *testing.T) {
	w := window.New(window.Default())
	m := weftv1.MetricBatch_builder{Node: new("n1"), Epoch: new("e"), Seq: new(uint64(1)), T0Ns: new(start), DtNs: new(sec), Samples: new(uint32(1)),
		Series: []*weftv1.MetricSeries{weftv1.MetricSeries_builder{Name: new("weft_gpu_flux_ratio"), Scale: new(1.0), Deltas: []int64{1}}.Build()}}.Build()
	data, _ := proto.Marshal(m)
	if o := add(t, w, data, start); o != window.Kept || len(latest(w, start)) != 0 {
		t.Errorf("%v %v", o, latest(w, start))
	}
}

func TestLateSamplesAreChargedToWhoHeldTheDeviceThen(t *testing.T) {
	p := window.Place{Node: "n1", Device: 3}
	a := window.Holder{Job: "a", Attempt: 1, Milli: 1000}
	b := window.Holder{Job: "b", Attempt: 1, Milli: 1000}
	h := window.NewHolders()
	h.Sync([]window.Held{{Place: p, Who: a, Since: 10}}, 12)
	h.Sync([]window.Held{{Place: p, Who: a, Since: 10}}, 20) // nothing new
	h.Sync([]window.Held{{Place: p, Who: b, Since: 28}}, 30) // noticed late: b began before a was seen to be gone
	h.Sync(nil, 40)
	for at, want := range map[int64]string{9: "", 10: "a", 27: "a", 28: "b", 39: "b", 40: ""} {
		got := ""
		for _, x := range h.At(p, at) {
			got += x.Job
		}
		if got != want {
			t.Errorf("at %d: %q, want %q", at, got, want)
		}
	}
	h.Prune(29)
	if len(h.At(p, 20)) != 0 || len(h.At(p, 35)) != 1 {
		t.Error("pruning took the wrong one")
	}
}

func TestFractionsShareADevice(t *testing.T) {
	p := window.Place{Node: "n1"}
	h := window.NewHolders()
	held := []window.Held{{p, window.Holder{Job: "a", Milli: 500}, 1}, {p, window.Holder{Job: "b", Milli: 500}, 5}}
	h.Sync(held[:1], 1)
	h.Sync(held, 5)
	if got := h.At(p, 7); len(got) != 2 || got[0].Job != "a" || got[1].Job != "b" {
		t.Errorf("%v", got)
	}
	h.Sync(held[1:], 9)
	if got := h.At(p, 9); len(got) != 1 || got[0].Job != "b" {
		t.Errorf("%v", got)
	}
}

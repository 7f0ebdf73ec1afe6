package metric

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestRoundTripKeepsEachValueAndEachGap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.IntRange(1, 70).Draw(t, "samples")
		b := &Batch{Node: "n1", Epoch: "e", Seq: rapid.Uint64Range(1, 1<<62).Draw(t, "seq"), T0: rapid.Int64Range(1, 1<<61).Draw(t, "t0"),
			DT: 1e8, Samples: samples, Simulated: rapid.Bool().Draw(t, "simulated")}
		type cell struct {
			v  float64
			ok bool
		}
		want := map[string]map[int32][]cell{}
		for i := range rapid.IntRange(0, 6).Draw(t, "series") {
			id := ID(rapid.IntRange(0, Count-1).Draw(t, "metric"))
			s := NewSeries(id, int32(i)-1, samples)
			cells := make([]cell, samples)
			any := false
			for j := range cells {
				if rapid.Bool().Draw(t, "valid") {
					n := rapid.Int64Range(-1<<52, 1<<52).Draw(t, "n")
					cells[j] = cell{float64(n) * s.Scale, true}
					s.Set(j, cells[j].v)
					any = true
				}
			}
			b.Series = append(b.Series, s)
			if any {
				if want[s.Name] == nil {
					want[s.Name] = map[int32][]cell{}
				}
				want[s.Name][s.Device] = cells
			}
		}
		wire, err := proto.Marshal(Encode(b))
		if err != nil {
			t.Fatal(err)
		}
		m := &weftv1.MetricBatch{}
		if err := proto.Unmarshal(wire, m); err != nil {
			t.Fatal(err)
		}
		got, err := Decode(m)
		if err != nil {
			t.Fatal(err)
		}
		if got.Node != b.Node || got.Epoch != b.Epoch || got.Seq != b.Seq || got.T0 != b.T0 || got.DT != b.DT ||
			got.Samples != samples || got.Simulated != b.Simulated {
			t.Fatalf("head: got %+v, want %+v", got, b)
		}
		n := 0
		for _, m := range want {
			n += len(m)
		}
		if len(got.Series) != n {
			t.Fatalf("%d series, want %d: columns without values must not travel", len(got.Series), n)
		}
		for i := range got.Series {
			s := &got.Series[i]
			for j, w := range want[s.Name][s.Device] {
				v, ok := s.At(j)
				if ok != w.ok || ok && math.Abs(v-w.v) > s.Scale/2+math.Abs(w.v)*1e-12 {
					t.Fatalf("%s device %d sample %d: got %v %v, want %v %v", s.Name, s.Device, j, v, ok, w.v, w.ok)
				}
			}
		}
	})
}

func TestDecodeNeverPanicsAndRefusesWhatDoesNotFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := weftv1.MetricBatch_builder{
			Node: new("n"), Epoch: new("e"), Seq: new(uint64(1)), T0Ns: new(int64(1)), DtNs: new(int64(1)),
			Samples: new(rapid.Uint32Range(0, 20).Draw(t, "samples")),
			Series: []*weftv1.MetricSeries{weftv1.MetricSeries_builder{
				Name: new("x"), Device: new(rapid.Int32Range(-2, 2).Draw(t, "device")),
				Scale:  new(rapid.SampledFrom([]float64{1, 0, -1, math.NaN(), math.Inf(1)}).Draw(t, "scale")),
				Deltas: rapid.SliceOfN(rapid.Int64(), 0, 20).Draw(t, "deltas"),
				Valid:  rapid.SliceOfN(rapid.Byte(), 0, 4).Draw(t, "valid"),
			}.Build()},
		}.Build()
		b, err := Decode(m)
		if err != nil {
			return
		}
		if s := b.Series[0]; s.Measured() != len(m.GetSeries()[0].GetDeltas()) || s.Device < -1 || !(s.Scale > 0) {
			t.Fatalf("accepted %v", m)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	good := func() weftv1.MetricBatch_builder {
		return weftv1.MetricBatch_builder{Node: new("n"), Epoch: new("e"), Seq: new(uint64(1)), T0Ns: new(int64(1)), DtNs: new(int64(1)), Samples: new(uint32(2))}
	}
	if _, err := Decode(good().Build()); err != nil {
		t.Fatalf("an empty batch is a sign of life: %v", err)
	}
	for name, spoil := range map[string]func(*weftv1.MetricBatch_builder){
		"node":    func(b *weftv1.MetricBatch_builder) { b.Node = nil },
		"epoch":   func(b *weftv1.MetricBatch_builder) { b.Epoch = nil },
		"number":  func(b *weftv1.MetricBatch_builder) { b.Seq = nil },
		"samples": func(b *weftv1.MetricBatch_builder) { b.Samples = new(uint32(MaxSamples + 1)) },
		"step":    func(b *weftv1.MetricBatch_builder) { b.DtNs = new(int64(0)) },
		"time":    func(b *weftv1.MetricBatch_builder) { b.T0Ns = new(int64(math.MaxInt64)) },
		"series":  func(b *weftv1.MetricBatch_builder) { b.Series = make([]*weftv1.MetricSeries, MaxSeries+1) },
	} {
		b := good()
		spoil(&b)
		if _, err := Decode(b.Build()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSetLeavesOutWhatTheWireCannotCarry(t *testing.T) {
	s := NewSeries(MemoryUsage, 0, 3)
	s.Set(0, math.NaN())
	s.Set(1, math.Inf(1))
	s.Set(2, 1e30)
	if s.Measured() != 0 {
		t.Fatal("a value that cannot be carried counts as measured")
	}
}

func TestCatalogueIsComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range All() {
		if d.Name == "" || d.OTel == "" || d.Unit == "" || d.Help == "" || !(d.Scale > 0) || seen[d.Name] {
			t.Errorf("metric %d: %+v", d.ID, d)
		}
		seen[d.Name] = true
		if (d.Scope == Device) != (int(d.ID) < DeviceMetrics) || (d.Scope == Device) != (d.NVML != "") {
			t.Errorf("%s: scope %d does not fit its place or its source", d.Name, d.Scope)
		}
		if isTotal := len(d.Name) > 6 && d.Name[len(d.Name)-6:] == "_total"; isTotal != (d.Kind == Counter) {
			t.Errorf("%s: name and kind disagree", d.Name)
		}
		for _, n := range []string{d.Name, d.Name[len("weft_"):]} {
			if id, ok := ByName(n); !ok || id != d.ID {
				t.Errorf("ByName(%q) = %d, %v", n, id, ok)
			}
		}
	}
	if Count > 64 {
		t.Errorf("%d metrics do not fit the bits of Values", Count)
	}
}

func TestValues(t *testing.T) {
	var v Values
	if _, ok := v.Get(Power); ok || v.Len() != 0 {
		t.Fatal("the zero Values holds something")
	}
	v.Set(Power, 0)
	v.Set(AgentBatchesDropped, 3)
	if p, ok := v.Get(Power); !ok || p != 0 || v.Len() != 2 {
		t.Fatal("a measured zero is lost")
	}
	v.Clear(Power)
	if _, ok := v.Get(Power); ok || v.Len() != 1 {
		t.Fatal("a cleared value is still there")
	}
}

func BenchmarkEncode(b *testing.B) {
	batch := &Batch{Node: "n1", Epoch: "e", Seq: 1, T0: 1, DT: 1e8, Samples: 10}
	for d := range int32(8) {
		for id := range ID(24) {
			s := NewSeries(id, d, 10)
			for i := range 10 {
				s.Set(i, float64(i%3))
			}
			batch.Series = append(batch.Series, s)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		wire, _ := proto.Marshal(Encode(batch))
		b.ReportMetric(float64(len(wire))/1920, "B/sample")
	}
}

func FuzzDecode(f *testing.F) {
	s := NewSeries(Power, 0, 10)
	s.Set(3, 300)
	seed, _ := proto.Marshal(Encode(&Batch{Node: "n", Epoch: "e", Seq: 1, T0: 1, DT: 1, Samples: 10, Series: []Series{s}}))
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &weftv1.MetricBatch{}
		if proto.Unmarshal(data, m) != nil {
			return
		}
		b, err := Decode(m)
		if err != nil {
			return
		}
		again, err := Decode(Encode(b))
		if err != nil {
			t.Fatalf("what was accepted is refused once encoded: %v", err)
		}
		if again.Seq != b.Seq || again.Samples != b.Samples {
			t.Fatal("another batch")
		}
	})
}

package sample

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var (
	epoch   = time.Unix(1_700_000_000, 0)
	fixture = Host{Proc: "testdata/host/proc", Sys: "testdata/host/sys"}
)

// rig is a sampler on a simulated machine and a memory bus, in virtual time.
type rig struct {
	t    *testing.T
	sim  *device.Sim
	bus  *membus.Bus
	in   bus.Inbox
	s    *Shell
	now  time.Time
	seen []*metric.Batch
}

func newRig(t *testing.T, cfg Config) *rig {
	t.Helper()
	sim, err := device.NewSim("h100x2", 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sim.Close() })
	b := membus.New()
	cfg.Node, cfg.Epoch, cfg.Files = "n1", "e1", fixture
	return &rig{t: t, sim: sim, bus: b, in: b.Inbox(bus.StreamMetrics, bus.SubjectMetric("n1")),
		s: New(cfg, sim, b.Outbox(bus.StreamMetrics)), now: epoch}
}

// pass steps the sampler through d, each time when it asked to be.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	for end := r.now.Add(d); r.now.Before(end); {
		_, next, err := r.s.Step(r.t.Context(), r.now)
		if err != nil {
			r.t.Fatal(err)
		}
		if !next.After(r.now) {
			r.t.Fatalf("asked to be stepped at %v, it is %v", next, r.now)
		}
		r.now = next
	}
}

func (r *rig) batches() []*metric.Batch {
	r.t.Helper()
	msgs, err := r.in.Next(r.t.Context(), 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, m := range msgs {
		w := &weftv1.MetricBatch{}
		if err := proto.Unmarshal(m.Data, w); err != nil {
			r.t.Fatal(err)
		}
		b, err := metric.Decode(w)
		if err != nil {
			r.t.Fatal(err)
		}
		if m.Subject != "weft.metric.n1" {
			r.t.Errorf("published on %s", m.Subject)
		}
		r.seen = append(r.seen, b)
	}
	return r.seen
}

func column(b *metric.Batch, id metric.ID, dev int32) *metric.Series {
	for i := range b.Series {
		if s := &b.Series[i]; s.Name == metric.Of(id).Name && s.Device == dev {
			return s
		}
	}
	return &metric.Series{}
}

func TestOneBatchASecondEachMetricAtItsCadence(t *testing.T) {
	r := newRig(t, Config{})
	r.pass(5*time.Second + 100*time.Millisecond)
	got := r.batches()
	if len(got) != 5 {
		t.Fatalf("%d batches in five seconds", len(got))
	}
	for i, b := range got {
		if b.Seq != uint64(i+1) || b.Node != "n1" || b.Epoch != "e1" || !b.Simulated || b.Samples != 10 || b.T0 != epoch.Add(time.Duration(i)*time.Second).UnixNano() {
			t.Errorf("batch %d: %+v", i, b)
		}
		for dev := range int32(2) {
			if n := column(b, metric.SMActive, dev).Measured(); n != 10 {
				t.Errorf("batch %d device %d: %d readings of a fast metric", i, dev, n)
			}
			if n := column(b, metric.Utilization, dev).Measured(); n != 1 {
				t.Errorf("batch %d device %d: utilization, which changes once a second, was read %d times", i, dev, n)
			}
			if n := column(b, metric.MemoryLimit, dev).Measured(); n != map[bool]int{true: 1}[i == 0] {
				t.Errorf("batch %d device %d: %d readings of what hardly changes", i, dev, n)
			}
		}
		if n := column(b, metric.HostCPUBusy, -1).Measured(); n != 1 {
			t.Errorf("batch %d: %d readings of the host", i, n)
		}
	}
}

func TestWhatWasNotReadIsAbsent(t *testing.T) {
	r := newRig(t, Config{})
	r.pass(300 * time.Millisecond)
	r.now = r.now.Add(400 * time.Millisecond) // the machine was busy with something else
	r.pass(500 * time.Millisecond)
	b := r.batches()[0]
	s := column(b, metric.Power, 1)
	for i := range b.Samples {
		if _, ok := s.At(i); ok != (i < 3 || i >= 7) {
			t.Errorf("sample %d measured: %v", i, ok)
		}
	}
}

func TestFailedDeviceIsAbsentAndItsNeighbourIsNot(t *testing.T) {
	r := newRig(t, Config{Patience: 5 * time.Millisecond})
	r.pass(time.Second)
	r.sim.Inject(device.Fault{Device: 0, Kind: device.FaultHang})
	r.pass(2*time.Second + 100*time.Millisecond)
	got := r.batches()
	b := got[len(got)-1]
	if n := column(b, metric.Power, 0).Measured(); n != 0 {
		t.Errorf("%d readings of a device that does not answer", n)
	}
	if n := column(b, metric.Power, 1).Measured(); n != 10 {
		t.Errorf("%d readings of its neighbour", n)
	}
	if v, ok := column(b, metric.AgentSampleErrors, -1).At(0); !ok || v != 1 {
		t.Errorf("failed readings counted: %v %v", v, ok)
	}
}

func TestDeadBusCostsTheOldestBatchesAndTheyAreCounted(t *testing.T) {
	r := newRig(t, Config{Keep: 3})
	r.pass(2*time.Second + 100*time.Millisecond)
	r.bus.SetDown(true)
	r.pass(6 * time.Second)
	r.bus.SetDown(false)
	r.pass(2 * time.Second)
	var seqs []uint64
	got := r.batches()
	for _, b := range got {
		seqs = append(seqs, b.Seq)
	}
	if len(seqs) != 7 || seqs[1] != 2 || seqs[2] != 6 || seqs[6] != 10 {
		t.Errorf("arrived: %v; batches 3, 4 and 5 were to be given up", seqs)
	}
	if v, ok := column(got[len(got)-1], metric.AgentBatchesDropped, -1).At(0); !ok || v != 3 {
		t.Errorf("given up: %v %v", v, ok)
	}
}

func TestClockSetBackDoesNotStopSampling(t *testing.T) {
	r := newRig(t, Config{})
	r.pass(2 * time.Second)
	r.now = r.now.Add(-time.Hour)
	r.pass(2*time.Second + 100*time.Millisecond)
	got := r.batches()
	last := got[len(got)-1]
	if last.T0 > r.now.UnixNano() || column(last, metric.HostLoad1, -1).Measured() == 0 {
		t.Errorf("last batch begins at %v", time.Unix(0, last.T0))
	}
}

// helped is a provider that works through another process.
type helped struct{ *device.Sim }

func (helped) HelperCPU() time.Duration { return 3 * time.Second }

func TestHelpersAreOnTheAgentsAccount(t *testing.T) {
	r := newRig(t, Config{})
	r.s.dev = helped{r.sim}
	r.pass(time.Second + 100*time.Millisecond)
	if v, ok := column(r.batches()[0], metric.AgentCPU, -1).At(0); !ok || v != 5 {
		t.Errorf("processor time %v %v, want 2 of its own and 3 of its helper", v, ok)
	}
}

func TestSlowerCadence(t *testing.T) {
	r := newRig(t, Config{Tick: time.Second, Batch: 5 * time.Second, Host: 5 * time.Second})
	r.pass(11 * time.Second)
	got := r.batches()
	if len(got) != 2 || got[0].Samples != 5 || column(got[1], metric.Power, 0).Measured() != 5 || column(got[1], metric.HostLoad1, -1).Measured() != 1 {
		t.Errorf("%d batches: %+v", len(got), got)
	}
}

func TestHostWithoutDevices(t *testing.T) {
	b := membus.New()
	s := New(Config{Node: "n1", Epoch: "e", Files: fixture}, nil, b.Outbox(bus.StreamMetrics))
	for i := range 21 {
		if _, _, err := s.Step(context.Background(), epoch.Add(time.Duration(i)*100*time.Millisecond)); err != nil {
			t.Fatal(err)
		}
	}
	if _, seq, ok, err := b.Outbox(bus.StreamMetrics).Last(t.Context()); err != nil || !ok || seq != 2 {
		t.Errorf("%d batches: %v %v", seq, ok, err)
	}
}

func TestHostReadsTheFixture(t *testing.T) {
	v, err := fixture.Read(true)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[metric.ID]float64{
		metric.HostCPUs: 2, metric.HostCPUBusy: 16.8, metric.HostCPUIOWait: 4, metric.HostLoad1: 1.25,
		metric.HostMemoryLimit: 263856004 * 1024, metric.HostMemoryAvailable: 200000000 * 1024,
		metric.HostNetworkReceive: 5000, metric.HostNetworkTransmit: 7000,
		metric.HostDiskRead: 2048 * 512, metric.HostDiskWrite: 4096 * 512, metric.HostDiskBusy: 1.5,
		metric.HostPSICPUSome: 0.125, metric.HostPSIIOFull: 0.25, metric.HostPSIMemoryFull: 0, metric.AgentCPU: 2,
	} {
		if got, ok := v.Get(id); !ok || got != want {
			t.Errorf("%s = %v %v, want %v", metric.Of(id).Name, got, ok, want)
		}
	}
	if v, _ = fixture.Read(false); v.Len() == 0 {
		t.Error("nothing read")
	}
	if _, ok := v.Get(metric.HostMemoryLimit); ok {
		t.Error("what hardly changes is read each second")
	}
}

func TestHostSaysWhatIsMissingAndReadsTheRest(t *testing.T) {
	v, err := Host{Proc: t.TempDir(), Sys: t.TempDir()}.Read(true)
	if err == nil || !strings.Contains(err.Error(), "meminfo") {
		t.Errorf("got %v", err)
	}
	if v.Len() != 0 {
		t.Errorf("%d values from nowhere", v.Len())
	}
}

func TestThisMachine(t *testing.T) {
	v, err := Host{}.Read(true)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []metric.ID{metric.HostCPUs, metric.HostCPUBusy, metric.HostMemoryLimit, metric.AgentCPU} {
		if _, ok := v.Get(id); !ok {
			t.Errorf("no %s", metric.Of(id).Name)
		}
	}
}

// One operation is one second of a machine with eight devices at 100 ms; the budget is 0.5 % of a core, 5 ms.
func BenchmarkSecond(b *testing.B) {
	sim, err := device.NewSim("h100x8", 1)
	if err != nil {
		b.Fatal(err)
	}
	list, _, _ := sim.Inventory(b.Context())
	var uuids []string
	for _, d := range list {
		uuids = append(uuids, d.GetUuid())
	}
	sim.Use(uuids)
	s := New(Config{Node: "n1", Epoch: "e"}, sim, discard{})
	now := epoch
	b.ReportAllocs()
	for b.Loop() {
		for range 10 {
			if _, _, err := s.Step(b.Context(), now); err != nil {
				b.Fatal(err)
			}
			now = now.Add(100 * time.Millisecond)
		}
	}
	b.ReportMetric(100*b.Elapsed().Seconds()/float64(b.N), "%core")
}

type discard struct{ bus.Outbox }

func (discard) Publish(context.Context, bus.Message) (uint64, error) { return 0, nil }

package device_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/device/devicetest"
	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var epoch = time.Unix(1_700_000_000, 0)

func open(t testing.TB, profile string, seed uint64) *device.Sim {
	t.Helper()
	s, err := device.NewSim(profile, seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestContract(t *testing.T) {
	for _, profile := range []string{"a100x8", "h100x8", "v100x8", "l4x4", "a100-80g-vmx8"} {
		t.Run(profile, func(t *testing.T) {
			devicetest.Run(t, func(t *testing.T) *devicetest.Rig {
				s := open(t, profile, 1)
				now := epoch
				inject := func(k device.FaultKind) func(int) {
					return func(i int) { s.Inject(device.Fault{Device: i, Kind: k}) }
				}
				return &devicetest.Rig{
					Provider: s, Fail: inject(device.FaultFail), Hide: inject(device.FaultHide),
					Recover: inject(device.FaultRecover), Hang: inject(device.FaultHang), Patience: 50 * time.Millisecond,
					Pass: func(d time.Duration) time.Time { now = now.Add(d); return now },
				}
			})
		})
	}
}

func inventory(t testing.TB, s *device.Sim) []*weftv1.Device {
	t.Helper()
	list, _, err := s.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestProfilesLookLikeTheMachine(t *testing.T) {
	for _, c := range []struct {
		profile, model           string
		cliques, switches, numas int
		unknownNUMA              bool
	}{
		{"a100x8", "A100-80G", 1, 4, 2, false},
		{"a100-40gx4", "A100-40G", 1, 2, 2, false},
		{"h100-80gx8", "H100-80G", 1, 4, 2, false},
		{"v100x8", "V100-32G", 2, 4, 2, false},
		{"l4x4", "L4-24G", 0, 4, 2, false},
		{"a100-80g-vmx8", "A100-80G", 1, 0, 0, true},
		{"a100x1", "A100-80G", 0, 1, 1, false},
		{"h100x16", "H100-80G", 2, 8, 2, false},
	} {
		cliques, switches, numas := map[uint32]bool{}, map[string]bool{}, map[int32]bool{}
		for _, d := range inventory(t, open(t, c.profile, 1)) {
			if d.GetModel() != c.model {
				t.Errorf("%s: model %s", c.profile, d.GetModel())
			}
			if d.GetClique() != 0 {
				cliques[d.GetClique()] = true
			}
			if d.GetPcieSwitch() != "" {
				switches[d.GetPcieSwitch()] = true
			}
			if d.GetNuma() >= 0 {
				numas[d.GetNuma()] = true
			} else if !c.unknownNUMA {
				t.Errorf("%s: unknown NUMA node", c.profile)
			}
		}
		if len(cliques) != c.cliques || len(switches) != c.switches || len(numas) != c.numas {
			t.Errorf("%s: %d cliques, %d switches, %d NUMA nodes", c.profile, len(cliques), len(switches), len(numas))
		}
	}
}

func TestProfileErrorsSayWhatToWrite(t *testing.T) {
	for _, bad := range []string{"", "a100", "b300x8", "a100x0", "a100x17", "a100xx", "x8"} {
		if _, err := device.NewSim(bad, 1); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// history drives a machine by a drawn script and returns everything it said.
func history(t testing.TB, seed uint64, faults []device.Fault, steps []int64) (out []any) {
	s := open(t, "h100x4", seed)
	s.Script(faults...)
	list := inventory(t, s)
	now := epoch
	for i, d := range steps {
		now = now.Add(time.Duration(d) * time.Millisecond)
		if i == len(steps)/2 {
			s.Use([]string{list[0].GetUuid(), list[3].GetUuid()})
		}
		samples, err := s.Sample(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		events, err := s.Events(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, samples, events)
	}
	for _, d := range inventory(t, s) {
		b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(d)
		out = append(out, b)
	}
	return out
}

func TestSameSeedSameHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		steps := rapid.SliceOfN(rapid.Int64Range(1, 5000), 1, 30).Draw(rt, "steps")
		faults := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) device.Fault {
			return device.Fault{After: time.Duration(rapid.Int64Range(0, 60_000).Draw(t, "after")) * time.Millisecond,
				Device: rapid.IntRange(0, 3).Draw(t, "device"),
				Kind:   rapid.SampledFrom([]device.FaultKind{device.FaultFail, device.FaultRecover, device.FaultHide, device.FaultNote}).Draw(t, "kind")}
		}), 0, 8).Draw(rt, "faults")
		if a, b := history(t, seed, faults, steps), history(t, seed, faults, steps); !reflect.DeepEqual(a, b) {
			rt.Fatal("the same calls gave another history")
		}
		if a, b := inventory(t, open(t, "h100x4", seed)), inventory(t, open(t, "h100x4", seed+1)); a[0].GetUuid() == b[0].GetUuid() {
			rt.Fatal("two machines share a device")
		}
	})
}

func TestLoadFollowsUse(t *testing.T) {
	s := open(t, "h100x8", 7)
	list := inventory(t, s)
	busy, idle := list[2].GetUuid(), list[5].GetUuid()
	device.Use(s, []string{busy})
	var sm, power, rx map[string]float64
	last := map[string]device.Sample{}
	sums := func() { sm, power = map[string]float64{}, map[string]float64{} }
	sums()
	const ticks = 600
	var util [2]float64
	for i := range ticks {
		got, err := s.Sample(t.Context(), epoch.Add(time.Duration(i)*100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range got {
			v, _ := x.Values.Get(metric.SMActive)
			w, _ := x.Values.Get(metric.Power)
			sm[x.UUID] += v / ticks
			power[x.UUID] += w / ticks
			if u, ok := x.Values.Get(metric.Utilization); ok && x.UUID == busy {
				util[0], util[1] = util[0]+u, util[1]+1
			}
			last[x.UUID] = x
		}
	}
	if util[1] < 55 || util[1] > 70 {
		t.Errorf("utilization was measured %v times in a minute: it changes once a second", util[1])
	}
	if sm[busy] < 0.6 || sm[idle] != 0 || power[busy] < 400 || power[idle] > 100 || util[0]/util[1] < 0.8 {
		t.Errorf("busy: SM %.2f, %.0f W, utilization %.2f; idle: SM %.2f, %.0f W", sm[busy], power[busy], util[0]/util[1], sm[idle], power[idle])
	}
	rx = map[string]float64{}
	for u, x := range last {
		rx[u], _ = x.Values.Get(metric.PCIeReceive)
		if m, _ := x.Values.Get(metric.MemoryUsage); u == busy && m < 50<<30 || u == idle && m > 1<<30 {
			t.Errorf("%s holds %.1f GiB", u, m/(1<<30))
		}
	}
	if rx[busy] < 1e10 || rx[idle] > 1e6 {
		t.Errorf("received %g and %g bytes", rx[busy], rx[idle])
	}
	s.Use(nil)
	got, err := s.Sample(t.Context(), epoch.Add(2*time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range got {
		if m, _ := x.Values.Get(metric.MemoryUsage); m > 1<<30 {
			t.Errorf("%s still holds %.1f GiB after its release", x.UUID, m/(1<<30))
		}
	}
}

func TestWhatTheHardwareCannotMeasureIsAbsent(t *testing.T) {
	s := open(t, "a100x8", 1)
	got, err := s.Sample(t.Context(), epoch)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range got {
		if _, ok := x.Values.Get(metric.TensorActive); ok {
			t.Fatal("an A100 has no activity counters without the profiling lock; it must not report 0")
		}
	}
	s = open(t, "l4x2", 1)
	got, _ = s.Sample(t.Context(), epoch)
	for _, x := range got {
		if _, ok := x.Values.Get(metric.NVLinkTransmit); ok {
			t.Fatal("a card without NVLink counts its bytes")
		}
	}
}

func TestScriptedFaultsComeInTheirTime(t *testing.T) {
	s := open(t, "a100x4", 1)
	s.Script(
		device.Fault{After: 2 * time.Second, Kind: device.FaultFail, Device: 1, XID: 79, Reason: "fallen off the bus"},
		device.Fault{After: time.Second, Kind: device.FaultNote, Device: 0, XID: 94},
		device.Fault{After: 4 * time.Second, Kind: device.FaultRecover, Device: 1},
		device.Fault{After: 3 * time.Second, Kind: device.FaultHide, Device: 2},
		device.Fault{After: 3500 * time.Millisecond, Kind: device.FaultRecover, Device: 2},
	)
	list := inventory(t, s)
	var got []string
	for i := range 50 {
		now := epoch.Add(time.Duration(i) * 100 * time.Millisecond)
		events, err := s.Events(t.Context(), now)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			for j, d := range list {
				if d.GetUuid() == e.UUID {
					got = append(got, fmt.Sprintf("%.1fs %s %d %d", e.At.Sub(epoch).Seconds(), e.Kind, j, e.XID))
				}
			}
		}
	}
	want := []string{"1.0s noted 0 94", "2.0s failed 1 79", "3.0s failed 2 0", "3.5s recovered 2 0", "4.0s recovered 1 0"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	select {
	case <-s.Wake():
	default:
		t.Error("events did not wake anybody")
	}
}

func TestCloseEndsACallThatNeverReturns(t *testing.T) {
	s := open(t, "a100x2", 1)
	s.Inject(device.Fault{Device: 0, Kind: device.FaultHang})
	done := make(chan error)
	go func() {
		_, err := s.Sample(context.Background(), epoch)
		done <- err
	}()
	_ = s.Close()
	if err := <-done; !errors.Is(err, device.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// Package devicetest is the contract of device.Provider: every adapter, real or simulated, passes it.
package devicetest

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Rig is a provider under test with what makes its hardware misbehave; a nil function is a fault that the rig cannot
// make, and its tests are skipped. Devices are named by their position in the inventory.
type Rig struct {
	Provider device.Provider
	Fail     func(i int) // reports a fatal error
	Hide     func(i int) // vanishes from the driver
	Recover  func(i int) // whatever was wrong is over
	Hang     func(i int) // the next call that touches it never returns
	// Pass lets d go by, for the hardware and for the provider, and returns the time now.
	Pass func(d time.Duration) time.Time
	// Patience is the deadline that tests give a call; real time is spent only by calls that hang.
	Patience time.Duration
}

// Run runs the suite; open makes a fresh rig with at least two devices.
func Run(t *testing.T, open func(t *testing.T) *Rig) {
	for name, f := range map[string]func(*testing.T, *Rig){
		"Identity": identity, "StableInventory": stable, "Samples": samples, "Counters": counters,
		"Fail": failure, "Hide": hidden, "Hang": hang, "Cancelled": cancelled, "Close": closing,
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			t.Cleanup(func() { _ = r.Provider.Close() })
			f(t, r)
		})
	}
}

func (r *Rig) context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), r.Patience)
	t.Cleanup(cancel)
	return ctx
}

func (r *Rig) inventory(t *testing.T) []*weftv1.Device {
	t.Helper()
	list, driver, err := r.Provider.Inventory(r.context(t))
	if err != nil {
		t.Fatalf("Inventory: %v", err)
	}
	if driver == "" {
		t.Error("Inventory names no driver version")
	}
	return list
}

func (r *Rig) sample(t *testing.T) map[string]device.Sample {
	t.Helper()
	list, err := r.Provider.Sample(r.context(t), r.Pass(time.Second))
	if err != nil {
		t.Fatalf("Sample: %v", err)
	}
	out := map[string]device.Sample{}
	for _, s := range list {
		if _, twice := out[s.UUID]; twice {
			t.Errorf("two samples of %s in one reading", s.UUID)
		}
		out[s.UUID] = s
	}
	return out
}

// until reads events, and samples meanwhile (which is how some adapters notice), until ok or too many turns.
func (r *Rig) until(t *testing.T, what string, ok func(device.Event) bool) device.Event {
	t.Helper()
	for range 200 {
		now := r.Pass(time.Second)
		_, _ = r.Provider.Sample(r.context(t), now)
		list, err := r.Provider.Events(r.context(t), now)
		if err != nil {
			t.Fatalf("Events: %v", err)
		}
		for _, e := range list {
			if ok(e) {
				return e
			}
		}
	}
	t.Fatalf("no event: %s", what)
	return device.Event{}
}

func is(uuid string, kind device.EventKind) func(device.Event) bool {
	return func(e device.Event) bool { return e.UUID == uuid && e.Kind == kind }
}

var pci = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

func identity(t *testing.T, r *Rig) {
	list := r.inventory(t)
	if len(list) < 2 {
		t.Fatalf("%d devices; the suite needs two", len(list))
	}
	uuids, pcis, minors := map[string]bool{}, map[string]bool{}, map[uint32]bool{}
	for i, d := range list {
		if d.GetUuid() == "" || d.GetModel() == "" || d.GetMemoryBytes() <= 0 || !pci.MatchString(d.GetPci()) || d.GetNuma() < -1 {
			t.Errorf("device %d: %v", i, d)
		}
		if d.GetHealth() != weftv1.DeviceHealth_DEVICE_HEALTH_OK {
			t.Errorf("device %d of a sound machine is %v: %s", i, d.GetHealth(), d.GetHealthReason())
		}
		if i > 0 && list[i-1].GetPci() >= d.GetPci() {
			t.Errorf("not ordered by PCI address: %s before %s", list[i-1].GetPci(), d.GetPci())
		}
		uuids[d.GetUuid()], pcis[d.GetPci()], minors[d.GetMinor()] = true, true, true
	}
	if len(uuids) != len(list) || len(pcis) != len(list) || len(minors) != len(list) {
		t.Errorf("%d devices have %d UUIDs, %d PCI addresses, %d minors", len(list), len(uuids), len(pcis), len(minors))
	}
}

// same compares what placements rely on.
func same(t *testing.T, before, after []*weftv1.Device) {
	t.Helper()
	if len(before) != len(after) {
		t.Fatalf("%d devices, before %d", len(after), len(before))
	}
	for i := range before {
		if before[i].GetUuid() != after[i].GetUuid() || before[i].GetPci() != after[i].GetPci() || before[i].GetMinor() != after[i].GetMinor() {
			t.Errorf("device %d was %s at %s and is %s at %s", i, before[i].GetUuid(), before[i].GetPci(), after[i].GetUuid(), after[i].GetPci())
		}
	}
}

func stable(t *testing.T, r *Rig) {
	before := r.inventory(t)
	r.sample(t)
	same(t, before, r.inventory(t))
}

func samples(t *testing.T, r *Rig) {
	list := r.inventory(t)
	got := r.sample(t)
	for _, d := range list {
		s, ok := got[d.GetUuid()]
		if !ok {
			t.Errorf("no sample of %s", d.GetUuid())
			continue
		}
		if s.At.IsZero() {
			t.Errorf("%s: a sample without its time", d.GetUuid())
		}
		used, ok := s.Values.Get(metric.MemoryUsage)
		if !ok || used < 0 || used > float64(d.GetMemoryBytes()) {
			t.Errorf("%s: memory in use %v %v of %d", d.GetUuid(), used, ok, d.GetMemoryBytes())
		}
		for id := range metric.Count {
			v, ok := s.Values.Get(metric.ID(id))
			def := metric.Of(metric.ID(id))
			switch {
			case !ok:
			case def.Scope != metric.Device:
				t.Errorf("%s: a device measured %s", d.GetUuid(), def.Name)
			case v < 0 || v > 1e18 || def.Unit == "1" && def.Scale < 1 && v > 1:
				t.Errorf("%s: %s = %g is out of range", d.GetUuid(), def.Name, v)
			}
		}
	}
}

func counters(t *testing.T, r *Rig) {
	before := r.sample(t)
	for range 5 {
		after := r.sample(t)
		for uuid, s := range after {
			for id := range metric.DeviceMetrics {
				now, ok1 := s.Values.Get(metric.ID(id))
				b := before[uuid]
				was, ok2 := b.Values.Get(metric.ID(id))
				if def := metric.Of(metric.ID(id)); ok1 && ok2 && def.Kind == metric.Counter && now < was {
					t.Errorf("%s: %s fell from %g to %g", uuid, def.Name, was, now)
				}
			}
		}
		before = after
	}
}

// broken checks that device i is failed with a reason and the others untouched.
func (r *Rig) broken(t *testing.T, before []*weftv1.Device, i int) {
	t.Helper()
	after := r.inventory(t)
	same(t, before, after)
	for j, d := range after {
		failed := d.GetHealth() == weftv1.DeviceHealth_DEVICE_HEALTH_FAILED
		if failed != (j == i) || failed && d.GetHealthReason() == "" {
			t.Errorf("device %d: %v %q while %d is broken", j, d.GetHealth(), d.GetHealthReason(), i)
		}
	}
	got := r.sample(t)
	for j, d := range before {
		if _, ok := got[d.GetUuid()]; ok != (j != i) {
			t.Errorf("device %d: sampled %v while %d is broken", j, ok, i)
		}
	}
}

func (r *Rig) healed(t *testing.T, before []*weftv1.Device, i int) {
	t.Helper()
	if r.Recover == nil {
		return
	}
	r.Recover(i)
	r.until(t, "recovered", is(before[i].GetUuid(), device.Recovered))
	after := r.inventory(t)
	same(t, before, after)
	if after[i].GetHealth() != weftv1.DeviceHealth_DEVICE_HEALTH_OK || after[i].GetHealthReason() != "" {
		t.Errorf("recovered device is %v %q", after[i].GetHealth(), after[i].GetHealthReason())
	}
	if _, ok := r.sample(t)[before[i].GetUuid()]; !ok {
		t.Error("recovered device is not sampled")
	}
}

func failure(t *testing.T, r *Rig) {
	if r.Fail == nil {
		t.Skip("this rig cannot make a device fail")
	}
	before := r.inventory(t)
	r.sample(t)
	r.Fail(1)
	e := r.until(t, "failed", is(before[1].GetUuid(), device.Failed))
	if e.Reason == "" || e.At.IsZero() {
		t.Errorf("event %+v lacks reason or time", e)
	}
	r.broken(t, before, 1)
	r.healed(t, before, 1)
}

func hidden(t *testing.T, r *Rig) {
	if r.Hide == nil {
		t.Skip("this rig cannot hide a device")
	}
	before := r.inventory(t)
	r.sample(t)
	r.Hide(0)
	r.until(t, "missing", is(before[0].GetUuid(), device.Failed))
	r.broken(t, before, 0)
	r.healed(t, before, 0)
}

func hang(t *testing.T, r *Rig) {
	if r.Hang == nil {
		t.Skip("this rig cannot make a call hang")
	}
	before := r.inventory(t)
	r.sample(t)
	r.Hang(1)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), r.Patience)
	defer cancel()
	_, err := r.Provider.Sample(ctx, r.Pass(time.Second))
	if spent := time.Since(began); spent > 4*r.Patience {
		t.Errorf("a call with %v to live took %v", r.Patience, spent)
	}
	if !errors.Is(err, device.ErrHung) {
		t.Errorf("a call that never returned gave %v, want ErrHung", err)
	}
	r.until(t, "failed", is(before[1].GetUuid(), device.Failed))
	r.broken(t, before, 1)
	r.healed(t, before, 1)
}

func cancelled(t *testing.T, r *Rig) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Provider.Sample(ctx, r.Pass(time.Second)); err == nil {
		t.Error("Sample with an ended context succeeded")
	}
	if _, _, err := r.Provider.Inventory(ctx); err == nil {
		t.Error("Inventory with an ended context succeeded")
	}
	r.sample(t) // and the provider still works
}

func closing(t *testing.T, r *Rig) {
	if err := r.Provider.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Provider.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if _, err := r.Provider.Sample(r.context(t), r.Pass(time.Second)); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Sample after Close: %v", err)
	}
	if _, _, err := r.Provider.Inventory(r.context(t)); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Inventory after Close: %v", err)
	}
	if _, err := r.Provider.Events(r.context(t), r.Pass(time.Second)); !errors.Is(err, device.ErrClosed) {
		t.Errorf("Events after Close: %v", err)
	}
}

//go:build cgo && linux && !nonvml

package nvml

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/device/devicetest"
	"github.com/weft-fabric/weft/libs/metric"
)

func TestMain(m *testing.M) {
	MaybeChild() // the test's own binary is the child
	os.Exit(m.Run())
}

var compiled sync.Map

// stub compiles the stand-in library, once for each set of flags.
func stub(t *testing.T, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is not installed; the library's stand-in cannot be compiled")
	}
	key := strings.Join(flags, " ")
	build, _ := compiled.LoadOrStore(key, sync.OnceValues(func() (string, error) {
		dir, err := os.MkdirTemp("", "nvmlstub")
		if err != nil {
			return "", err
		}
		lib := filepath.Join(dir, "libnvidia-ml.so.1")
		out, err := exec.Command(gcc, append(flags, "-shared", "-fPIC", "-O1", "-o", lib, "testdata/stub.c")...).CombinedOutput()
		if err != nil {
			return "", errors.New(string(out))
		}
		return lib, nil
	}))
	lib, err := build.(func() (string, error))()
	if err != nil {
		t.Fatalf("compile the stand-in: %v", err)
	}
	return lib
}

// machine is the stand-in's hardware.
type machine struct {
	t    *testing.T
	path string
}

func newMachine(t *testing.T, states string) *machine {
	m := &machine{t, filepath.Join(t.TempDir(), "state")}
	m.set(states)
	t.Setenv("WEFT_NVMLSTUB", m.path)
	return m
}

func (m *machine) set(states string) {
	// Renamed into place: the library must never see half of it.
	if err := os.WriteFile(m.path+".new", []byte(states), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(m.path+".new", m.path); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) put(i int, state byte) {
	b, err := os.ReadFile(m.path)
	if err != nil {
		m.t.Fatal(err)
	}
	b[i] = state
	m.set(string(b))
}

func options(t *testing.T, lib string) Options {
	return Options{Library: lib, SysRoot: t.TempDir(), CallDeadline: 400 * time.Millisecond, OpenDeadline: 10 * time.Second}
}

func open(t *testing.T, o Options) *Provider {
	t.Helper()
	p, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func TestContract(t *testing.T) {
	lib := stub(t)
	devicetest.Run(t, func(t *testing.T) *devicetest.Rig {
		m := newMachine(t, "oooo")
		now := time.Unix(1_700_000_000, 0)
		return &devicetest.Rig{
			Provider: open(t, options(t, lib)), Patience: 10 * time.Second,
			Fail: func(i int) { m.put(i, 'l') }, Hide: func(i int) { m.put(i, 'x') },
			Hang: func(i int) { m.put(i, 'h') }, Recover: func(i int) { m.put(i, 'o') },
			Pass: func(d time.Duration) time.Time { now = now.Add(d); return now },
		}
	})
}

func TestRealPathReadsWhatTheLibrarySays(t *testing.T) {
	newMachine(t, "oooo")
	p := open(t, options(t, stub(t)))
	list, driver, err := p.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if driver != "580.65.06" || len(list) != 4 {
		t.Fatalf("driver %q, %d devices", driver, len(list))
	}
	d := list[1]
	if d.GetPci() != "0000:0f:00.0" || d.GetMinor() != 6 || d.GetModel() != "A100-80G" || !d.GetMigCapable() || d.GetNuma() != -1 || d.GetPcieSwitch() != "" {
		t.Errorf("device 1: %v", d)
	}
	var cliques []uint32
	for _, d := range list {
		cliques = append(cliques, d.GetClique())
	}
	if want := []uint32{1, 1, 2, 2}; cliques[0] != want[0] || cliques[1] != want[1] || cliques[2] != want[2] || cliques[3] != want[3] {
		t.Errorf("cliques %v: a chain of four is not a clique", cliques)
	}
	samples, err := p.Sample(t.Context(), time.Unix(1_700_000_000, 0))
	if err != nil || len(samples) != 4 {
		t.Fatalf("%d samples, %v", len(samples), err)
	}
	v := samples[0].Values
	for id, want := range map[metric.ID]float64{
		metric.MemoryUsage: 3 << 30, metric.MemoryLimit: 80 << 30, metric.Power: 312.5, metric.PowerLimit: 400, metric.Temperature: 41,
		metric.Utilization: 0.37, metric.SMClock: 1410e6, metric.NVLinkLinks: 11, metric.ErrorsUncorrected: 0, metric.RecoveryAction: 0,
	} {
		if got, ok := v.Get(id); !ok || got != want {
			t.Errorf("%s = %v %v, want %v", metric.Of(id).Name, got, ok, want)
		}
	}
	for _, id := range []metric.ID{metric.PCIeReceive, metric.ThrottleSWPower, metric.SMActive} {
		if got, ok := v.Get(id); ok {
			t.Errorf("%s = %v: blank, refused or unsupported must be absent", metric.Of(id).Name, got)
		}
	}
}

func TestOldLibraryLacksFunctionsAndTheChildLives(t *testing.T) {
	newMachine(t, "oo")
	p := open(t, options(t, stub(t, "-DOLD")))
	samples, err := p.Sample(t.Context(), time.Unix(1_700_000_000, 0))
	if err != nil || len(samples) != 2 {
		t.Fatalf("%d samples, %v", len(samples), err)
	}
	if used, _ := samples[0].Values.Get(metric.MemoryUsage); used != 1<<30 {
		t.Errorf("memory in use %v: the first version of the call was not used", used)
	}
	if _, ok := samples[0].Values.Get(metric.Power); ok {
		t.Error("a value out of a call that does not exist")
	}
}

func TestNoLibraryIsOneCleanMessageWithACure(t *testing.T) {
	o := options(t, filepath.Join(t.TempDir(), "libnvidia-ml.so.1"))
	_, err := Open(t.Context(), o)
	if !errors.Is(err, device.ErrNoLibrary) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "install") {
		t.Fatalf("got %v", err)
	}
}

func TestNoDriverIsOneCleanMessageWithACure(t *testing.T) {
	t.Setenv("WEFT_NVMLSTUB", "")
	if err := os.Unsetenv("WEFT_NVMLSTUB"); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), options(t, stub(t)))
	if !errors.Is(err, device.ErrNoLibrary) || !strings.Contains(err.Error(), "module nvidia") {
		t.Fatalf("got %v", err)
	}
}

// A library that ends its process ends the child; the agent blames the device, and the others go on.
func TestChildThatEndsCostsOneDevice(t *testing.T) {
	m := newMachine(t, "ooo")
	p := open(t, options(t, stub(t)))
	now := time.Unix(1_700_000_000, 0)
	if _, err := p.Sample(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	m.put(1, 'c')
	failed := false
	spent := p.HelperCPU()
	for range 20 {
		now = now.Add(time.Second)
		if s := p.HelperCPU(); s < spent {
			t.Errorf("processor time of the children fell from %v to %v", spent, s)
		} else {
			spent = s
		}
		samples, err := p.Sample(t.Context(), now)
		if err == nil && len(samples) == 2 {
			failed = true
			break
		}
		if err != nil && !failed && !strings.Contains(err.Error(), "nvmlStub") && !strings.Contains(err.Error(), "does not answer") && !errors.Is(err, errDied) && !errors.Is(err, device.ErrHung) && !errors.Is(err, device.ErrNoLibrary) {
			t.Errorf("error without what the child said: %v", err)
		}
	}
	if !failed {
		t.Fatal("the two others were never sampled again")
	}
	list, _, err := p.Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if list[1].GetHealthReason() == "" || list[0].GetHealthReason() != "" {
		t.Errorf("blamed %q and %q", list[0].GetHealthReason(), list[1].GetHealthReason())
	}
}

func TestOrdinaryXIDIsNotedOnly(t *testing.T) {
	m := newMachine(t, "oo")
	p := open(t, options(t, stub(t)))
	m.put(0, 'n')
	select {
	case <-p.Wake():
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
	}
	events, err := p.Events(t.Context(), time.Unix(1_700_000_000, 0))
	if err != nil || len(events) != 1 || events[0].Kind != device.Noted || events[0].XID != 31 {
		t.Fatalf("%+v %v", events, err)
	}
	if list, _, _ := p.Inventory(t.Context()); list[0].GetHealthReason() != "" {
		t.Errorf("a program's fault failed the device: %s", list[0].GetHealthReason())
	}
}

func TestPlaceComesFromSysfs(t *testing.T) {
	newMachine(t, "oo")
	o := options(t, stub(t))
	dir := filepath.Join(o.SysRoot, "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:04.0/0000:07:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(o.SysRoot, "bus/pci/devices"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "numa_node"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(o.SysRoot, "bus/pci/devices/0000:07:00.0")); err != nil {
		t.Fatal(err)
	}
	list, _, err := open(t, o).Inventory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if list[0].GetNuma() != 1 || list[0].GetPcieSwitch() != "0000:01:00.0" || list[1].GetNuma() != -1 {
		t.Errorf("places: %d %q, %d %q", list[0].GetNuma(), list[0].GetPcieSwitch(), list[1].GetNuma(), list[1].GetPcieSwitch())
	}
}

func TestOpenGivesUpWithItsContext(t *testing.T) {
	newMachine(t, "ho")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	o := options(t, stub(t))
	o.CallDeadline = 300 * time.Millisecond
	if _, err := Open(ctx, o); !errors.Is(err, device.ErrHung) {
		t.Fatalf("got %v", err)
	}
}

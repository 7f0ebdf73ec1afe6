package sample

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weft-fabric/weft/libs/metric"
)

// Host reads a machine's counters from proc and sysfs under any root.
type Host struct {
	Proc string // empty = /proc
	Sys  string // empty = /sys
}

// ticksPerSecond is USER_HZ, which is 100 on every architecture that Linux runs accelerators on.
const ticksPerSecond = 100

const sectorBytes = 512

// Read measures what it can; err tells what could not be read, and v holds the rest. With slow it also reads what hardly
// ever changes.
func (h Host) Read(slow bool) (v metric.Values, err error) {
	if h.Proc == "" {
		h.Proc = "/proc"
	}
	if h.Sys == "" {
		h.Sys = "/sys"
	}
	parts := []func(*metric.Values) error{h.cpu, h.load, h.memory, h.network, h.disks, h.pressure, h.self}
	var errs []error
	for _, part := range parts {
		errs = append(errs, part(&v))
	}
	if !slow {
		v.Clear(metric.HostCPUs)
		v.Clear(metric.HostMemoryLimit)
	}
	return v, errors.Join(errs...)
}

func (h Host) file(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(h.Proc, name))
}

func numbers(words []string) ([]float64, error) {
	out := make([]float64, len(words))
	for i, w := range words {
		n, err := strconv.ParseFloat(w, 64)
		if err != nil {
			return nil, fmt.Errorf("sample: %w", err)
		}
		out[i] = n
	}
	return out, nil
}

func malformed(name string) error { return fmt.Errorf("sample: %s is not as expected", name) }

func (h Host) cpu(v *metric.Values) error {
	b, err := h.file("stat")
	if err != nil {
		return err
	}
	cpus := 0
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) < 6 || !strings.HasPrefix(w[0], "cpu") {
			continue
		}
		if w[0] != "cpu" {
			cpus++
			continue
		}
		n, err := numbers(w[1:])
		if err != nil {
			return err
		}
		// user nice system idle iowait irq softirq steal; guest time is in user already.
		busy := n[0] + n[1] + n[2]
		for _, x := range n[5:min(8, len(n))] {
			busy += x
		}
		v.Set(metric.HostCPUBusy, busy/ticksPerSecond)
		v.Set(metric.HostCPUIOWait, n[4]/ticksPerSecond)
	}
	if cpus == 0 {
		return malformed("stat")
	}
	v.Set(metric.HostCPUs, float64(cpus))
	return nil
}

func (h Host) load(v *metric.Values) error {
	b, err := h.file("loadavg")
	if err != nil {
		return err
	}
	w := strings.Fields(string(b))
	if len(w) == 0 {
		return malformed("loadavg")
	}
	n, err := numbers(w[:1])
	if err != nil {
		return err
	}
	v.Set(metric.HostLoad1, n[0])
	return nil
}

func (h Host) memory(v *metric.Values) error {
	b, err := h.file("meminfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) < 2 {
			continue
		}
		id := metric.HostMemoryAvailable
		switch w[0] {
		case "MemTotal:":
			id = metric.HostMemoryLimit
		case "MemAvailable:":
		default:
			continue
		}
		n, err := numbers(w[1:2])
		if err != nil {
			return err
		}
		v.Set(id, n[0]*1024)
	}
	return nil
}

// network sums the interfaces with hardware behind them; bonds, bridges and tunnels would count the same bytes again. A
// container sees no hardware: there everything but loopback counts.
func (h Host) network(v *metric.Values) error {
	b, err := h.file("net/dev")
	if err != nil {
		return err
	}
	type count struct{ rx, tx float64 }
	var all, hardware count
	found := false
	for line := range strings.Lines(string(b)) {
		name, rest, ok := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		if !ok || name == "lo" {
			continue
		}
		w := strings.Fields(rest)
		if len(w) < 9 {
			return malformed("net/dev")
		}
		n, err := numbers([]string{w[0], w[8]})
		if err != nil {
			return err
		}
		all.rx, all.tx = all.rx+n[0], all.tx+n[1]
		if h.exists("class/net", name, "device") {
			hardware.rx, hardware.tx, found = hardware.rx+n[0], hardware.tx+n[1], true
		}
	}
	if found {
		all = hardware
	}
	v.Set(metric.HostNetworkReceive, all.rx)
	v.Set(metric.HostNetworkTransmit, all.tx)
	return nil
}

func (h Host) exists(parts ...string) bool {
	_, err := os.Stat(filepath.Join(append([]string{h.Sys}, parts...)...))
	return err == nil
}

// disks sums whole disks with hardware behind them; without one the values are absent.
func (h Host) disks(v *metric.Values) error {
	b, err := h.file("diskstats")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var read, written, busy float64
	found := false
	for line := range strings.Lines(string(b)) {
		w := strings.Fields(line)
		if len(w) < 13 || !h.exists("block", w[2], "device") {
			continue
		}
		n, err := numbers([]string{w[5], w[9], w[12]})
		if err != nil {
			return err
		}
		read, written, busy, found = read+n[0], written+n[1], busy+n[2], true
	}
	if found {
		v.Set(metric.HostDiskRead, read*sectorBytes)
		v.Set(metric.HostDiskWrite, written*sectorBytes)
		v.Set(metric.HostDiskBusy, busy/1000)
	}
	return nil
}

// pressure reads the stall information; kernels without it have none.
func (h Host) pressure(v *metric.Values) error {
	for _, p := range []struct {
		file, line string
		id         metric.ID
	}{
		{"pressure/cpu", "some", metric.HostPSICPUSome},
		{"pressure/io", "full", metric.HostPSIIOFull},
		{"pressure/memory", "full", metric.HostPSIMemoryFull},
	} {
		b, err := h.file(p.file)
		if err != nil {
			continue // absent, or switched off by the kernel's command line
		}
		for line := range strings.Lines(string(b)) {
			rest, ok := strings.CutPrefix(line, p.line+" avg10=")
			if !ok {
				continue
			}
			n, err := numbers(strings.Fields(rest)[:1])
			if err != nil {
				return err
			}
			v.Set(p.id, n[0]/100)
		}
	}
	return nil
}

// self measures this process.
func (h Host) self(v *metric.Values) error {
	b, err := h.file("self/stat")
	if err != nil {
		return err
	}
	// The second field is the program's name in parentheses, which may hold anything.
	w := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(w) < 13 {
		return malformed("self/stat")
	}
	n, err := numbers(w[11:13])
	if err != nil {
		return err
	}
	v.Set(metric.AgentCPU, (n[0]+n[1])/ticksPerSecond)
	return nil
}

package device

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// Profile describes a simulated machine's accelerators.
type Profile struct {
	Name        string
	Model       string // canonical, such as A100-80G
	MemoryBytes int64
	Driver      string
	Count       int
	Form        Form
	CliqueSize  int // devices joined by NVLink; 0 = no NVLink
	Links       int // NVLink links of one device
	MIG         bool
	Activity    bool // SM, tensor and memory activity can be read (Hopper and newer)
	IdleWatts   float64
	MaxWatts    float64
	SMClock     float64 // Hz under load
	MemoryClock float64
}

// Form is how the machine is built.
type Form uint8

// The forms of machines.
const (
	Board Form = iota // an SXM board: two devices to a PCIe switch, two sockets
	Cards             // PCIe cards, each on a root port of its own, two sockets
	Guest             // a virtual machine with a flat PCI tree: NUMA and switches unknown
)

const gib = int64(1) << 30

var models = map[string]Profile{
	"v100-32g":    {Model: "V100-32G", MemoryBytes: 32 * gib, Driver: "570.172.08", CliqueSize: 4, Links: 6, IdleWatts: 42, MaxWatts: 300, SMClock: 1.53e9, MemoryClock: 877e6},
	"a100-40g":    {Model: "A100-40G", MemoryBytes: 40 * gib, Driver: "580.65.06", CliqueSize: 8, Links: 12, MIG: true, IdleWatts: 52, MaxWatts: 400, SMClock: 1.41e9, MemoryClock: 1215e6},
	"a100-80g":    {Model: "A100-80G", MemoryBytes: 80 * gib, Driver: "580.65.06", CliqueSize: 8, Links: 12, MIG: true, IdleWatts: 61, MaxWatts: 400, SMClock: 1.41e9, MemoryClock: 1593e6},
	"a100-80g-vm": {Model: "A100-80G", MemoryBytes: 80 * gib, Driver: "580.65.06", Form: Guest, CliqueSize: 8, Links: 12, MIG: true, IdleWatts: 61, MaxWatts: 400, SMClock: 1.41e9, MemoryClock: 1593e6},
	"h100-80g":    {Model: "H100-80G", MemoryBytes: 80 * gib, Driver: "580.65.06", CliqueSize: 8, Links: 18, MIG: true, Activity: true, IdleWatts: 70, MaxWatts: 700, SMClock: 1.98e9, MemoryClock: 2619e6},
	"h200-141g":   {Model: "H200-141G", MemoryBytes: 141 * gib, Driver: "580.65.06", CliqueSize: 8, Links: 18, MIG: true, Activity: true, IdleWatts: 75, MaxWatts: 700, SMClock: 1.98e9, MemoryClock: 3201e6},
	"l4":          {Model: "L4-24G", MemoryBytes: 24 * gib, Driver: "580.65.06", Form: Cards, IdleWatts: 16, MaxWatts: 72, SMClock: 2.04e9, MemoryClock: 6251e6},
}

var aliases = map[string]string{"v100": "v100-32g", "a100": "a100-80g", "h100": "h100-80g", "h200": "h200-141g", "l4-24g": "l4"}

// maxSimulated is the largest machine that the simulator builds.
const maxSimulated = 16

// Models returns what a profile's name may begin with.
func Models() []string {
	names := make([]string, 0, len(models))
	for n := range models {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// ParseProfile reads a profile's name, MODELxCOUNT: a100-80gx8, a100x8 (the same), a100-40gx4, h100x8, v100x8, l4x4,
// a100-80g-vmx8.
func ParseProfile(name string) (Profile, error) {
	cut := strings.LastIndexByte(name, 'x')
	if cut < 0 {
		return Profile{}, fmt.Errorf("device: profile %q: write MODELxCOUNT, such as a100x8; models are %s", name, strings.Join(Models(), ", "))
	}
	model, count := strings.ToLower(name[:cut]), name[cut+1:]
	if full, ok := aliases[model]; ok {
		model = full
	}
	p, ok := models[model]
	if !ok {
		return Profile{}, fmt.Errorf("device: profile %q: no model %q; there are %s", name, model, strings.Join(Models(), ", "))
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 1 || n > maxSimulated {
		return Profile{}, fmt.Errorf("device: profile %q: count %q must be a number from 1 to %d", name, count, maxSimulated)
	}
	p.Name, p.Count = fmt.Sprintf("%sx%d", model, n), n
	return p, nil
}

// Buses of known machines, in the order of their PCI addresses; bigger machines go on from there.
var boardBuses = []int{0x07, 0x0f, 0x47, 0x4e, 0x87, 0x90, 0xb7, 0xbd}

// bus returns the PCI bus of the i-th device.
func (p Profile) bus(i int) int {
	switch {
	case p.Form == Board && p.Count <= len(boardBuses):
		return boardBuses[i]
	case p.Form == Guest:
		return 1 + i
	default:
		return 0x10 + 0x0d*i
	}
}

// minor returns the N of /dev/nvidiaN: on boards it does not follow the order of PCI addresses.
func (p Profile) minor(i int) uint32 {
	if p.Form == Board && p.Count%4 == 0 {
		return uint32(i&^3 | (i+2)&3)
	}
	return uint32(i)
}

// numa returns the NUMA node, -1 if unknown.
func (p Profile) numa(i int) int32 {
	if p.Form == Guest {
		return -1
	}
	if i < (p.Count+1)/2 {
		return 0
	}
	return 1
}

// clique returns the NVLink clique, 0 if there is none.
func (p Profile) clique(i int) uint32 {
	if p.CliqueSize == 0 || p.Count == 1 {
		return 0
	}
	return uint32(i/p.CliqueSize) + 1
}

// pcieSwitch returns the bridge above the device, empty if unknown.
func (p Profile) pcieSwitch(i int) string {
	switch p.Form {
	case Board:
		return fmt.Sprintf("0000:%02x:00.0", p.bus(i&^1)-2)
	case Cards:
		return fmt.Sprintf("0000:%02x:00.0", p.bus(i)-1)
	default:
		return ""
	}
}

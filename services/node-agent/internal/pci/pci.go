// Package pci reads where devices sit in a machine, from sysfs under any root: NUMA node, PCIe switch, and which
// accelerators the bus has. The bus is the second witness of a device count: a driver can forget a card.
//
// It never opens a device and never asks a driver.
package pci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Tree is a sysfs mounted at Root (usually /sys).
type Tree struct{ Root string }

// Place is where one device sits.
type Place struct {
	NUMA   int32    // -1 = unknown, never 0 for "unknown"
	Switch string   // address of the innermost bridge that the device may share with others; empty = unknown
	Path   []string // bridges from the root port down to the one above the device
}

// Normalize brings a PCI address into sysfs form: NVML writes an eight-digit domain and capitals.
func Normalize(address string) (string, error) {
	parts := strings.Split(strings.ToLower(strings.TrimRight(address, "\x00")), ":")
	if len(parts) != 3 {
		return "", fmt.Errorf("pci: %q is no address", address)
	}
	domain, err1 := strconv.ParseUint(parts[0], 16, 32)
	bus, err2 := strconv.ParseUint(parts[1], 16, 8)
	dev, fn, _ := strings.Cut(parts[2], ".")
	if fn == "" {
		fn = "0"
	}
	d, err3 := strconv.ParseUint(dev, 16, 8)
	f, err4 := strconv.ParseUint(fn, 16, 8)
	if err := errors.Join(err1, err2, err3, err4); err != nil || d > 31 || f > 7 {
		return "", fmt.Errorf("pci: %q is no address", address)
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", domain, bus, d, f), nil
}

// Place finds a device by its normalized address.
func (t Tree) Place(address string) (Place, error) {
	p := Place{NUMA: -1}
	link := filepath.Join(t.Root, "bus/pci/devices", address)
	real, err := filepath.EvalSymlinks(link)
	if err != nil {
		return p, fmt.Errorf("pci: %w", err)
	}
	if b, err := os.ReadFile(filepath.Join(real, "numa_node")); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32); err == nil && n >= 0 {
			p.NUMA = int32(n)
		}
	}
	for dir := filepath.Dir(real); ; dir = filepath.Dir(dir) {
		a, err := Normalize(filepath.Base(dir))
		if err != nil {
			break // pciDDDD:BB, the host bridge, or something outside PCI
		}
		p.Path = append([]string{a}, p.Path...)
	}
	switch n := len(p.Path); {
	case n == 1:
		p.Switch = p.Path[0] // straight on a root port: it shares with nobody
	case n > 1:
		// The bridge above a device behind a switch is a downstream port of its own; the one above that is shared.
		p.Switch = p.Path[n-2]
	}
	return p, nil
}

// The PCI vendor of NVIDIA, and the base class of display and 3D controllers.
const (
	vendorNVIDIA = 0x10de
	classDisplay = 0x03
)

// Accelerators lists the addresses of NVIDIA's accelerators on the bus, sorted, whatever the driver thinks of them.
func (t Tree) Accelerators() ([]string, error) {
	dir := filepath.Join(t.Root, "bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a machine without PCI
	}
	if err != nil {
		return nil, fmt.Errorf("pci: %w", err)
	}
	var out []string
	for _, e := range entries {
		if t.number(e.Name(), "vendor") == vendorNVIDIA && t.number(e.Name(), "class")>>16 == classDisplay {
			out = append(out, e.Name())
		}
	}
	sort.Strings(out)
	return out, nil
}

func (t Tree) number(address, file string) uint64 {
	b, err := os.ReadFile(filepath.Join(t.Root, "bus/pci/devices", address, file))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64)
	if err != nil {
		return 0
	}
	return n
}

package nodeagent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/device"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
)

// inventory is what this machine offers, as last found.
type inventory struct {
	cfg    Config
	device device.Provider
	groups *cgroup.Manager

	mu  sync.Mutex
	now *weftv1.Inventory
}

// look asks the hardware. A machine whose accelerators cannot be asked still offers its processors, and says why.
func (v *inventory) look(ctx context.Context) error {
	inv := weftv1.Inventory_builder{
		Host: new(hostName()), Address: &v.cfg.Address, CpuMilli: &v.cfg.CPU, MemoryBytes: &v.cfg.Memory,
		PortBase: new(uint32(v.cfg.PortBase)), PortCount: new(uint32(v.cfg.PortCount)),
		Rack: &v.cfg.Rack, Block: &v.cfg.Block, Spot: &v.cfg.Spot, AgentVersion: &v.cfg.Version,
		Conditions: []*weftv1.Condition{v.groups.Condition()},
	}.Build()
	if v.cfg.CPU == 0 {
		inv.SetCpuMilli(int64(runtime.NumCPU()) * 1000)
	}
	if v.cfg.Memory == 0 {
		m, err := memoryBytes("/proc/meminfo")
		if err != nil {
			return err
		}
		inv.SetMemoryBytes(m)
	}
	if v.device != nil {
		devices, driver, err := v.device.Inventory(ctx)
		if err != nil {
			inv.SetConditions(append(inv.GetConditions(), deviceCondition(err)))
		}
		inv.SetDevices(devices)
		inv.SetDriverVersion(driver)
		inv.SetSimulated(v.device.Simulated())
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.now = inv
	return nil
}

func deviceCondition(err error) *weftv1.Condition {
	cure := "look at the kernel log and restart the machine"
	if errors.Is(err, device.ErrNoLibrary) {
		cure = "install the driver, or run the node without accelerators"
	}
	return weftv1.Condition_builder{
		Name: new("devices"), Status: new(weftv1.ConditionStatus_CONDITION_STATUS_MISSING), Message: new(err.Error()), Cure: &cure,
	}.Build()
}

// get returns a copy with the conditions of now.
func (v *inventory) get() *weftv1.Inventory {
	v.mu.Lock()
	defer v.mu.Unlock()
	return proto.CloneOf(v.now)
}

// memoryBytes reads the machine's memory from a file like /proc/meminfo.
func memoryBytes(file string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("node-agent: %w", err)
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("node-agent: %s: %w", file, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("node-agent: %s has no MemTotal", file)
}

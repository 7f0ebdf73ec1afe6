package allinone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/weft-fabric/weft/libs/device"
	nodeagent "github.com/weft-fabric/weft/services/node-agent"
)

// node is one node of this machine.
type node struct {
	name   string
	device device.Provider
	model  string
	count  int
}

func (n node) describe() string {
	what := "no accelerators"
	if n.count > 0 {
		what = fmt.Sprintf("%d × %s", n.count, n.model)
	}
	if n.device.Simulated() {
		what += " (simulated: jobs are real processes, devices are not)"
	}
	return n.name + ": " + what
}

// findNodes says which nodes this machine is: itself if NVML finds GPUs and nothing else was asked for, simulated ones
// otherwise.
func findNodes(ctx context.Context, cfg Config) ([]node, error) {
	if cfg.Simulate < 1 {
		real, err := nodeagent.OpenNVML(ctx)
		switch {
		case err == nil:
			devices, _, err := real.Inventory(ctx)
			if err == nil && (len(devices) > 0 || cfg.Simulate == 0) {
				n := node{name: cmp.Or(nodeagent.HostNode(), "node-0"), device: real, count: len(devices)}
				if n.count > 0 {
					n.model = devices[0].GetModel()
				}
				return []node{n}, nil
			}
			_ = real.Close()
			if cfg.Simulate == 0 {
				return nil, fmt.Errorf("NVML finds no usable GPU here: %w; use --simulate N", errors.Join(err, errNoGPU))
			}
		case cfg.Simulate == 0:
			return nil, fmt.Errorf("%w; or simulate: --simulate 2", err)
		}
	}
	count := cfg.Simulate
	if count < 1 {
		count = 2
	}
	var nodes []node
	for i := range count {
		name := fmt.Sprintf("sim-%d", i)
		h := fnv.New64a()
		_, _ = h.Write([]byte(name))
		sim, err := device.NewSim(cfg.Profile, h.Sum64())
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node{name: name, device: sim, model: sim.Profile().Model, count: sim.Profile().Count})
	}
	return nodes, nil
}

var errNoGPU = errors.New("no GPU")

// Command weft-agent runs one machine of a fabric.
package main

import (
	"context"
	"flag"
	"strings"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/program"
	nodeagent "github.com/weft-fabric/weft/services/node-agent"
)

func main() {
	nodeagent.MaybeShim()
	var simulate string
	program.Main(program.Program[nodeagent.Config]{
		Name: "weft-agent",
		About: `weft-agent runs one machine of a fabric: it finds the accelerators, starts and watches ranks, samples, and keeps local
saves. Ranks run on when it is killed, and it adopts them when it is started again.`,
		Examples: `weft bus serve --node gpu-0                # a bus for this machine, in another terminal
weft-agent --node gpu-0                    # this machine's own GPUs
weft-agent --node dev-0 --simulate a100-80gx8
weft-agent --nats nats://10.0.0.1:4222 --data /var/lib/weft --saves-dir /srv/saves --saves-shared`,
		Defaults: nodeagent.DefaultConfig(),
		Help:     help,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&simulate, "simulate", "", "simulate devices of this `profile`, such as a100-80gx8; models are "+strings.Join(device.Models(), ", "))
		},
		Settle: func(c *nodeagent.Config, o program.Options) error { return settle(c, o, simulate) },
		Roles:  func(c nodeagent.Config) []bus.Role { return []bus.Role{bus.NodeRole(c.Node)} },
		Serve: func(ctx context.Context, cfg nodeagent.Config, b *program.Bus) error {
			return serve(ctx, cfg, simulate, b)
		},
	})
}

// help has a line for each setting.
var help = map[string]string{
	"node":         "this node's name (default: the host's)",
	"dir":          "run directories, logs and bundles (default: nodes/<node> in --data)",
	"saves_dir":    "root of the saves that ranks write (default: saves in --data)",
	"saves_shared": "every node sees the same --saves-dir",
	"output_dir":   "root of WEFT_OUTPUT_DIR (default: output beside shared saves, else in --dir)",
	"address":      "IP at which other nodes reach this one's ranks (default: the one from which the bus is reached)",
	"port_base":    "first port that ranks may use",
	"port_count":   "how many ports they may use",
	"rack":         "rack of this machine; gangs are kept together",
	"block":        "network block of this machine",
	"spot":         "this machine may be taken away at short notice",
	"cpu_milli":    "thousandths of a core offered; 0 = all",
	"memory_bytes": "bytes of memory offered; 0 = all",
	"beat":         "between signs of life",
	"fence":        "without contact for this long this node counts as lost, as the scheduler has it; 0 = never",
	"fence_margin": "ranks are killed this long before; 0 = a quarter of the fence, 15s at most",
	"cgroup_root":  "where cgroup v2 is mounted; none = do without",
}

func serve(ctx context.Context, cfg nodeagent.Config, simulate string, b *program.Bus) error {
	dev, err := devices(ctx, simulate, cfg.Node)
	if err != nil {
		return err
	}
	if dev != nil {
		defer func() { _ = dev.Close() }()
	}
	return nodeagent.New(cfg, nodeagent.Connect(ctx, cfg.Node, b.Conn(bus.NodeRole(cfg.Node)), dev)).Run(ctx)
}

package nodeagent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/python"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/launch"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/sample"
	"github.com/weft-fabric/weft/services/node-agent/internal/shell"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// Deps are what an agent works with; the agent closes none of them.
type Deps struct {
	Device device.Provider // nil = no accelerators

	Assignments bus.Inbox // of StreamAssignments, filtered to this node's subject
	Reports     bus.Outbox
	Saves       bus.Outbox
	Logs        bus.Outbox
	Metrics     bus.Outbox
	Caller      bus.Caller // of the NODES account
	Bundles     bus.Objects
}

// Agent is one machine's agent, a run.Service.
type Agent struct {
	cfg  Config
	deps Deps
}

// New makes an agent; Run starts it, and fails if cfg is not valid.
func New(cfg Config, deps Deps) *Agent { return &Agent{cfg: cfg.withDefaults(), deps: deps} }

// Name implements run.Service.
func (a *Agent) Name() string { return "node-agent" }

// preparers is how many attempts may be fetching their files at one time.
const preparers = 4

// Run implements run.Service. When it returns the ranks run on; the next agent with the same directory adopts them.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.cfg.Validate(); err != nil {
		return err
	}
	lock, err := lockDir(a.cfg.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	boot, err := proc.BootID()
	if err != nil {
		return err
	}
	shells, closeAll, err := a.shells(ctx, boot)
	if err != nil {
		return err
	}
	defer closeAll()
	return run.Loop(ctx, nil, shells...)
}

// lockDir keeps a second agent out; the lock goes with the process, however it ends.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("node-agent: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("node-agent: %w", err)
	}
	// A child that an agent was forking when it was killed holds the lock until it runs its own program.
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(deadline) {
			continue
		}
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("node-agent: another agent runs in %s; stop it, or choose another directory", dir)
		}
		return nil, fmt.Errorf("node-agent: lock: %w", err)
	}
}

// lockPatience is far more than a fork takes.
const lockPatience = 2 * time.Second

// inventoryTimeout bounds the first question to the hardware.
const inventoryTimeout = 10 * time.Second

// shells wires everything; see package shell for who does what.
func (a *Agent) shells(ctx context.Context, boot string) ([]run.Shell, func(), error) {
	cfg, d := a.cfg, a.deps
	groups := cgroup.Open(cfg.CgroupRoot, cgroupName(cfg))
	if !groups.Works() {
		slog.Warn("no cgroup v2", "node", cfg.Node, "condition", groups.Condition().GetMessage(), "cure", groups.Condition().GetCure())
	}
	inv := &inventory{cfg: cfg, device: d.Device, groups: groups}
	askCtx, cancel := context.WithTimeout(ctx, inventoryTimeout)
	defer cancel()
	if err := inv.look(askCtx); err != nil {
		return nil, nil, err
	}
	pythonDir := filepath.Join(cfg.Dir, "python")
	if err := python.Write(pythonDir); err != nil {
		return nil, nil, err
	}
	node := launch.Node{
		Name: cfg.Node, Address: cfg.Address, Devices: inv.get().GetDevices(), Simulated: inv.get().GetSimulated(),
		SavesDir: cfg.SavesDir, OutputDir: cfg.OutputDir, PythonDir: pythonDir,
	}
	fence := max(0, cfg.Fence-cfg.FenceMargin)
	contact := shell.NewContact(cfg.Dir, boot)
	reports, err := shell.NewReports(d.Reports, cfg.Dir, cfg.Node, boot)
	if err != nil {
		return nil, nil, err
	}
	prep := shell.NewPreparer(shell.PreparerConfig{
		Dir: cfg.Dir, BootID: boot, Node: node, Contact: contact.File(), FenceNS: int64(fence), HostEnv: os.Environ(), Verify: verifyPart,
	}, d.Bundles, d.Caller, groups)
	logs := shell.NewLogs(d.Logs, cfg.Node)
	saves := shell.NewSaves(d.Saves, cfg.Node, boot, scanParts(cfg))
	janitor := shell.NewJanitor(cfg.Dir)
	core, err := shell.NewCore(shell.CoreConfig{Dir: cfg.Dir, BootID: boot, Node: node, Fence: fence}, shell.CoreDeps{
		Assignments: d.Assignments, Groups: groups, Shims: shim.NewPool("/proc/self/exe", groups.OpenShims), Contact: contact, Reports: reports, Preparer: prep, Logs: logs, Saves: saves, Janitor: janitor,
		Use:       func(uuids []string) { device.Use(d.Device, uuids) },
		Inventory: inv.get,
	}, time.Now())
	if err != nil {
		return nil, nil, err
	}
	beat, err := shell.NewBeat(d.Caller, cfg.Beat, cfg.Node, boot, contact, core.Hello)
	if err != nil {
		core.Close()
		return nil, nil, err
	}
	metrics := sample.New(sample.Config{Node: cfg.Node, Epoch: strings.ToLower(rand.Text())}, d.Device, d.Metrics)
	shells := []run.Shell{core, reports, beat, logs, saves, janitor, metrics}
	for _, w := range prep.Workers(preparers) {
		shells = append(shells, w)
	}
	if d.Device != nil {
		shells = append(shells, shell.NewHealth(d.Device, node.Devices, reports, func(ctx context.Context) {
			if err := inv.look(ctx); err != nil {
				slog.Error("the inventory cannot be read", "error", err)
				return
			}
			core.Hello()
		}))
	}
	return shells, core.Close, nil
}

// cgroupName tells agents of one machine apart.
func cgroupName(cfg Config) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cfg.Dir))
	return fmt.Sprintf("weft-%s-%08x", cfg.Node, h.Sum32())
}

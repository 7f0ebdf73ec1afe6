package allinone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/allocator"
	"github.com/weft-fabric/weft/services/checkpoint"
	"github.com/weft-fabric/weft/services/gateway"
	nodeagent "github.com/weft-fabric/weft/services/node-agent"
	"github.com/weft-fabric/weft/services/scheduler"
	"github.com/weft-fabric/weft/services/telemetry"
)

// services wires every service to the bus, in the order in which they start: readers of the ledger first, then its
// writer, then the agents, and the door last.
func (f *Fabric) services(ctx context.Context) ([]run.Service, error) {
	core, err := f.conn(ctx, bus.RoleCore)
	if err != nil {
		return nil, err
	}
	nodes, err := f.conn(ctx, bus.RoleNodes)
	if err != nil {
		return nil, err
	}
	door, err := f.conn(ctx, bus.RoleDoor)
	if err != nil {
		return nil, err
	}
	if err := f.openLedger(ctx, core); err != nil {
		return nil, err
	}
	// Hooks of the projection are registered by the constructors, so all of them come before its first step.
	all, err := allocator.New(allocator.DefaultConfig(), allocator.Deps{Proj: f.proj, Core: busnats.NewCaller(core)})
	if err != nil {
		return nil, err
	}
	f.confirmed = scheduler.Confirmed(core, nodes)
	sched, err := f.scheduler(ctx, core, nodes)
	if err != nil {
		return nil, err
	}
	ckpt, err := f.checkpoint(ctx, core, nodes)
	if err != nil {
		return nil, err
	}
	metrics := telemetry.DefaultConfig()
	metrics.Metrics = f.cfg.Metrics
	tele, err := telemetry.New(metrics, telemetry.Deps{Metrics: busnats.NewInbox(ctx, nodes, bus.StreamMetrics, ""), Proj: f.proj})
	if err != nil {
		return nil, err
	}
	gw, token, err := f.gateway(core, nodes, door)
	if err != nil {
		return nil, err
	}
	f.door = Context{GRPC: gw.GRPCAddr(), REST: gw.RESTAddr(), Metrics: tele.Addr(), NATS: f.srv.URL(), Token: token}
	out := []run.Service{run.Func("ledger", func(ctx context.Context) error { return run.Loop(ctx, nil, f.proj) }), all, sched, ckpt, tele}
	for i := range f.nodes {
		agent, err := f.agent(ctx, i)
		if err != nil {
			return nil, err
		}
		out = append(out, run.Func(agent.Name()+" "+f.nodes[i].name, func(ctx context.Context) error {
			// A beat that nobody can answer yet costs an agent its time-out.
			if err := f.untilLed(ctx); err != nil {
				return err
			}
			return agent.Run(ctx)
		}))
	}
	return append(out, gw), nil
}

func (f *Fabric) scheduler(ctx context.Context, core, nodes *bus.Conn) (*scheduler.Service, error) {
	deps, closeReader, err := scheduler.Connect(ctx, f.log, f.proj, core, nodes)
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, closeReader)
	cfg := scheduler.DefaultConfig()
	cfg.Alone = true
	return scheduler.New(cfg, deps)
}

func (f *Fabric) checkpoint(ctx context.Context, core, nodes *bus.Conn) (*checkpoint.Service, error) {
	if err := os.MkdirAll(f.savesDir(), 0o755); err != nil {
		return nil, fmt.Errorf("saves: %w", err)
	}
	deps, closeReaders, err := checkpoint.Connect(ctx, core, nodes)
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, closeReaders)
	cfg := checkpoint.DefaultConfig()
	cfg.Dir, cfg.Alone = f.savesDir(), true
	return checkpoint.New(cfg, deps)
}

// gateway makes the door and the administrator's token, which is made once and kept readable by its owner only.
func (f *Fabric) gateway(core, nodes, door *bus.Conn) (*gateway.Service, string, error) {
	cfg := gateway.DefaultConfig()
	cfg.GRPC, cfg.REST, cfg.Version = f.cfg.GRPC, f.cfg.REST, program.Version()
	cfg.Tokens = filepath.Join(f.cfg.Dir, "tokens.json")
	file := filepath.Join(f.cfg.Dir, "admin-token")
	token, err := os.ReadFile(file)
	if _, missing := os.Stat(cfg.Tokens); errors.Is(err, fs.ErrNotExist) || errors.Is(missing, fs.ErrNotExist) {
		made, err := gateway.CreateToken(cfg.Tokens, gateway.Grant{Name: "admin", Role: "admin"})
		if err != nil {
			return nil, "", err
		}
		token = []byte(made)
		if err := os.WriteFile(file, token, 0o600); err != nil {
			return nil, "", fmt.Errorf("admin token: %w", err)
		}
	} else if err != nil {
		return nil, "", fmt.Errorf("admin token: %w", err)
	}
	gw, err := gateway.New(cfg, gateway.Connect(f.proj, core, nodes, door))
	return gw, strings.TrimSpace(string(token)), err
}

func (f *Fabric) savesDir() string { return filepath.Join(f.cfg.Dir, "saves") }

func (f *Fabric) agent(ctx context.Context, i int) (run.Service, error) {
	n := f.nodes[i]
	conn, err := f.conn(ctx, bus.NodeRole(n.name))
	if err != nil {
		return nil, err
	}
	cfg := nodeagent.DefaultConfig()
	cfg.Node, cfg.Version = n.name, program.Version()
	cfg.Dir = filepath.Join(f.cfg.Dir, "nodes", n.name)
	cfg.SavesDir, cfg.SavesShared = f.savesDir(), true
	cfg.Address = "127.0.0.1"
	cfg.PortBase, cfg.PortCount = f.cfg.PortBase+i*PortsPerNode, PortsPerNode
	if n.device.Simulated() {
		cfg.OfferSimulated()
	}
	return nodeagent.New(cfg, nodeagent.Connect(ctx, n.name, conn, n.device)), nil
}

// Command weft-allocator runs the allocator against a bus.
package main

import (
	"context"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/allocator"
)

func main() {
	program.Main(program.Program[allocator.Config]{
		Name: "weft-allocator",
		About: `weft-allocator decides who gets what, where: it reads the ledger and answers the scheduler's requests for plans. It keeps
nothing, so it may be killed at any time.`,
		Examples: `weft bus serve                             # a bus for this machine, in another terminal
weft-allocator                             # with that bus
weft-allocator --nats nats://10.0.0.1:4222 --data /var/lib/weft`,
		Defaults: allocator.DefaultConfig(),
		Help:     map[string]string{"tries": "gangs that one plan tries to place at most"},
		Roles:    func(allocator.Config) []bus.Role { return []bus.Role{bus.RoleCore} },
		Serve:    serve,
	})
}

func serve(ctx context.Context, cfg allocator.Config, b *program.Bus) error {
	l, err := program.OpenLedger(ctx, b)
	if err != nil {
		return err
	}
	defer l.Close()
	s, err := allocator.New(cfg, allocator.Deps{Proj: l.Proj, Core: busnats.NewCaller(b.Conn(bus.RoleCore))})
	if err != nil {
		return err
	}
	follow, err := l.Read(ctx)
	if err != nil {
		return err
	}
	return run.NewGroup("allocator", follow, s).Run(ctx)
}

// Command weft-scheduler runs the scheduler against a bus.
package main

import (
	"context"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/scheduler"
)

func main() {
	program.Main(program.Program[scheduler.Config]{
		Name: "weft-scheduler",
		About: `weft-scheduler keeps the ledger of a fabric: the life of every job, node and queue. Whatever it is told it decides once
and commits; running jobs do not notice when it is killed and started again.`,
		Examples: `weft bus serve                             # a bus for this machine, in another terminal
weft-scheduler                             # with that bus
weft-scheduler --nats nats://10.0.0.1:4222 --data /var/lib/weft --fence 20m`,
		Defaults: scheduler.DefaultConfig(),
		Help: map[string]string{
			"silent":  "a node without an answered beat for this long is silent",
			"fence":   "a node silent for this long counts as lost, and its jobs start elsewhere; 0 = never by itself. Agents and gateway need the same",
			"alone":   "no other replica can exist, so lead at once",
			"replica": "name of this replica, for people",
		},
		Roles: func(scheduler.Config) []bus.Role { return []bus.Role{bus.RoleCore, bus.RoleNodes} },
		Serve: serve,
	})
}

func serve(ctx context.Context, cfg scheduler.Config, b *program.Bus) error {
	l, err := program.OpenLedger(ctx, b)
	if err != nil {
		return err
	}
	defer l.Close()
	deps, closeReaders, err := scheduler.Connect(ctx, l.Log, l.Proj, b.Conn(bus.RoleCore), b.Conn(bus.RoleNodes))
	if err != nil {
		return err
	}
	defer closeReaders()
	s, err := scheduler.New(cfg, deps)
	if err != nil {
		return err
	}
	follow, err := l.Read(ctx)
	if err != nil {
		return err
	}
	return run.NewGroup("scheduler", follow, s).Run(ctx)
}

// Command weft-gateway runs the gateway against a bus, and makes tokens for it.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/gateway"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "token" {
		if err := token(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "weft-gateway: "+err.Error())
			os.Exit(2)
		}
		return
	}
	var data string
	program.Main(program.Program[gateway.Config]{
		Name: "weft-gateway",
		About: `weft-gateway is the door of a fabric: sign-in, tenants, gRPC, REST and events. It decides nothing. At its first start it
makes an administrator's token, and context.json in --data, which the weft command reads.`,
		Examples: `weft bus serve                             # a bus for this machine, in another terminal
weft-gateway                               # with that bus; then: WEFT_CONTEXT=.weft/dev/context.json weft ps
weft-gateway token --file .weft/dev/tokens.json --name ann --role user --tenant vision
weft-gateway --nats nats://10.0.0.1:4222 --data /var/lib/weft`,
		Defaults: gateway.DefaultConfig(),
		Help: map[string]string{
			"grpc":        "address of the gRPC door; port 0 = any free one",
			"rest":        "address of the REST door",
			"remote":      "allow addresses that other machines reach; end TLS in front of them",
			"tokens":      "token file (default: tokens.json in --data)",
			"fence":       "fence of the cell, as the scheduler has it; it bounds a job's grace",
			"decide_wait": "how long a request waits for its decision",
			"rate":        "what a tenant may call a second: a read costs 1, a write 4; administrators are not bound",
			"burst":       "how much of that at once",
		},
		Settle: func(c *gateway.Config, o program.Options) error {
			data, c.Version = o.Data, program.Version()
			if c.Tokens == "" {
				c.Tokens = filepath.Join(data, "tokens.json")
			}
			return nil
		},
		Roles: func(gateway.Config) []bus.Role { return []bus.Role{bus.RoleCore, bus.RoleNodes, bus.RoleDoor} },
		Serve: func(ctx context.Context, cfg gateway.Config, b *program.Bus) error { return serve(ctx, cfg, data, b) },
	})
}

func serve(ctx context.Context, cfg gateway.Config, data string, b *program.Bus) error {
	admin, err := adminToken(data, cfg.Tokens)
	if err != nil {
		return err
	}
	l, err := program.OpenLedger(ctx, b)
	if err != nil {
		return err
	}
	defer l.Close()
	gw, err := gateway.New(cfg, gateway.Connect(l.Proj, b.Conn(bus.RoleCore), b.Conn(bus.RoleNodes), b.Conn(bus.RoleDoor)))
	if err != nil {
		return err
	}
	follow, err := l.Read(ctx)
	if err != nil {
		return err
	}
	if admin != "" {
		if err := writeContext(data, door{GRPC: gw.GRPCAddr(), REST: gw.RESTAddr(), Token: admin}); err != nil {
			return err
		}
	}
	slog.Info("doors open", "grpc", gw.GRPCAddr(), "rest", gw.RESTAddr())
	return run.NewGroup("gateway", follow, gw).Run(ctx)
}

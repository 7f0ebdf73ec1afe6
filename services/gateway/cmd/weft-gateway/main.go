// Command weft-gateway runs the gateway against a bus, and makes tokens for it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/config"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/gateway"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "token" {
		if err := token(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "weft-gateway: "+err.Error())
			os.Exit(2)
		}
		return
	}
	var o options
	flag.StringVar(&o.url, "nats", "nats://127.0.0.1:7402", "address of the bus")
	flag.StringVar(&o.data, "data", ".", "directory of the bus's users (bus/bus-users.json) and of the tokens (tokens.json)")
	flag.StringVar(&o.credentials, "credentials", os.Getenv("WEFT_CREDENTIALS"), "file of the bus's users and passwords (default: in --data)")
	flag.StringVar(&o.settings, "config", "", "settings file (YAML)")
	flag.StringVar(&o.grpc, "grpc", "", "address of the gRPC door; overrides the settings")
	flag.StringVar(&o.rest, "rest", "", "address of the REST door; overrides the settings")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: weft-gateway [flags]\n       weft-gateway token --file FILE --name NAME --role ROLE [--tenant TENANT]")
		flag.PrintDefaults()
	}
	flag.Parse()
	run.Main(run.Func("gateway", func(ctx context.Context) error { return serve(ctx, o) }))
}

type options struct{ url, data, credentials, settings, grpc, rest string }

// startWithin bounds the first look at the bus; reading the ledger takes as long as it takes.
const startWithin = 15 * time.Second

func serve(ctx context.Context, o options) error {
	cfg := gateway.DefaultConfig()
	cfg.Tokens = filepath.Join(o.data, "tokens.json")
	if err := config.Load(&cfg, o.settings); err != nil {
		return err
	}
	if o.grpc != "" {
		cfg.GRPC = o.grpc
	}
	if o.rest != "" {
		cfg.REST = o.rest
	}
	if o.credentials == "" {
		o.credentials = filepath.Join(o.data, "bus", "bus-users.json")
	}
	starting, started := context.WithTimeout(ctx, startWithin)
	defer started()
	conns := map[bus.Role]*bus.Conn{}
	for _, role := range []bus.Role{bus.RoleCore, bus.RoleNodes, bus.RoleDoor} {
		c, err := dial(starting, o.url, o.credentials, role)
		if err != nil {
			return err
		}
		defer c.Close()
		conns[role] = c
	}
	core, nodes := conns[bus.RoleCore], conns[bus.RoleNodes]
	if err := bus.Verify(starting, core, nodes); err != nil {
		return err
	}
	log, err := natsledger.Open(starting, core, bus.StreamLedger)
	if err != nil {
		return err
	}
	defer log.Close()
	snaps, err := natsledger.OpenSnapshots(starting, core, bus.StreamLedger)
	if err != nil {
		return err
	}
	proj := ledger.NewProjection(log, cellfold.Fold(), snaps)
	gw, err := gateway.New(cfg, gateway.Connect(proj, core, nodes, conns[bus.RoleDoor]))
	if err != nil {
		return err
	}
	if _, err := proj.CatchUp(ctx, time.Now()); err != nil {
		return err
	}
	slog.Info("doors open", "grpc", gw.GRPCAddr(), "rest", gw.RESTAddr())
	follow := run.Func("ledger", func(ctx context.Context) error { return run.Loop(ctx, nil, proj) })
	return run.NewGroup("gateway", follow, gw).Run(ctx)
}

func dial(ctx context.Context, url, credentials string, role bus.Role) (*bus.Conn, error) {
	b, err := os.ReadFile(credentials) // #nosec G304: the operator names it
	if err != nil {
		return nil, fmt.Errorf("credentials of the bus: %w; name its file of users with --credentials", err)
	}
	passwords := map[bus.Role]string{}
	if err := json.Unmarshal(b, &passwords); err != nil {
		return nil, fmt.Errorf("%s is no file of users: %w", credentials, err)
	}
	if passwords[role] == "" {
		return nil, fmt.Errorf("%s holds no password of user %s", credentials, role)
	}
	return bus.Dial(ctx, bus.Options{URL: url, User: string(role), Password: passwords[role], Name: "weft-gateway"})
}

// token makes a token and prints it, once.
func token(args []string) error {
	var g gateway.Grant
	var file string
	fs := flag.NewFlagSet("weft-gateway token", flag.ContinueOnError)
	fs.StringVar(&file, "file", "tokens.json", "token file; made if absent")
	fs.StringVar(&g.Name, "name", "", "who holds the token")
	fs.StringVar(&g.Role, "role", "user", "admin, user or viewer")
	fs.StringVar(&g.Tenant, "tenant", "", "tenant of a user or viewer")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return errors.New("token takes flags only; see: weft-gateway token --help")
	}
	t, err := gateway.CreateToken(file, g)
	if err != nil {
		return err
	}
	fmt.Println(t)
	return nil
}

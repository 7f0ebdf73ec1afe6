package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/libs/bus"
)

// busCmd prepares a bus for services that run apart.
func busCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "bus", Short: "Prepare the bus for services that run as separate processes (operators)"}

	var url string
	var replicas int
	initCmd := &cobra.Command{
		Use:   "init",
		Short: "Create the fabric's streams on a NATS server; services only verify them",
		Long: `Create or bring up to date every stream and bucket. Passwords come from the environment: WEFT_BUS_CORE_INIT_PASSWORD and
WEFT_BUS_NODES_INIT_PASSWORD, for the users core-init and nodes-init that weft bus conf declares.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			core, err := dialRole(ctx, url, bus.RoleCoreInit)
			if err != nil {
				return err
			}
			defer core.Close()
			nodes, err := dialRole(ctx, url, bus.RoleNodesInit)
			if err != nil {
				return err
			}
			defer nodes.Close()
			if err := bus.Apply(ctx, core, nodes, bus.ApplyOptions{Replicas: replicas}); err != nil {
				return err
			}
			fmt.Fprintln(a.out, "streams are as this version declares them")
			return nil
		},
	}
	initCmd.Flags().StringVar(&url, "nats", "nats://127.0.0.1:7402", "URL of the NATS server")
	initCmd.Flags().IntVar(&replicas, "replicas", 1, "copies of each stream: 1 on a single server, 3 on a cluster")

	var dir, listen string
	var nodes []string
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run a single bus server with the fabric's accounts and streams",
		Long: `Run a NATS server with the three accounts, the streams, and generated passwords in DIR/bus/bus-users.json, for services
that run apart on this machine (development, small sites). A cluster runs nats-server itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serveBus(cmd.Context(), a, dir, listen, nodes) },
	}
	serve.Flags().StringVar(&dir, "data", ".weft/dev", "data directory")
	serve.Flags().StringVar(&listen, "listen", "127.0.0.1:7402", "address")
	serve.Flags().StringSliceVar(&nodes, "node", []string{"dev-0"}, "nodes that may sign in (repeatable)")
	cmd.AddCommand(initCmd, serve)
	return cmd
}

// dialRole signs in as a role with the password that the environment gives.
func dialRole(ctx context.Context, url string, role bus.Role) (*bus.Conn, error) {
	env := "WEFT_BUS_" + strings.ToUpper(strings.ReplaceAll(string(role), "-", "_")) + "_PASSWORD"
	pw := os.Getenv(env)
	if pw == "" {
		return nil, usagef("set %s to the password of the bus user %s", env, role)
	}
	c, err := bus.Dial(ctx, bus.Options{URL: url, User: string(role), Password: pw, Name: "weft bus init"})
	if err != nil {
		return nil, &exitError{ExitUnavailable, fmt.Errorf("%w; is a NATS server with the fabric's accounts at %s? try: weft bus serve", err, url)}
	}
	return c, nil
}

func serveBus(ctx context.Context, a *app, dir, listen string, nodes []string) error {
	host, port, err := splitPort(listen)
	if err != nil {
		return usagef("--listen %q is not host:port", listen)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	srv, err := bus.StartServer(bus.ServerConfig{Dir: filepath.Join(dir, "bus"), Host: host, Port: port, Nodes: nodes})
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	core, err := srv.Conn(ctx, bus.RoleCoreInit)
	if err != nil {
		return err
	}
	defer core.Close()
	agents, err := srv.Conn(ctx, bus.RoleNodesInit)
	if err != nil {
		return err
	}
	defer agents.Close()
	if err := bus.Apply(ctx, core, agents, bus.ApplyOptions{Replicas: 1}); err != nil {
		return err
	}
	fmt.Fprintf(a.out, "bus at %s; passwords in %s\n", srv.URL(), filepath.Join(dir, "bus", "bus-users.json"))
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return nil
	}
	return ctx.Err()
}

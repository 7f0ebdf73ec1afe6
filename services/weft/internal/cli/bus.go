package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/program"
)

// busOptions are the flags of the bus commands.
type busOptions struct {
	data, listen, nats, credentials string
	replicas                        int
	nodes, tenants                  []string
	server, cluster                 string
	routes                          []string
}

// busCmd prepares a bus for services that run apart.
func busCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bus",
		Short: "Run or prepare the bus for services that run as separate processes (operators)",
		Long: `Services that run as separate processes need a NATS server with the fabric's accounts and streams.

On one machine:       weft bus serve
On servers of yours:  weft bus conf, start nats-server with what it wrote, then weft bus init`,
	}
	data := func(c *cobra.Command, o *busOptions) {
		c.Flags().StringVar(&o.data, "data", program.DefaultData, "data `directory`; users and passwords lie in bus/"+bus.UsersFile)
	}
	users := func(c *cobra.Command, o *busOptions, nodes []string) {
		c.Flags().StringSliceVar(&o.nodes, "node", nodes, "`name` of a node that may sign in (repeatable)")
		c.Flags().StringSliceVar(&o.tenants, "tenant", nil, "`name` of a tenant whose pipelines may sign in (repeatable)")
	}

	var forServe, forConf, forInit busOptions // apart, since each flag writes its default into them
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run a bus for this machine: one server with the fabric's accounts and streams",
		Long: `Run one NATS server with the three accounts, the streams, and generated passwords in bus/bus-users.json of the data
directory, for services that run apart on this machine. Users named with --node are added; those named no longer cannot
sign in. Ctrl-C ends it; what it stored stays.

With --cluster it is one of several servers, and each stream is kept on three of them: any one may die. Start the first,
copy its bus-users.json to the data directories of the others, start them, and name all of them to the services, as in
--nats nats://10.0.0.1:7402,nats://10.0.0.2:7402,nats://10.0.0.3:7402.`,
		Example: `  weft bus serve
  weft bus serve --data /var/lib/weft --listen 10.0.0.1:7402 --node gpu-0 --node gpu-1
  weft bus serve --data /var/lib/weft --listen 10.0.0.1:7402 --node gpu-0 --server a --cluster 10.0.0.1:7405 \
    --route 10.0.0.1:7405 --route 10.0.0.2:7405 --route 10.0.0.3:7405`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serveBus(cmd.Context(), forServe) },
	}
	data(serve, &forServe)
	users(serve, &forServe, []string{"dev-0"})
	serve.Flags().StringVar(&forServe.listen, "listen", "127.0.0.1:7402", "`address` for services")
	serve.Flags().StringVar(&forServe.cluster, "cluster", "", "`address` for the other servers of a cluster")
	serve.Flags().StringVar(&forServe.server, "server", "", "`name` of this server in its cluster")
	serve.Flags().StringSliceVar(&forServe.routes, "route", nil, "`address` of a server of the cluster, this one included (repeatable)")

	conf := &cobra.Command{
		Use:   "conf",
		Short: "Write the accounts for a NATS server of your own, and the passwords of its users",
		Long: `Write into bus/ of the data directory: accounts.conf to include in the configuration of nats-server, bus-users.json with
the passwords of all users for the services, and node-NAME.json with a node's own for its agent. Passwords that exist
are kept. The server must sync every message to disk; include counts from the directory of the configuration:

  listen: 10.0.0.1:4222
  jetstream { store_dir: "/var/lib/nats", sync_interval: always }
  include bus/accounts.conf`,
		Example: "  weft bus conf --data /etc/weft --node gpu-0 --node gpu-1",
		Args:    cobra.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.busConf(forConf) },
	}
	data(conf, &forConf)
	users(conf, &forConf, nil)

	initCmd := &cobra.Command{
		Use:   "init",
		Short: "Create the fabric's streams on a NATS server, or bring them up to date; services only verify them",
		Long: `Create or bring up to date every stream and bucket, as the users core-init and nodes-init of the file of users. It
changes nothing that is as it should be.`,
		Example: "  weft bus init --nats nats://10.0.0.1:4222 --data /etc/weft --replicas 3",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.initBus(cmd.Context(), forInit) },
	}
	data(initCmd, &forInit)
	initCmd.Flags().StringVar(&forInit.nats, "nats", program.DefaultNATS, "`URL` of the NATS server")
	initCmd.Flags().StringVar(&forInit.credentials, "credentials", os.Getenv("WEFT_CREDENTIALS"), "`file` of users and passwords (default $WEFT_CREDENTIALS, then bus/"+bus.UsersFile+" in --data)")
	initCmd.Flags().IntVar(&forInit.replicas, "replicas", 1, "copies of each stream: 1 on a single server, 3 on a cluster")

	cmd.AddCommand(serve, conf, initCmd)
	return cmd
}

// serveBus runs until Ctrl-C or SIGTERM.
func (a *app) serveBus(ctx context.Context, o busOptions) error {
	host, port, err := splitPort(o.listen)
	if err != nil {
		return usagef("--listen %q is not host:port, such as 127.0.0.1:7402", o.listen)
	}
	dir, err := busDir(o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	cluster, replicas, err := o.clustered()
	if err != nil {
		return err
	}
	lost := watchDisk(slog.NewTextHandler(a.errOut, &slog.HandlerOptions{Level: slog.LevelWarn}))
	srv, err := bus.StartServer(bus.ServerConfig{Dir: dir, Host: host, Port: port, Nodes: o.nodes, Tenants: o.tenants, Cluster: cluster})
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	dial := func(r bus.Role) (*bus.Conn, error) { return srv.Conn(ctx, r) }
	if cluster == nil {
		err = apply(ctx, dial, replicas)
	} else {
		err = a.join(ctx, srv, func() error { return apply(ctx, dial, replicas) })
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "bus at %s; passwords in %s\n", srv.URL(), filepath.Join(dir, bus.UsersFile))
	select {
	case <-ctx.Done():
		return nil
	case why := <-lost:
		return diskError(dir, why)
	}
}

// clustered is what the flags say about a cluster; nil = this server alone.
func (o busOptions) clustered() (c *bus.Cluster, replicas int, err error) {
	switch {
	case o.cluster == "" && o.server == "" && len(o.routes) == 0:
		return nil, 1, nil
	case o.cluster == "" || o.server == "" || len(o.routes) < 3:
		return nil, 0, usagef("a cluster needs --cluster HOST:PORT, --server NAME and a --route HOST:PORT for each of its servers, at least three; see: weft bus serve --help")
	}
	for _, addr := range append([]string{o.cluster}, o.routes...) {
		if _, _, err := splitPort(addr); err != nil {
			return nil, 0, usagef("%q is not host:port, such as 10.0.0.1:7405", addr)
		}
	}
	return &bus.Cluster{Server: o.server, Listen: o.cluster, Routes: o.routes}, 3, nil
}

// join waits for the other servers, and prepares the streams with them.
func (a *app) join(ctx context.Context, srv *bus.Embedded, apply func() error) error {
	told := false
	for {
		err := errors.New("not in contact with enough servers of the cluster")
		if srv.Current() {
			if err = apply(); err == nil {
				return nil
			}
		}
		if !told {
			fmt.Fprintf(a.errOut, "waiting for the other servers: %v\n", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(joinRetry):
		}
	}
}

const joinRetry = 250 * time.Millisecond

func (a *app) busConf(o busOptions) error {
	dir, err := busDir(o)
	if err != nil {
		return err
	}
	for _, n := range append(append([]string{}, o.nodes...), o.tenants...) {
		if err := bus.CheckToken(n); err != nil {
			return usagef("%v; choose a name such as gpu-0", err)
		}
	}
	roles := bus.Users(o.nodes, o.tenants)
	pw, err := bus.Passwords(filepath.Join(dir, bus.UsersFile), roles)
	if err != nil {
		return err
	}
	text, err := bus.AccountsConf(roles, func(r bus.Role) string { return pw[r] })
	if err != nil {
		return err
	}
	if err := a.secret(filepath.Join(dir, "accounts.conf"), []byte(text)); err != nil {
		return err
	}
	for _, n := range o.nodes {
		r := bus.NodeRole(n)
		b, err := json.MarshalIndent(map[bus.Role]string{r: pw[r]}, "", "  ")
		if err != nil {
			return err
		}
		if err := a.secret(filepath.Join(dir, "node-"+n+".json"), append(b, '\n')); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.out, "include %s in the configuration of nats-server, start it, then: weft bus init --nats URL --data %s\n", filepath.Join(dir, "accounts.conf"), o.data)
	return nil
}

// secret writes a file that only its owner reads.
func (a *app) secret(file string, b []byte) error {
	if err := os.WriteFile(file+".tmp", b, 0o600); err != nil {
		return err
	}
	if err := os.Rename(file+".tmp", file); err != nil {
		return err
	}
	fmt.Fprintln(a.out, "wrote "+file)
	return nil
}

// initBus makes the streams of a server that somebody else runs.
func (a *app) initBus(ctx context.Context, o busOptions) error {
	if o.credentials == "" {
		o.credentials = program.CredentialsIn(o.data)
	}
	passwords, err := program.ReadCredentials(o.credentials)
	if err != nil {
		return &exitError{ExitUsage, err}
	}
	at := program.Options{NATS: o.nats, Credentials: o.credentials}
	err = apply(ctx, func(r bus.Role) (*bus.Conn, error) {
		c, err := program.DialAs(ctx, "weft bus init", at, passwords, r)
		if err != nil {
			return nil, &exitError{ExitUnavailable, err}
		}
		return c, nil
	}, o.replicas)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.out, "streams are as this version declares them")
	return nil
}

// apply makes the streams of both accounts.
func apply(ctx context.Context, dial func(bus.Role) (*bus.Conn, error), replicas int) error {
	core, err := dial(bus.RoleCoreInit)
	if err != nil {
		return err
	}
	defer core.Close()
	nodes, err := dial(bus.RoleNodesInit)
	if err != nil {
		return err
	}
	defer nodes.Close()
	return bus.Apply(ctx, core, nodes, bus.ApplyOptions{Replicas: replicas})
}

// busDir is where the bus keeps its own; made if absent.
func busDir(o busOptions) (string, error) {
	data, err := filepath.Abs(o.data)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(data, "bus")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("data directory: %w; choose another with --data", err)
	}
	return dir, nil
}

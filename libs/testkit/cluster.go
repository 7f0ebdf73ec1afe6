package testkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
)

// clusterConf names the variable that makes a test binary one server of a cluster; it holds the path of its configuration.
const clusterConf = "WEFT_TESTKIT_NATS"

// ClusterPatience bounds what a cluster may take to heal: two elections (4 to 9 s each) on a busy machine.
const ClusterPatience = 60 * time.Second

// Main runs a package's tests. A package that uses Cluster calls it from TestMain: the servers are processes of the same
// binary, so that they can be killed and paused as a real one can.
func Main(m *testing.M) {
	if path := os.Getenv(clusterConf); path != "" {
		serveNode(path)
	}
	os.Exit(m.Run())
}

// serveNode is a server until its parent ends, whose end of the pipe closes then.
func serveNode(conf string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "test server:", err)
		os.Exit(1)
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		fail(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	if err != nil {
		fail(err)
	}
	s.Start()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// BusCluster is a bus of three servers, each a process, with every stream on three replicas.
type BusCluster struct {
	Core, Nodes *bus.Conn // of the services, by whichever server they get

	init  [2]*bus.Conn
	nodes []*clusterNode
}

type clusterNode struct {
	name, conf, url, dir string

	cmd  *exec.Cmd
	hold io.Closer // the pipe whose end it waits for
}

// Cluster starts the servers and makes the streams; all of it ends with the test.
func Cluster(t testing.TB) *BusCluster {
	t.Helper()
	accounts, err := bus.AccountsConf(bus.Users(nil, nil), func(bus.Role) string { return "pw" })
	if err != nil {
		t.Fatal(err)
	}
	const n = 3
	ports := freePorts(t, 2*n)
	routes := make([]string, n)
	for i := range n {
		routes[i] = "nats://127.0.0.1:" + ports[i]
	}
	c := &BusCluster{}
	root := t.TempDir()
	for i := range n {
		node := &clusterNode{
			name: fmt.Sprintf("s%d", i), url: "nats://127.0.0.1:" + ports[n+i], dir: filepath.Join(root, fmt.Sprint("s", i)),
			conf: filepath.Join(root, fmt.Sprintf("s%d.conf", i)),
		}
		conf := accounts + fmt.Sprintf("server_name: %s\nhost: 127.0.0.1\nport: %s\n", node.name, ports[n+i]) +
			fmt.Sprintf("cluster {name: weft, host: 127.0.0.1, port: %s, routes: [%s], no_advertise: true}\n", ports[i], strings.Join(routes, ", ")) +
			fmt.Sprintf("jetstream {store_dir: %q, sync_interval: always, max_memory_store: 3GiB, max_file_store: 1TiB}\n", node.dir)
		if err := os.WriteFile(node.conf, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		c.nodes = append(c.nodes, node)
	}
	t.Cleanup(func() {
		for _, node := range c.nodes {
			node.kill()
		}
	})
	for _, node := range c.nodes {
		node.start(t)
	}
	c.init[0], c.init[1] = c.Conn(t, bus.RoleCoreInit), c.Conn(t, bus.RoleNodesInit)
	c.Apply(t)
	c.Core, c.Nodes = c.Conn(t, bus.RoleCore), c.Conn(t, bus.RoleNodes)
	return c
}

// freePorts finds ports that nobody listens on now. All are held until the last is found, so they differ.
func freePorts(t testing.TB, n int) (ports []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() //nolint:errcheck // nothing was written to it
		_, p, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, p)
	}
	return ports
}

func (n *clusterNode) start(t testing.TB) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), clusterConf+"="+n.conf)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.cmd, n.hold = cmd, pipe
}

// kill ends the process as a power cut does.
func (n *clusterNode) kill() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Kill() // it may have ended
	_ = n.cmd.Wait()         // says that it was killed
	_ = n.hold.Close()
	n.cmd = nil
}

func (c *BusCluster) node(t testing.TB, name string) *clusterNode {
	t.Helper()
	i := slices.IndexFunc(c.nodes, func(n *clusterNode) bool { return n.name == name })
	if i < 0 {
		t.Fatalf("the cluster has no server %q", name)
	}
	return c.nodes[i]
}

// Servers names the servers.
func (c *BusCluster) Servers() (names []string) {
	for _, n := range c.nodes {
		names = append(names, n.name)
	}
	return names
}

// Dir is where a server keeps its streams.
func (c *BusCluster) Dir(t testing.TB, server string) string { return c.node(t, server).dir }

// Kill ends a server by SIGKILL; Start starts it again on what its disk holds.
func (c *BusCluster) Kill(t testing.TB, server string) { c.node(t, server).kill() }

// Start starts a server that was killed.
func (c *BusCluster) Start(t testing.TB, server string) { c.node(t, server).start(t) }

// Pause stops a server by SIGSTOP: its connections stay open and nobody answers on them. Resume lets it go on.
func (c *BusCluster) Pause(t testing.TB, server string) { c.signal(t, server, syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (c *BusCluster) Resume(t testing.TB, server string) { c.signal(t, server, syscall.SIGCONT) }

func (c *BusCluster) signal(t testing.TB, server string, s os.Signal) {
	t.Helper()
	if err := c.node(t, server).cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// Conn connects as a role, by any server that is there (or by those named), and closes with the test.
func (c *BusCluster) Conn(t testing.TB, r bus.Role, servers ...string) *bus.Conn {
	t.Helper()
	var urls []string
	for _, n := range c.nodes {
		if len(servers) == 0 || slices.Contains(servers, n.name) {
			urls = append(urls, n.url)
		}
	}
	var conn *bus.Conn
	Eventually(t, ClusterPatience, func() (err error) {
		conn, err = bus.Dial(context.Background(), bus.Options{
			URL: strings.Join(urls, ","), User: string(r), Password: "pw", Name: "test",
		})
		return err //nolint:wrapcheck // the test prints it
	})
	t.Cleanup(conn.Close)
	return conn
}

// Apply makes the streams that are missing.
func (c *BusCluster) Apply(t testing.TB) {
	t.Helper()
	Eventually(t, ClusterPatience, func() error {
		// Before there is a leader nobody answers: ask again soon rather than wait.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return bus.Apply(ctx, c.init[0], c.init[1], bus.ApplyOptions{Replicas: 3}) //nolint:wrapcheck // the test prints it
	})
}

// Init is the connection that may change the streams of an account.
func (c *BusCluster) Init(account string) *bus.Conn {
	if account == bus.AccountNodes {
		return c.init[1]
	}
	return c.init[0]
}

// Remake deletes streams and makes them anew, empty.
func (c *BusCluster) Remake(t testing.TB, streams ...string) {
	t.Helper()
	for _, s := range streams {
		d, ok := bus.Declared(s)
		if !ok {
			t.Fatalf("no stream %s is declared", s)
		}
		if err := c.Init(d.Account).JS().DeleteStream(context.Background(), s); err != nil {
			t.Fatal(err)
		}
	}
	c.Apply(t)
	for _, s := range streams {
		if d, _ := bus.Declared(s); d.Bucket {
			c.awaitDirect(t, d)
		}
	}
}

// awaitDirect waits until the server of the services' connection knows who answers direct reads of a bucket.
func (c *BusCluster) awaitDirect(t testing.TB, d bus.Declaration) {
	t.Helper()
	conn := c.Core
	if d.Account == bus.AccountNodes {
		conn = c.Nodes
	}
	Eventually(t, ClusterPatience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s, err := conn.JS().Stream(ctx, d.Name)
		if err == nil {
			_, err = s.GetLastMsgForSubject(ctx, strings.TrimSuffix(d.Subjects[1], ">")+"none")
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		return err //nolint:wrapcheck // the test prints it
	})
}

// Leader is the server that leads a stream's replicas.
func (c *BusCluster) Leader(t testing.TB, account, stream string) (name string) {
	t.Helper()
	return c.look(t, account, stream, func(_ context.Context, s jetstream.Stream) (string, error) {
		if info := s.CachedInfo().Cluster; info != nil && info.Leader != "" {
			return info.Leader, nil
		}
		return "", errors.New("no leader")
	})
}

// ConsumerServer is the server that holds a stream's one consumer.
func (c *BusCluster) ConsumerServer(t testing.TB, account, stream string) (name string) {
	t.Helper()
	return c.look(t, account, stream, func(ctx context.Context, s jetstream.Stream) (string, error) {
		for info := range s.ListConsumers(ctx).Info() {
			if info.Cluster != nil && info.Cluster.Leader != "" {
				return info.Cluster.Leader, nil
			}
		}
		return "", errors.New("no consumer")
	})
}

// look asks about a stream until there is an answer.
func (c *BusCluster) look(t testing.TB, account, stream string, ask func(context.Context, jetstream.Stream) (string, error)) (name string) {
	t.Helper()
	Eventually(t, ClusterPatience, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s, err := c.Init(account).JS().Stream(ctx, stream)
		if err == nil {
			name, err = ask(ctx, s)
		}
		return err //nolint:wrapcheck // the test prints it
	})
	return name
}

// MoveLeader makes a server lead a stream's replicas.
func (c *BusCluster) MoveLeader(t testing.TB, account, stream, server string) {
	t.Helper()
	Eventually(t, ClusterPatience, func() error {
		if c.Leader(t, account, stream) == server {
			return nil
		}
		ask := fmt.Sprintf(`{"placement": {"preferred": %q}}`, server)
		_, err := c.Init(account).NC().Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, []byte(ask), 2*time.Second)
		return errors.Join(errors.New("another server leads"), err)
	})
}

package bus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// ServerConfig is what an embedded server needs.
type ServerConfig struct {
	Dir     string   // data directory; passwords are kept in it
	Host    string   // "" = 127.0.0.1
	Port    int      // 0 = any free port
	Nodes   []string // one user each, NodeRole(name)
	Tenants []string // one DOOR user each, TenantRole(name)
	Cluster *Cluster // nil = a server alone
}

// Cluster makes a server one of several. All of them need the same file of users.
type Cluster struct {
	Server string   // name of this server, unique among them
	Listen string   // host:port for the other servers
	Routes []string // host:port of the servers, this one may be among them
}

// clusterUser is who servers sign in as at each other.
const clusterUser = Role("cluster")

// Embedded is a NATS server in this process.
type Embedded struct {
	srv       *server.Server
	passwords map[Role]string
}

// StartServer starts a server, ready for connections when it returns. Every message is synced to disk before it is
// acknowledged, except in streams that say otherwise. Passwords are generated once and kept in Dir, readable by its
// owner only.
func StartServer(c ServerConfig) (*Embedded, error) {
	roles := Users(c.Nodes, c.Tenants)
	all := roles
	if c.Cluster != nil {
		all = append(roles[:len(roles):len(roles)], clusterUser)
	}
	pw, err := Passwords(filepath.Join(c.Dir, UsersFile), all)
	if err != nil {
		return nil, err
	}
	conf, err := AccountsConf(roles, func(r Role) string { return pw[r] })
	if err != nil {
		return nil, err
	}
	host, port := c.Host, c.Port
	if host == "" {
		host = "127.0.0.1"
	}
	if port == 0 {
		port = server.RANDOM_PORT
	} else if l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port)); err != nil {
		// The server would only log this, and wait.
		return nil, fmt.Errorf("bus: cannot listen on %s:%d (is another Weft running? choose another port): %w", host, port, err)
	} else if err := l.Close(); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	name := "weft"
	if c.Cluster != nil {
		name = c.Cluster.Server
		conf += c.Cluster.conf(pw[clusterUser])
	}
	conf += fmt.Sprintf("server_name: %q\nhost: %q\nport: %d\n", name, host, port) +
		fmt.Sprintf("jetstream {store_dir: %q, sync_interval: always, max_memory_store: %d, max_file_store: %d}\n", c.Dir, memoryBytes, storeBytes)
	opts := &server.Options{}
	if err := opts.ProcessConfigString(conf); err != nil {
		return nil, fmt.Errorf("bus: server configuration: %w", err)
	}
	opts.NoSigs = true
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	srv.SetLoggerV2(natsLog{}, false, false, false)
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("bus: the embedded server did not become ready in 30 s")
	}
	return &Embedded{srv: srv, passwords: pw}, nil
}

// conf is the cluster's part of the configuration. Servers do not tell clients of each other: a client is told all of
// them by its operator, who knows which addresses it can reach.
func (c *Cluster) conf(password string) string {
	routes := make([]string, len(c.Routes))
	for i, r := range c.Routes {
		routes[i] = fmt.Sprintf("%q", fmt.Sprintf("nats://%s:%s@%s", clusterUser, password, r))
	}
	return fmt.Sprintf("cluster {name: weft, listen: %q, no_advertise: true, authorization {user: %q, password: %q}, routes: [%s]}\n",
		c.Listen, clusterUser, password, strings.Join(routes, ", "))
}

// Current says whether a server of a cluster is in contact with the others and has caught up with them.
func (s *Embedded) Current() bool { return s.srv.JetStreamIsCurrent() && s.srv.NumRoutes() > 0 }

// Conn connects in-process as a role.
func (s *Embedded) Conn(ctx context.Context, r Role) (*Conn, error) {
	user, pw, err := s.Credentials(r)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, Options{URL: s.URL(), User: user, Password: pw, Name: "embedded", InProcess: s.srv})
}

// Credentials returns user and password of a role.
func (s *Embedded) Credentials(r Role) (user, password string, err error) {
	pw, ok := s.passwords[r]
	if !ok {
		return "", "", fmt.Errorf("bus: the embedded server has no user %q", r)
	}
	return string(r), pw, nil
}

// URL is where clients of other processes connect.
func (s *Embedded) URL() string { return s.srv.ClientURL() }

// Shutdown stops the server and waits until its files are closed.
func (s *Embedded) Shutdown() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

// UsersFile is the name of the file of users and passwords.
const UsersFile = "bus-users.json"

// Users are the users of a bus: those of services and of its preparation, and one for each node and tenant.
func Users(nodes, tenants []string) []Role {
	roles := []Role{RoleCoreInit, RoleNodesInit, RoleCore, RoleNodes, RoleDoor}
	for _, n := range nodes {
		roles = append(roles, NodeRole(n))
	}
	for _, t := range tenants {
		roles = append(roles, TenantRole(t))
	}
	return roles
}

// Passwords reads the file and adds what is missing for these roles. Only they are returned: a user that is no longer
// named cannot sign in.
func Passwords(path string, roles []Role) (map[Role]string, error) {
	all := map[Role]string{}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("bus: %w", err)
	default:
		if err := json.Unmarshal(b, &all); err != nil {
			return nil, fmt.Errorf("bus: %s is damaged; remove it and new passwords are made: %w", path, err)
		}
	}
	out, changed := map[Role]string{}, false
	for _, r := range roles {
		if all[r] == "" {
			all[r], changed = rand.Text(), true
		}
		out[r] = all[r]
	}
	if !changed {
		return out, nil
	}
	b, err = json.MarshalIndent(all, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	return out, nil
}

// natsLog passes the server's warnings and errors on.
type natsLog struct{}

func (natsLog) Noticef(string, ...any) {}
func (natsLog) Debugf(string, ...any)  {}
func (natsLog) Tracef(string, ...any)  {}
func (natsLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords") {
		return // they are long, random and in a file that only its owner reads; bcrypt would cost 50 ms a connection
	}
	slog.Warn("nats: " + fmt.Sprintf(format, v...))
}
func (natsLog) Errorf(format string, v ...any) { slog.Error("nats: " + fmt.Sprintf(format, v...)) }
func (natsLog) Fatalf(format string, v ...any) { slog.Error("nats: " + fmt.Sprintf(format, v...)) }

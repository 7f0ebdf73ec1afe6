// Command weft-agent runs one machine of a fabric.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/config"
	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/run"
	nodeagent "github.com/weft-fabric/weft/services/node-agent"
)

func main() {
	nodeagent.MaybeShim()
	var o options
	flag.StringVar(&o.url, "nats", "nats://127.0.0.1:7402", "address of the bus")
	flag.StringVar(&o.data, "data", "/var/lib/weft", "directory of this node's runs (nodes/<node>), of saves and of bus/bus-users.json")
	flag.StringVar(&o.credentials, "credentials", os.Getenv("WEFT_CREDENTIALS"), "file of the bus's users and passwords; this node's is enough (default: in --data)")
	flag.StringVar(&o.settings, "config", "", "settings file (YAML)")
	flag.StringVar(&o.node, "node", "", "this node's name (default: the host's)")
	flag.StringVar(&o.address, "address", "", "at which other nodes reach this one's ranks (default: the one from which the bus is reached)")
	flag.StringVar(&o.simulate, "simulate", "", "simulate devices instead of looking for some, such as a100x8; models are "+strings.Join(device.Models(), ", "))
	flag.Parse()
	run.Main(run.Func("node-agent", func(ctx context.Context) error { return serve(ctx, o) }))
}

type options struct{ url, data, credentials, settings, node, address, simulate string }

// startWithin bounds the first look at bus and devices.
const startWithin = 30 * time.Second

func serve(ctx context.Context, o options) error {
	starting, started := context.WithTimeout(ctx, startWithin)
	defer started()
	cfg, err := configure(o)
	if err != nil {
		return err
	}
	dev, err := devices(starting, o.simulate, cfg.Node)
	if err != nil {
		return err
	}
	if dev != nil {
		defer func() { _ = dev.Close() }()
	}
	conn, err := dial(starting, o, bus.NodeRole(cfg.Node))
	if err != nil {
		return err
	}
	defer conn.Close()
	return nodeagent.New(cfg, nodeagent.Connect(ctx, cfg.Node, conn, dev)).Run(ctx)
}

func configure(o options) (nodeagent.Config, error) {
	cfg := nodeagent.DefaultConfig()
	if err := config.Load(&cfg, o.settings); err != nil {
		return cfg, err
	}
	data, err := filepath.Abs(o.data)
	if err != nil {
		return cfg, err
	}
	if o.node != "" {
		cfg.Node = o.node
	}
	if cfg.Node == "" {
		cfg.Node = hostToken()
	}
	if o.address != "" {
		cfg.Address = o.address
	}
	if cfg.Address == "" {
		if cfg.Address, err = addressTowards(o.url); err != nil {
			return cfg, err
		}
	}
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(data, "nodes", cfg.Node)
	}
	if cfg.SavesDir == "" {
		cfg.SavesDir = filepath.Join(data, "saves")
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		cfg.Version = info.Main.Version
	}
	return cfg, cfg.Validate()
}

// devices opens what was asked for. A machine without accelerators is a node too, and says so.
func devices(ctx context.Context, profile, node string) (device.Provider, error) {
	if profile != "" {
		h := fnv.New64a()
		_, _ = h.Write([]byte(node))
		return device.NewSim(profile, h.Sum64())
	}
	dev, err := nodeagent.OpenNVML(ctx)
	if errors.Is(err, device.ErrNoLibrary) {
		slog.Warn("no accelerators: this node offers processors and memory only", "why", err)
		return nil, nil
	}
	return dev, err
}

func dial(ctx context.Context, o options, role bus.Role) (*bus.Conn, error) {
	if o.credentials == "" {
		o.credentials = filepath.Join(o.data, "bus", "bus-users.json")
	}
	b, err := os.ReadFile(o.credentials) // #nosec G304: the operator names it
	if err != nil {
		return nil, fmt.Errorf("credentials of the bus: %w; name a file with this node's user with --credentials", err)
	}
	passwords := map[bus.Role]string{}
	if err := json.Unmarshal(b, &passwords); err != nil {
		return nil, fmt.Errorf("%s is no file of users: %w", o.credentials, err)
	}
	if passwords[role] == "" {
		return nil, fmt.Errorf("%s holds no password of user %s; the bus must know the node by that name", o.credentials, role)
	}
	return bus.Dial(ctx, bus.Options{URL: o.url, User: string(role), Password: passwords[role], Name: "weft-agent"})
}

// addressTowards is this machine's address on the way to the bus; nothing is sent.
func addressTowards(bus string) (string, error) {
	u, err := url.Parse(bus)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("--nats %q is not an address such as nats://10.0.0.1:4222", bus)
	}
	c, err := net.Dial("udp", net.JoinHostPort(u.Hostname(), "9"))
	if err != nil {
		return "", fmt.Errorf("no way to the bus: %w; give this node's address with --address", err)
	}
	defer func() { _ = c.Close() }()
	return c.LocalAddr().(*net.UDPAddr).IP.String(), nil
}

var notToken = regexp.MustCompile(`[^a-z0-9-]+`)

// hostToken makes a node's name of the host's.
func hostToken() string {
	h, err := os.Hostname()
	if err != nil {
		return ""
	}
	h, _, _ = strings.Cut(h, ".")
	t := notToken.ReplaceAllString(strings.ToLower(h), "-")
	return strings.Trim(t[:min(len(t), 63)], "-")
}

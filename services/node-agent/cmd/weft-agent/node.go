package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/program"
	nodeagent "github.com/weft-fabric/weft/services/node-agent"
)

// settle fills in what this machine itself can tell.
func settle(c *nodeagent.Config, o program.Options, simulate string) (err error) {
	if c.Node == "" {
		c.Node = nodeagent.HostNode()
	}
	if c.Address == "" {
		if c.Address, err = addressTowards(o.NATS); err != nil {
			return err
		}
	}
	if c.Dir == "" {
		c.Dir = filepath.Join(o.Data, "nodes", c.Node)
	}
	if c.SavesDir == "" {
		c.SavesDir = filepath.Join(o.Data, "saves")
	}
	if c.OutputDir == "" { // as the agent itself would; Validate wants to see it
		c.OutputDir = filepath.Join(c.Dir, "output")
		if c.SavesShared {
			c.OutputDir = filepath.Join(filepath.Dir(c.SavesDir), "output")
		}
	}
	for _, dir := range []*string{&c.Dir, &c.SavesDir, &c.OutputDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if simulate != "" {
		if _, err := device.ParseProfile(simulate); err != nil {
			return fmt.Errorf("--simulate %s: %w", simulate, err)
		}
		c.OfferSimulated()
	}
	c.Version = program.Version()
	return nil
}

// lookWithin bounds the first look at the devices.
const lookWithin = 30 * time.Second

// devices opens what was asked for. A machine without accelerators is a node too, and says so.
func devices(ctx context.Context, profile, node string) (device.Provider, error) {
	if profile != "" {
		h := fnv.New64a()
		_, _ = h.Write([]byte(node))
		return device.NewSim(profile, h.Sum64())
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	dev, err := nodeagent.OpenNVML(ctx)
	if errors.Is(err, device.ErrNoLibrary) {
		slog.Warn("no accelerators: this node offers processors and memory only", "why", err)
		return nil, nil
	}
	return dev, err
}

// addressTowards is this machine's address on the way to the bus, to the first of its servers; nothing is sent.
func addressTowards(bus string) (string, error) {
	first, _, _ := strings.Cut(bus, ",")
	u, err := url.Parse(first)
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

// Package testkit is what tests of several packages share: waiting for something to become true, and a bus.
package testkit

import (
	"context"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
)

// Eventually polls f until it returns true (or nil) and fails the test if that takes longer than within.
func Eventually[F func() bool | func() error](t testing.TB, within time.Duration, f F) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		var err error
		ok := false
		switch f := any(f).(type) {
		case func() bool:
			ok = f()
		case func() error:
			err = f()
			ok = err == nil
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", within, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// EmbeddedBus is a bus of one server with every stream made.
type EmbeddedBus struct {
	Server            *bus.Embedded
	Core, Nodes, Door *bus.Conn
}

// Bus starts an embedded bus in a temporary directory, with users for the given nodes, and stops it with the test.
func Bus(t testing.TB, nodes ...string) *EmbeddedBus {
	t.Helper()
	ctx := context.Background()
	srv, err := bus.StartServer(bus.ServerConfig{Dir: t.TempDir(), Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	dial := func(r bus.Role) *bus.Conn {
		c, err := srv.Conn(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	if err := bus.Apply(ctx, dial(bus.RoleCoreInit), dial(bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return &EmbeddedBus{Server: srv, Core: dial(bus.RoleCore), Nodes: dial(bus.RoleNodes), Door: dial(bus.RoleDoor)}
}

// Conn connects as a role and closes with the test.
func (b *EmbeddedBus) Conn(t testing.TB, r bus.Role) *bus.Conn {
	t.Helper()
	c, err := b.Server.Conn(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

package busnats_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/bus/bustest"
	"github.com/weft-fabric/weft/libs/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// tiny is a stream that is soon full.
func tiny(t *testing.T, admin *bus.Conn, replicas int) {
	t.Helper()
	_, err := admin.JS().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "TINY", Subjects: []string{"weft.tiny"}, MaxBytes: 64 << 10, Discard: jetstream.DiscardNew, Replicas: replicas,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestContract(t *testing.T) {
	t.Run("inbox", func(t *testing.T) {
		bustest.RunInbox(t, func(t *testing.T) bustest.InboxFixture {
			b := testkit.Bus(t)
			return bustest.InboxFixture{
				Outbox: busnats.NewOutbox(b.Nodes, bus.StreamReports),
				Inbox: func(filter string) bus.Inbox {
					return busnats.NewInbox(t.Context(), b.Nodes, bus.StreamReports, filter)
				},
				Recreate: func() { recreate(t, b, bus.StreamReports) },
			}
		})
	})
	t.Run("outbox", func(t *testing.T) {
		bustest.RunOutbox(t, func(t *testing.T) bustest.OutboxFixture {
			b := testkit.Bus(t)
			tiny(t, b.Conn(t, bus.RoleCoreInit), 1)
			return bustest.OutboxFixture{
				Events: busnats.NewOutbox(b.Core, bus.StreamEvents), Assign: busnats.NewOutbox(b.Nodes, bus.StreamAssignments),
				Tiny: busnats.NewOutbox(b.Core, "TINY"), TinyReader: busnats.NewInbox(t.Context(), b.Core, "TINY", ""),
			}
		})
	})
	t.Run("caller", func(t *testing.T) {
		bustest.RunCaller(t, func(t *testing.T) (bus.Caller, bus.Caller) {
			b := testkit.Bus(t)
			return busnats.NewCaller(b.Core), busnats.NewCaller(b.Conn(t, bus.RoleCore))
		})
	})
	t.Run("objects", func(t *testing.T) {
		bustest.RunObjects(t, func(t *testing.T) bus.Objects {
			return busnats.NewObjects(testkit.Bus(t).Nodes, bus.BucketBundles)
		})
	})
}

// The same on three replicas: one cluster, with the streams made anew for each part.
func TestContractR3(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers")
	}
	c := testkit.Cluster(t)
	t.Run("inbox", func(t *testing.T) {
		bustest.RunInbox(t, func(t *testing.T) bustest.InboxFixture {
			c.Remake(t, bus.StreamReports)
			return bustest.InboxFixture{
				Outbox: busnats.NewOutbox(c.Nodes, bus.StreamReports),
				Inbox: func(filter string) bus.Inbox {
					return busnats.NewInbox(t.Context(), c.Nodes, bus.StreamReports, filter)
				},
				Recreate: func() { c.Remake(t, bus.StreamReports) },
			}
		})
	})
	t.Run("outbox", func(t *testing.T) {
		bustest.RunOutbox(t, func(t *testing.T) bustest.OutboxFixture {
			c.Remake(t, bus.StreamEvents, bus.StreamAssignments)
			admin := c.Init(bus.AccountCore)
			tiny(t, admin, 3)
			t.Cleanup(func() {
				if err := admin.JS().DeleteStream(context.Background(), "TINY"); err != nil {
					t.Error(err)
				}
			})
			return bustest.OutboxFixture{
				Events: busnats.NewOutbox(c.Core, bus.StreamEvents), Assign: busnats.NewOutbox(c.Nodes, bus.StreamAssignments),
				Tiny: busnats.NewOutbox(c.Core, "TINY"), TinyReader: busnats.NewInbox(t.Context(), c.Core, "TINY", ""),
			}
		})
	})
	t.Run("caller", func(t *testing.T) {
		// By one server: another one hears of a new subscriber a moment later, and until then says that nobody is there.
		one := c.Servers()[0]
		bustest.RunCaller(t, func(t *testing.T) (bus.Caller, bus.Caller) {
			return busnats.NewCaller(c.Conn(t, bus.RoleCore, one)), busnats.NewCaller(c.Conn(t, bus.RoleCore, one))
		})
	})
	t.Run("objects", func(t *testing.T) {
		bustest.RunObjects(t, func(t *testing.T) bus.Objects {
			c.Remake(t, "OBJ_"+bus.BucketBundles)
			return busnats.NewObjects(c.Nodes, bus.BucketBundles)
		})
	})
}

func recreate(t *testing.T, b *testkit.EmbeddedBus, stream string) {
	t.Helper()
	if err := b.Conn(t, bus.RoleNodesInit).JS().DeleteStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	if err := bus.Apply(t.Context(), b.Conn(t, bus.RoleCoreInit), b.Conn(t, bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
}

package busnats_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/bus/bustest"
	"github.com/weft-fabric/weft/libs/testkit"
)

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
			_, err := b.Conn(t, bus.RoleCoreInit).JS().CreateStream(t.Context(), jetstream.StreamConfig{
				Name: "TINY", Subjects: []string{"weft.tiny"}, MaxBytes: 64 << 10, Discard: jetstream.DiscardNew,
			})
			if err != nil {
				t.Fatal(err)
			}
			return bustest.OutboxFixture{
				Events: busnats.NewOutbox(b.Core, bus.StreamEvents), Assign: busnats.NewOutbox(b.Nodes, bus.StreamAssignments),
				Tiny: busnats.NewOutbox(b.Core, "TINY"),
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

func recreate(t *testing.T, b *testkit.EmbeddedBus, stream string) {
	t.Helper()
	if err := b.Conn(t, bus.RoleNodesInit).JS().DeleteStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	if err := bus.Apply(t.Context(), b.Conn(t, bus.RoleCoreInit), b.Conn(t, bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
}

package nodeagent

import (
	"context"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/device"
)

// Connect makes an agent's dependencies of a connection of the node's own user. ctx is the life of the inbox.
func Connect(ctx context.Context, node string, conn *bus.Conn, dev device.Provider) Deps {
	return Deps{
		Device:      dev,
		Assignments: busnats.NewInbox(ctx, conn, bus.StreamAssignments, bus.SubjectAssign(node)),
		Reports:     busnats.NewOutbox(conn, bus.StreamReports),
		Saves:       busnats.NewOutbox(conn, bus.StreamSaves),
		Logs:        busnats.NewOutbox(conn, bus.StreamLogs),
		Metrics:     busnats.NewOutbox(conn, bus.StreamMetrics),
		Caller:      busnats.NewCaller(conn),
		Bundles:     busnats.NewObjects(conn, bus.BucketBundles),
	}
}

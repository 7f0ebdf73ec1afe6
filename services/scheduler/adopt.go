package scheduler

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/services/scheduler/internal/shell"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// Adopter is a writer of LEDGER that only adopts: after a loss, or after a backup was put back. It never decides anything
// but what its Adopt begins with.
func Adopter(ctx context.Context, log ledger.Log, proj *ledger.Projection[*cell.State], core, nodes *bus.Conn) *ledger.Writer[*cell.State] {
	w := ledger.NewWriter(log, proj, Name, "adopt-"+strings.ToLower(rand.Text()))
	w.Confirmed = Confirmed(core, nodes)
	reports := shell.Reports{In: busnats.NewInbox(ctx, nodes, bus.StreamReports, ""), Out: busnats.NewOutbox(nodes, bus.StreamReports)}
	w.OnAdopt = shell.Takeup(proj, w, reports, lifecycle.DefaultPolicy())
	return w
}

// Confirmed asks for the newest record of LEDGER that is known outside of it.
func Confirmed(core, nodes *bus.Conn) func(context.Context) (uint64, error) {
	return shell.Confirmed(busnats.NewOutbox(core, bus.StreamEvents), busnats.NewOutbox(nodes, bus.StreamAssignments))
}

// Headers of EVENTS: which fact an event is ("<ledger sequence>/<index>"), and the job that it concerns.
const (
	PositionHeader = shell.PositionHeader
	JobHeader      = bus.HeaderJob
)

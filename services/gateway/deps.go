package gateway

import (
	"context"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/services/gateway/internal/api"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// Projection is the state of the cell as folded from the ledger. Whoever makes it also steps it; the gateway registers
// its hooks in New, so New comes before the first step.
type Projection = ledger.Projection[*cell.State]

// Stream is a stream that the gateway reads for its callers: a fresh inbox each, and where the stream ends now.
type Stream = api.Stream

// Deps are what the gateway works with.
type Deps struct {
	Proj     *Projection
	Core     bus.Caller  // calls to services, in CORE
	Requests bus.Outbox  // REQUESTS
	Events   Stream      // EVENTS
	Logs     Stream      // LOGS
	Bundles  bus.Objects // BUNDLES
	Door     bus.Caller  // pipelines, in DOOR; nil = no door
}

// Connect takes everything from connections to the three accounts; door may be nil.
func Connect(proj *Projection, core, nodes, door *bus.Conn) Deps {
	d := Deps{
		Proj: proj, Core: busnats.NewCaller(core), Requests: busnats.NewOutbox(core, bus.StreamRequests),
		Events: stream(core, bus.StreamEvents), Logs: stream(nodes, bus.StreamLogs),
		Bundles: busnats.NewObjects(nodes, bus.BucketBundles),
	}
	if door != nil {
		d.Door = busnats.NewCaller(door)
	}
	return d
}

func stream(conn *bus.Conn, name string) Stream {
	out := busnats.NewOutbox(conn, name)
	return Stream{
		Open: func(ctx context.Context) bus.Inbox { return busnats.NewInbox(ctx, conn, name, "") },
		Last: func(ctx context.Context) (uint64, error) {
			_, seq, ok, err := out.Last(ctx)
			if !ok {
				seq = 0
			}
			return seq, err
		},
	}
}

// Grant says what a token may do: role admin, user or viewer; users and viewers belong to one tenant.
type Grant struct{ Name, Tenant, Role string }

// CreateToken adds a token to the token file (made with mode 0600 if absent) and returns it; only its hash is stored.
func CreateToken(file string, g Grant) (string, error) {
	return auth.Create(file, auth.Identity{Name: g.Name, Tenant: g.Tenant, Role: auth.Role(g.Role)})
}

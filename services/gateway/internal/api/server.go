// Package api answers the gateway's calls: it checks, asks the projection or another service, writes requests, and waits
// for their decision. It never decides what happens to a job.
package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// Stream is a stream that the gateway reads for its callers.
type Stream struct {
	// Open starts a reader at the stream's beginning; it ends with ctx.
	Open func(ctx context.Context) bus.Inbox
	// Last returns the sequence of the newest stored message, 0 if there is none.
	Last func(ctx context.Context) (uint64, error)
}

// Options are the parts of the server.
type Options struct {
	Proj       *ledger.Projection[*cell.State]
	Core       bus.Caller
	Requests   bus.Outbox
	Events     Stream
	Logs       Stream
	Bundles    bus.Objects
	Fence      time.Duration
	DecideWait time.Duration
	Version    string
	Now        func() time.Time
}

// Server implements JobService and CellService.
type Server struct {
	apiv1.UnimplementedJobServiceServer
	apiv1.UnimplementedCellServiceServer
	Options
	track *tracker
	quit  chan struct{}
	once  sync.Once
}

// New registers the server's hooks on the projection, which must not have been stepped yet.
func New(o Options) *Server {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Server{Options: o, track: newTracker(o.Proj), quit: make(chan struct{})}
}

// cell is the state as of now; it stays as it is while the caller reads it, and holds nobody up.
func (s *Server) cell() (st *cell.State, at ledger.Position) {
	s.Proj.View(func(live *cell.State, pos ledger.Position) { st, at = live.Overlay(), pos })
	return st, at
}

// Close ends the streams that clients follow.
func (s *Server) Close() { s.once.Do(func() { close(s.quit) }) }

var errGoingDown = status.Error(codes.Unavailable, "the gateway is going down; connect again")

// mayWrite refuses viewers.
func mayWrite(who auth.Identity) error {
	if who.Role == auth.Viewer {
		return status.Errorf(codes.PermissionDenied, "token %q may only read; ask an administrator for a token with role user", who.Name)
	}
	return nil
}

// mayAdminister refuses everybody but administrators.
func mayAdminister(who auth.Identity, what string) error {
	if who.Role != auth.Admin {
		return status.Errorf(codes.PermissionDenied, "%s takes an administrator; token %q has role %s", what, who.Name, who.Role)
	}
	return nil
}

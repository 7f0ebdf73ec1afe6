package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
)

// Projection is the state of the cell as folded from the ledger. Whoever makes it also steps it; New registers hooks on
// it, so New comes before the first step.
type Projection = ledger.Projection[*cell.State]

// Deps are what the service works with; it closes none of them.
type Deps struct {
	Metrics bus.Inbox // METRICS of the NODES account, every node
	Proj    *Projection
	Clock   func() time.Time // nil = time.Now
}

// Service is the telemetry service; it implements run.Service.
type Service struct {
	cfg      Config
	deps     Deps
	listener net.Listener
}

// New binds the address, so that it is known before the first scrape.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, deps: deps}
	var err error
	if s.listener, err = net.Listen("tcp", cfg.Metrics); err != nil {
		return nil, fmt.Errorf("telemetry: listen for /metrics: %w; stop what uses that address, or choose another by the setting metrics", err)
	}
	return s, nil
}

// Name implements run.Service.
func (s *Service) Name() string { return "telemetry" }

// Addr is where /metrics is served.
func (s *Service) Addr() string { return s.listener.Addr().String() }

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	if err := s.listener.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

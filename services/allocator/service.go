package allocator

import (
	"context"
	"errors"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/allocator/internal/shell"
	"github.com/weft-fabric/weft/services/allocator/plan"
)

// Name of the service.
const Name = "allocator"

// Config are the settings of the allocator.
type Config struct {
	Tries int `koanf:"tries"` // gangs that one plan tries to place at most
}

// DefaultConfig is what a cell runs with unless told otherwise.
func DefaultConfig() Config { return Config{Tries: plan.DefaultPolicy().Tries} }

// Validate names the first setting that is wrong, and its cure.
func (c Config) Validate() error {
	if c.Tries < 1 {
		return errors.New("allocator: tries must be at least 1; leave it out for the default")
	}
	return nil
}

// Deps are what the allocator works with. Whoever makes the projection also steps it.
type Deps struct {
	Proj *ledger.Projection[*cell.State]
	Core bus.Caller
}

// Service is the allocator, a run.Service.
type Service struct{ shell *shell.Answerer }

// New wires an allocator.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a, err := shell.New(d.Proj, d.Core, plan.Policy{Tries: cfg.Tries})
	if err != nil {
		return nil, err
	}
	return &Service{a}, nil
}

// Name implements run.Service.
func (s *Service) Name() string { return Name }

// Shells are the loops of the service.
func (s *Service) Shells() []run.Shell { return []run.Shell{s.shell} }

// Run implements run.Service.
func (s *Service) Run(ctx context.Context) error {
	defer s.shell.Close() // or the bus goes on to bring questions here
	return run.Loop(ctx, nil, s.shell)
}

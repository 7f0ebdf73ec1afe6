package checkpoint

import (
	"context"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
)

// Deps are what the service works with; it closes none of them.
type Deps struct {
	Log     ledger.Log       // CHECKPOINTS
	Snaps   ledger.Snapshots // of CHECKPOINTS; nil = none
	Saves   bus.Inbox        // SAVES, every node
	Core    bus.Caller       // CORE: calls of services, beats of the leader
	Nodes   bus.Caller       // NODES: agents ask where a save is
	Replica string           // unique name of this process; empty = made up
	Clock   func() time.Time // nil = time.Now
}

// Service is the checkpoint service; it implements run.Service.
type Service struct {
	cfg  Config
	deps Deps
}

// New checks the settings; Run starts it.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Service{cfg: cfg, deps: deps}, nil
}

// Name implements run.Service.
func (s *Service) Name() string { return "checkpoint" }

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

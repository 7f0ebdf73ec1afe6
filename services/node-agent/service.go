package nodeagent

import (
	"context"
	"errors"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/device"
)

// Deps are what an agent works with; the agent closes none of them.
type Deps struct {
	Device device.Provider

	Assignments bus.Inbox // of StreamAssignments, filtered to this node's subject
	Reports     bus.Outbox
	Saves       bus.Outbox
	Logs        bus.Outbox
	Metrics     bus.Outbox
	Caller      bus.Caller // of the NODES account
	Bundles     bus.Objects
}

// Agent is one machine's agent, a run.Service.
type Agent struct {
	cfg  Config
	deps Deps
}

// New makes an agent; Run starts it, and fails if cfg is not valid.
func New(cfg Config, deps Deps) *Agent { return &Agent{cfg: cfg.withDefaults(), deps: deps} }

// Name implements run.Service.
func (a *Agent) Name() string { return "node-agent" }

// Run implements run.Service. When it returns the ranks run on; the next agent with the same directory adopts them.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.cfg.Validate(); err != nil {
		return err
	}
	return errors.New("node-agent: not yet")
}

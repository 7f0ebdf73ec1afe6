package scheduler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/scheduler/internal/shell"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// Name of the service, as in subjects and terms.
const Name = "scheduler"

// Config are the settings of the scheduler.
type Config struct {
	Silent time.Duration `koanf:"silent"` // without a beat for this long a node is silent
	Fence  time.Duration `koanf:"fence"`  // silent for this long it is lost; 0 = never by itself
	// Alone: no other replica can exist, so lead at once.
	Alone   bool   `koanf:"alone"`
	Replica string `koanf:"replica"` // unique name of this process; empty = made up
}

// DefaultConfig is what a cell runs with unless told otherwise.
func DefaultConfig() Config {
	p := lifecycle.DefaultPolicy()
	return Config{Silent: p.Silent, Fence: p.Fence}
}

// Validate names the first setting that is wrong, and its cure.
func (c Config) Validate() error {
	switch {
	case c.Silent < time.Second:
		return fmt.Errorf("scheduler: silent %v is too short: a machine is not silent because one beat was late; use 15s", c.Silent)
	case c.Fence < 0:
		return errors.New("scheduler: fence is negative; write 0 for no fence, or a duration such as 10m")
	}
	return nil
}

// Deps are what the scheduler works with. Whoever makes the projection also steps it.
type Deps struct {
	Log         ledger.Log // LEDGER, to append to
	History     ledger.Log // LEDGER, a reader of its own for the events
	Proof       ledger.Log // LEDGER, a reader of its own for the snapshots
	Records     ledger.Log // LEDGER, one of its own to trim it; nil = it stays whole
	Proj        *ledger.Projection[*cell.State]
	Snapshots   ledger.Snapshots // nil = none
	Core        bus.Caller
	Nodes       bus.Caller
	Requests    bus.Inbox
	Reports     bus.Inbox
	Checkpoints bus.Inbox   // of CHECKPOINTS; nil = no saves
	Trim        []bus.Inbox // of the streams that this service trims
	Events      bus.Outbox
	Assignments bus.Outbox
	Logger      *slog.Logger
}

// Connect takes everything from connections to the two accounts. Close ends the readers that it opens.
func Connect(ctx context.Context, log *natsledger.Log, proj *ledger.Projection[*cell.State], core, nodes *bus.Conn) (Deps, func(), error) {
	history, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		return Deps{}, nil, err
	}
	proof, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		history.Close()
		return Deps{}, nil, err
	}
	records, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		history.Close()
		proof.Close()
		return Deps{}, nil, err
	}
	closeAll := func() { history.Close(); proof.Close(); records.Close() }
	snaps, err := natsledger.OpenSnapshots(ctx, core, bus.StreamLedger)
	if err != nil {
		closeAll()
		return Deps{}, nil, err
	}
	return Deps{
		Log: log, History: history, Proof: proof, Records: records, Proj: proj, Snapshots: snaps,
		Core: busnats.NewCaller(core), Nodes: busnats.NewCaller(nodes),
		Requests:    busnats.NewInbox(ctx, core, bus.StreamRequests, ""),
		Reports:     busnats.NewInbox(ctx, nodes, bus.StreamReports, ""),
		Checkpoints: busnats.NewInbox(ctx, core, bus.StreamCheckpoints, ""),
		Trim:        []bus.Inbox{busnats.NewInbox(ctx, core, bus.StreamRequests, ""), busnats.NewInbox(ctx, nodes, bus.StreamReports, "")},
		Events:      busnats.NewOutbox(core, bus.StreamEvents),
		Assignments: busnats.NewOutbox(nodes, bus.StreamAssignments),
	}, closeAll, nil
}

// Service is the scheduler, a run.Service.
type Service struct {
	shells  []run.Shell
	decider *shell.Decider
}

// New wires a scheduler; it must be made before the projection is first stepped.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	if cfg.Replica == "" { // two of one name would take each other's beats for their own
		cfg.Replica = Name + "-" + strings.ToLower(rand.Text())
	}
	log := d.Logger.With("service", Name)
	policy := lifecycle.DefaultPolicy()
	policy.Silent, policy.Fence = cfg.Silent, cfg.Fence
	w := ledger.NewWriter(d.Log, d.Proj, Name, cfg.Replica)
	w.Confirmed = shell.Confirmed(d.Events, d.Assignments)
	decider, err := shell.NewDecider(shell.Options{
		Proj: d.Proj, Writer: w, Ledger: d.Log, Requests: d.Requests, Reports: d.Reports, Checkpoints: d.Checkpoints,
		Core: d.Core, Nodes: d.Nodes, Policy: policy, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	announcer := shell.NewAnnouncer(d.Proj, w, d.History, d.Events)
	s := &Service{decider: decider, shells: []run.Shell{
		ledger.NewLeadership(d.Core, w, bus.SubjectLeader(Name), ledger.LeadershipOptions{Alone: cfg.Alone}),
		decider,
		shell.NewAssigner(d.Proj, w, d.Assignments, log),
		announcer,
	}}
	if d.Snapshots != nil {
		s.shells = append(s.shells, ledger.NewSnapshotter(d.Proj, d.Proof, d.Snapshots, ledger.SnapshotterOptions{Leading: w.Leading}))
	}
	if len(d.Trim) > 0 {
		t := shell.NewTrimmer(d.Proj, w, d.Trim...)
		if d.Records != nil && d.Snapshots != nil {
			t.TrimRecords(shell.Records{Log: d.Records, Snapshots: d.Snapshots, Announcer: announcer})
		}
		s.shells = append(s.shells, t)
	}
	return s, nil
}

// Name implements run.Service.
func (s *Service) Name() string { return Name }

// Shells are the loops of the service, in the order in which a test steps them.
func (s *Service) Shells() []run.Shell { return s.shells }

// Run implements run.Service.
func (s *Service) Run(ctx context.Context) error {
	defer s.decider.Close()
	return run.Loop(ctx, nil, s.shells...)
}

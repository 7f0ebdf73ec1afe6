package checkpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/run"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/internal/shell"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

// Deps are what the service works with; it closes none of them. Snaps needs Proof.
type Deps struct {
	Log     ledger.Log       // CHECKPOINTS; this service's own, nobody else reads through it
	Proof   ledger.Log       // CHECKPOINTS, a reader of its own for the snapshots
	Snaps   ledger.Snapshots // of CHECKPOINTS; nil = none
	Saves   bus.Inbox        // SAVES, every node
	Core    bus.Caller       // CORE: calls of services, beats of the leader
	Nodes   bus.Caller       // NODES: agents ask where a save is
	Replica string           // unique name of this process; empty = made up
	Clock   func() time.Time // nil = time.Now
}

// Connect takes everything from connections to CORE and NODES. Close ends the readers that it opens.
func Connect(ctx context.Context, core, nodes *bus.Conn) (Deps, func(), error) {
	log, err := natsledger.Open(ctx, core, bus.StreamCheckpoints)
	if err != nil {
		return Deps{}, nil, err
	}
	proof, err := natsledger.Open(ctx, core, bus.StreamCheckpoints)
	if err != nil {
		log.Close()
		return Deps{}, nil, err
	}
	closeReaders := func() { log.Close(); proof.Close() }
	snaps, err := natsledger.OpenSnapshots(ctx, core, bus.StreamCheckpoints)
	if err != nil {
		closeReaders()
		return Deps{}, nil, err
	}
	return Deps{
		Log: log, Proof: proof, Snaps: snaps, Saves: busnats.NewInbox(ctx, nodes, bus.StreamSaves, ""),
		Core: busnats.NewCaller(core), Nodes: busnats.NewCaller(nodes),
	}, closeReaders, nil
}

// Service is the checkpoint service; it implements run.Service.
type Service struct {
	cfg     Config
	clock   func() time.Time
	workers *shell.Workers
	shells  []run.Shell
	writer  *shell.Writer
	keeper  *shell.Shell
}

// verifiers is how many parts are read back at once; more would compete with the ranks for the same disk.
const verifiers = 2

// New checks the settings and puts the service together; Run starts it.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Log == nil || deps.Saves == nil || deps.Core == nil {
		return nil, errors.New("checkpoint: Log, Saves and Core are needed")
	}
	if deps.Replica == "" {
		deps.Replica = "checkpoint-" + strings.ToLower(rand.Text())
	}
	proj := ledger.NewProjection(deps.Log, fold(), deps.Snaps)
	s := &Service{
		cfg: cfg, clock: deps.Clock, workers: shell.NewWorkers(),
		writer: ledger.NewWriter(deps.Log, proj, "checkpoint", deps.Replica),
	}
	callers := []bus.Caller{deps.Core}
	if deps.Nodes != nil {
		callers = append(callers, deps.Nodes)
	}
	s.keeper = shell.New(shell.Config{Dir: cfg.Dir, Policy: keeper.Policy{Full: cfg.KeepFull, Light: cfg.KeepLight}}, shell.Deps{
		Proj: proj, Writer: s.writer, Saves: deps.Saves, Callers: callers, Pool: s.workers,
	})
	s.shells = []run.Shell{
		proj,
		ledger.NewLeadership(deps.Core, s.writer, bus.SubjectLeader("checkpoint"), ledger.LeadershipOptions{Alone: cfg.Alone}),
		s.keeper,
	}
	if deps.Snaps != nil {
		s.shells = append(s.shells, ledger.NewSnapshotter(proj, deps.Proof, deps.Snaps, ledger.SnapshotterOptions{Leading: s.writer.Leading}))
	}
	return s, nil
}

// fold joins the keeper to the ledger library.
func fold() ledger.Fold[*keeper.Index] {
	return ledger.Fold[*keeper.Index]{
		New: keeper.NewIndex, Encode: keeper.Encode, Decode: keeper.Decode, Version: keeper.FoldVersion,
		Apply: func(ix *keeper.Index, c *weftv1.Commit, seq uint64) error {
			err := keeper.Apply(ix, c)
			if u := (*keeper.Unknown)(nil); errors.As(err, &u) {
				return &ledger.UnknownKind{Kind: u.Kind, Seq: seq}
			}
			return err
		},
	}
}

// Name implements run.Service.
func (s *Service) Name() string { return "checkpoint" }

// Run works until ctx ends. What is being verified then is verified again by the next leader.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.workers.Run(ctx, verifiers) })
	err := run.Loop(ctx, s.clock, s.shells...)
	wg.Wait()
	s.writer.Resign()
	s.keeper.Close()
	return err
}

// Package shell is the checkpoint service's loop: it reads what agents report, has it verified, commits what the keeper
// decides, answers where saves are, and deletes what retention gave up. One replica does that, the leader; the others
// fold the log and wait.
package shell

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/manifest"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

type (
	// Projection is the index as folded from CHECKPOINTS.
	Projection = ledger.Projection[*keeper.Index]
	// Writer appends to CHECKPOINTS.
	Writer = ledger.Writer[*keeper.Index]
)

// Config of the loop.
type Config struct {
	Dir    string // root of the saves as seen from here; empty = not seen
	Policy keeper.Policy
}

// Deps are what the loop works with.
type Deps struct {
	Proj    *Projection
	Writer  *Writer
	Saves   bus.Inbox
	Callers []bus.Caller // where locate is answered: CORE first, where list is, too
	Pool    Pool
}

// Bounds of what is under way at once.
const (
	window     = 64          // reports read and not yet committed
	maxFound   = 16          // parts found by a rescan and being verified
	idleCursor = 256         // reports without consequence after which their cursor is committed all the same
	trimEvery  = time.Hour   // reports are kept for an operator who puts an older copy of the log back
	trustFor   = time.Minute // how long a verification before a restore serves the other nodes of the attempt
	leaseFor   = 10 * time.Minute
	missingFor = time.Minute // a shared file system may show a new directory this late
	soon       = 10 * time.Millisecond
)

// Shell implements run.Shell.
type Shell struct {
	cfg  Config
	deps Deps
	wake <-chan struct{}

	term  uint64 // the term in which the fields below were filled; 0 = not leading
	life  int    // counts resets, so that results of before are told apart
	items []*item
	idle  int            // reports passed since the last commit
	last  *weftv1.Cursor // up to here reports were decided; nil = seek first

	found  []string // paths that a rescan found unknown, to be verified
	flying int      // of those, under way
	ready  []*item  // of those, verified

	damage  []damage // found while locating, to be committed
	doomed  []doomed // deleted in the log, bytes to be removed
	tidying bool
	relist  bool // a deletion may be in the log that doomed does not know of

	servers []bus.Server
	asked   map[saveKey]*question
	checked map[saveKey]time.Time // when every part was last found right
	leases  map[saveKey]time.Time // until when a restore may be reading
	seen    map[string]bool       // paths of parts that were once seen here
	missing map[string]time.Time  // paths since when they have been looked for in vain

	now    time.Time
	trimAt time.Time
	trimTo uint64
}

type saveKey struct{ job, save string }

type damage struct {
	saveKey
	node, reason string
}

type doomed struct {
	job   manifest.Job
	saves []string
}

// New makes the loop.
func New(cfg Config, deps Deps) *Shell {
	return &Shell{cfg: cfg, deps: deps, wake: deps.Proj.Wake()}
}

// Name implements run.Shell's optional name.
func (s *Shell) Name() string { return "checkpoint keeper" }

// Wakes implements run.Shell.
func (s *Shell) Wakes() []<-chan struct{} {
	out := []<-chan struct{}{s.wake, s.deps.Saves.Wake(), s.deps.Pool.Wake()}
	for _, srv := range s.servers {
		out = append(out, srv.Wake())
	}
	return out
}

// Step implements run.Shell.
func (s *Shell) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	s.now = now
	did := s.deps.Pool.Drain()
	if !s.deps.Writer.Leading() {
		s.rest()
		if replica, _ := s.deps.Proj.Leader(); replica == s.deps.Writer.Replica() {
			return did, now.Add(soon), nil // elected, and the writer is just about to know it
		}
		return did, time.Time{}, nil
	}
	if term := s.deps.Writer.Term(); term != s.term {
		if err := s.begin(ctx, term); err != nil {
			return did, time.Time{}, err
		}
		did = true
	}
	for _, step := range []func(context.Context) (bool, error){s.read, s.verifyFound, s.commit, s.answer, s.commit, s.tidy, s.trim} {
		d, err := step(ctx)
		if err != nil {
			if errors.Is(err, ledger.ErrNotLeading) || errors.Is(err, ledger.ErrConflict) {
				s.rest()
			} else {
				s.reset()
			}
			return did, time.Time{}, err
		}
		did = did || d
	}
	return did, now.Add(time.Minute), nil
}

// rest forgets what only a leader needs.
func (s *Shell) rest() {
	if s.term == 0 {
		return
	}
	s.term = 0
	for _, srv := range s.servers {
		srv.Close()
	}
	s.servers = nil
}

// Close leaves the bus, so that questions go to whoever leads next. No step may follow or be under way.
func (s *Shell) Close() { s.rest() }

// begin takes up a leader's work.
func (s *Shell) begin(ctx context.Context, term uint64) error {
	s.rest()
	for i, c := range s.deps.Callers {
		subjects := []string{bus.SubjectRPC("checkpoint", "locate"), bus.SubjectNodeRPC("checkpoint", "locate", "*")}
		if i == 0 {
			subjects = append(subjects, bus.SubjectRPC("checkpoint", "list"))
		}
		for _, subject := range subjects {
			srv, err := c.Serve(subject, "checkpoint")
			if err != nil {
				for _, srv := range s.servers {
					srv.Close()
				}
				s.servers = nil
				return err
			}
			s.servers = append(s.servers, srv)
		}
	}
	s.asked, s.checked, s.leases = map[saveKey]*question{}, map[saveKey]time.Time{}, map[saveKey]time.Time{}
	s.seen, s.missing = map[string]bool{}, map[string]time.Time{}
	s.found, s.flying, s.ready = nil, 0, nil
	s.damage, s.doomed, s.tidying, s.relist = nil, nil, false, false
	s.trimAt, s.trimTo = s.now.Add(trimEvery), 0
	s.term = term
	if err := s.seek(ctx); err != nil {
		s.rest()
		return err
	}
	s.rescan()
	return nil
}

// seek continues the reports where the log says.
func (s *Shell) seek(ctx context.Context) error {
	name, created, err := s.deps.Saves.Stream(ctx)
	if err != nil {
		return err
	}
	s.reset()
	from := uint64(0)
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) {
		if c := ix.Cursor(name); c.GetCreatedNs() == created {
			from = c.GetSeq()
		}
	})
	s.deps.Saves.Seek(from)
	s.last = weftv1.Cursor_builder{Stream: &name, CreatedNs: &created, Seq: &from}.Build()
	return nil
}

// reset drops what is under way after a failure; the next read continues where the log says.
func (s *Shell) reset() {
	s.life++
	s.items, s.idle, s.last = nil, 0, nil
}

// rescan lists what lies below the root, in the background: parts whose report was lost, or the whole index if it was. It
// also finds what was deleted in the log and not yet on the disk.
func (s *Shell) rescan() {
	if s.cfg.Dir == "" {
		return
	}
	dir, term := s.cfg.Dir, s.term
	s.deps.Pool.Go(func(context.Context) func() {
		paths, err := manifest.ListParts(dir)
		return func() {
			if err != nil {
				slog.Warn("saves cannot be listed; only reported ones are known", "dir", dir, "error", err)
			}
			if s.term == term {
				s.listed(paths)
			}
		}
	})
}

// listed sorts what a rescan found into known, deleted and new.
func (s *Shell) listed(paths []string) {
	gone := map[saveKey]bool{}
	s.deps.Proj.View(func(ix *keeper.Index, _ ledger.Position) {
		for _, path := range paths {
			s.seen[path] = true
			w := strings.Split(path, "/")
			k := saveKey{w[1], w[2]}
			switch save := ix.Save(k.job, k.save); {
			case save != nil && save.State == keeper.Deleted:
				if !gone[k] {
					gone[k] = true
					s.doomed = append(s.doomed, doomed{manifest.Job{Tenant: w[0], ID: w[1]}, []string{w[2]}})
				}
			case save == nil || !hasPath(save, path):
				s.found = append(s.found, path)
			}
		}
	})
}

func hasPath(s *keeper.Save, path string) bool {
	if s.State == keeper.Quarantined {
		return true
	}
	for _, p := range s.Parts {
		if p.GetPart().GetPath() == path {
			return true
		}
	}
	return false
}

package shell

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/killpoint"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

// SaveJob is a job whose saves may grow on this node.
type SaveJob struct {
	Tenant string
	Job    string
}

// Scan finds parts of saves that this node's ranks published and verifies their bytes. It returns each part once, and what
// cannot be read now another time.
type Scan func(ctx context.Context, jobs []SaveJob, now time.Time) []*weftv1.PartRef

// Saves reports finished parts of saves. Ranks publish them by rename, with or without an agent; this only looks.
type Saves struct {
	out     bus.Outbox
	node    string
	boot    string
	scan    Scan
	wake    signal
	flushed signal

	mu   sync.Mutex
	jobs map[reconcile.ID]*saveRun

	queue []*weftv1.PartRef // found and not yet published
}

type saveRun struct {
	SaveJob
	finishing, flushed bool
}

// saveEvery is how often is looked for new parts.
const saveEvery = 500 * time.Millisecond

// NewSaves makes the shell.
func NewSaves(out bus.Outbox, node, boot string, scan Scan) *Saves {
	return &Saves{out: out, node: node, boot: boot, scan: scan, wake: newSignal(), flushed: newSignal(), jobs: map[reconcile.ID]*saveRun{}}
}

func (s *Saves) add(id reconcile.ID, a *weftv1.AssignedAttempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.jobs[id] = &saveRun{SaveJob: SaveJob{a.GetTenant(), a.GetJob()}}
	s.wake.set()
}

// finish asks for a last look, after the ranks have ended.
func (s *Saves) finish(id reconcile.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.jobs[id]; r != nil {
		r.finishing = true
		s.wake.set()
	}
}

// isFlushed says that every part of a run was reported.
func (s *Saves) isFlushed(id reconcile.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.jobs[id]
	return r == nil || r.flushed
}

func (s *Saves) forget(id reconcile.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.jobs, id)
}

// Name for logs.
func (s *Saves) Name() string { return "node-agent saves" }

// Wakes implements run.Shell.
func (s *Saves) Wakes() []<-chan struct{} { return []<-chan struct{}{s.wake} }

// Step implements run.Shell.
func (s *Saves) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	s.mu.Lock()
	seen := map[SaveJob]bool{}
	var jobs []SaveJob
	var finishing []*saveRun
	for _, r := range s.jobs {
		if r.flushed {
			continue
		}
		if r.finishing {
			finishing = append(finishing, r)
		}
		if !seen[r.SaveJob] {
			seen[r.SaveJob] = true
			jobs = append(jobs, r.SaveJob)
		}
	}
	s.mu.Unlock()
	if len(jobs) == 0 && len(s.queue) == 0 {
		return false, time.Time{}, nil
	}
	s.queue = append(s.queue, s.scan(ctx, jobs, now)...)
	for len(s.queue) > 0 {
		if err := s.publish(ctx, s.queue[0], now); err != nil {
			return false, time.Time{}, err
		}
		s.queue = s.queue[1:]
	}
	if len(finishing) > 0 {
		s.mu.Lock()
		for _, r := range finishing {
			r.flushed = true
		}
		s.mu.Unlock()
		s.flushed.set()
	}
	return false, now.Add(saveEvery), nil
}

func (s *Saves) publish(ctx context.Context, p *weftv1.PartRef, now time.Time) error {
	data, err := proto.Marshal(weftv1.SaveReport_builder{Node: &s.node, BootId: &s.boot, TimeNs: new(now.UnixNano()), Part: p}.Build())
	if err != nil {
		return fmt.Errorf("saves: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	killpoint.Reach(killpoint.Save)
	if _, err := s.out.Publish(ctx, bus.Message{Subject: bus.SubjectSave(s.node), Data: data}); err != nil {
		return fmt.Errorf("saves: %w", err)
	}
	return nil
}

// Package shell reads METRICS into the hot window and keeps the memory of who held which device in step with the
// ledger. It owns the lock around the window; it never decides what a value means.
package shell

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/services/telemetry/window"
)

// Store is the window and the holders under one lock.
type Store struct {
	mu      sync.Mutex
	window  *window.Window
	holders *window.Holders
}

// NewStore makes an empty store.
func NewStore(cfg window.Config) *Store {
	return &Store{window: window.New(cfg), holders: window.NewHolders()}
}

// Read calls f under the lock; f must not keep what it is given.
func (s *Store) Read(f func(w *window.Window, h *window.Holders)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s.window, s.holders)
}

// Ingest is the shell that reads METRICS.
type Ingest struct {
	in     bus.Inbox
	store  *Store
	nextAt time.Time // of the next tick of the window
	logged time.Time
}

// NewIngest makes the shell. The stream is read from its start: it holds the last minute, so a restart loses nothing
// that it still has.
func NewIngest(in bus.Inbox, store *Store) *Ingest {
	in.Seek(0)
	return &Ingest{in: in, store: store}
}

const (
	readBatch = 256
	tickEvery = time.Second
	logEvery  = time.Minute
)

// Wakes implements run.Shell.
func (s *Ingest) Wakes() []<-chan struct{} { return []<-chan struct{}{s.in.Wake()} }

// Step implements run.Shell.
func (s *Ingest) Step(ctx context.Context, now time.Time) (did bool, next time.Time, err error) {
	batches, err := s.in.Next(ctx, readBatch)
	var bad error
	s.store.Read(func(w *window.Window, _ *window.Holders) {
		for _, b := range batches {
			if _, err := w.Add(b.Data, now.UnixNano()); err != nil {
				bad = fmt.Errorf("%s: %w", b.Subject, err)
			}
		}
		if !now.Before(s.nextAt) {
			s.nextAt = now.Add(tickEvery)
			w.Tick(now.UnixNano())
		}
	})
	if bad != nil && now.Sub(s.logged) >= logEvery {
		s.logged = now
		slog.Warn("a batch of samples cannot be read", "error", bad)
	}
	return len(batches) > 0, s.nextAt, err
}

// Follow is the shell that keeps the holders in step with the ledger.
type Follow struct {
	proj  *ledger.Projection[*cell.State]
	store *Store
	wake  <-chan struct{}
	keep  int64
	seen  uint64
	due   time.Time
}

// NewFollow makes the shell; holders are remembered for keep.
func NewFollow(proj *ledger.Projection[*cell.State], store *Store, keep time.Duration) *Follow {
	return &Follow{proj: proj, store: store, wake: proj.Wake(), keep: int64(keep)}
}

// followEvery bounds how often the whole set of holders is compared.
const followEvery = 250 * time.Millisecond

// Wakes implements run.Shell.
func (s *Follow) Wakes() []<-chan struct{} { return []<-chan struct{}{s.wake} }

// Step implements run.Shell.
func (s *Follow) Step(_ context.Context, now time.Time) (did bool, next time.Time, err error) {
	if s.proj.Position().Seq == s.seen {
		return false, time.Time{}, nil
	}
	if now.Before(s.due) {
		return false, s.due, nil
	}
	s.due = now.Add(followEvery)
	var held []window.Held
	var at int64
	s.proj.View(func(st *cell.State, p ledger.Position) {
		s.seen, at = p.Seq, max(p.TimeNS, st.TimeNS())
		held = Held(st)
	})
	s.store.Read(func(_ *window.Window, h *window.Holders) {
		h.Sync(held, at)
		h.Prune(at - s.keep)
	})
	return false, time.Time{}, nil
}

// Held lists every device that an attempt holds, from the state of the cell.
func Held(s *cell.State) []window.Held {
	var out []window.Held
	for j := range s.ActiveJobs() {
		if j.Attempt == nil {
			continue
		}
		released := make(map[string]bool, len(j.Attempt.Released))
		for _, n := range j.Attempt.Released {
			released[n] = true
		}
		for _, p := range j.Attempt.Placements {
			if released[p.GetNode()] {
				continue
			}
			who := window.Holder{Job: j.ID, Name: j.Spec.GetName(), Queue: j.Spec.GetQueue(), Tenant: j.Tenant, Attempt: j.Attempt.Number, Milli: p.GetMilli()}
			for _, d := range p.GetDevices() {
				out = append(out, window.Held{Place: window.Place{Node: p.GetNode(), Device: int32(d)}, Who: who, Since: j.Attempt.Placed})
			}
		}
	}
	return out
}

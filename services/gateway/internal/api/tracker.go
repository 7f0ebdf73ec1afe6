package api

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// keptRejections bounds the memory of refusals; whoever asked reads its own within milliseconds.
const keptRejections = 4096

// tracker follows the commits: up to where REQUESTS has been consumed, and what was refused. Its hook runs on the
// goroutine that folds, for the leader's own process the one that commits, so a waiting submit wakes at once.
type tracker struct {
	proj *ledger.Projection[*cell.State]

	mu       sync.Mutex
	seq      uint64 // REQUESTS consumed up to here
	rejected map[uint64]string
	order    []uint64
	waiters  map[*waiter]struct{}
	changed  chan struct{} // closed at the next commit; nil while nobody waits
}

type waiter struct {
	seq  uint64
	done chan struct{}
}

func newTracker(p *ledger.Projection[*cell.State]) *tracker {
	t := &tracker{proj: p, rejected: map[uint64]string{}, waiters: map[*waiter]struct{}{}}
	p.OnCommit(t.commit)
	p.OnReset(func(ledger.Position) { t.reset() })
	return t
}

// reset starts anew from a state that was replaced.
func (t *tracker) reset() {
	var seq uint64
	t.proj.View(func(s *cell.State, _ ledger.Position) { seq = s.Cursor(bus.StreamRequests).GetSeq() })
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq = seq
	t.wake()
}

func (t *tracker) commit(_ ledger.Position, c *weftv1.Commit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range c.GetEntries() {
		if e.GetKind() != "input_rejected" {
			continue
		}
		var f weftv1.Fact
		if proto.Unmarshal(e.GetFact(), &f) != nil {
			continue // the fold has stopped on it already
		}
		if r := f.GetInputRejected(); r.GetStream() == bus.StreamRequests {
			t.reject(r.GetSeq(), r.GetReason())
		}
	}
	for _, cur := range c.GetCursors() {
		if cur.GetStream() == bus.StreamRequests {
			t.seq = cur.GetSeq()
		}
	}
	t.wake()
}

func (t *tracker) reject(seq uint64, reason string) {
	if _, ok := t.rejected[seq]; !ok {
		t.order = append(t.order, seq)
	}
	t.rejected[seq] = reason
	if len(t.order) > keptRejections {
		delete(t.rejected, t.order[0])
		t.order = t.order[1:]
	}
}

// wake tells whoever waits; mu is held.
func (t *tracker) wake() {
	for w := range t.waiters {
		if w.seq <= t.seq {
			close(w.done)
			delete(t.waiters, w)
		}
	}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// wait blocks until the request at seq has been consumed, and returns why it was refused, if it was.
func (t *tracker) wait(ctx context.Context, seq uint64) (reason string, refused bool, err error) {
	t.mu.Lock()
	if t.seq < seq {
		w := &waiter{seq: seq, done: make(chan struct{})}
		t.waiters[w] = struct{}{}
		t.mu.Unlock()
		select {
		case <-w.done:
		case <-ctx.Done():
			t.mu.Lock()
			delete(t.waiters, w)
			t.mu.Unlock()
			return "", false, ctx.Err()
		}
		t.mu.Lock()
	}
	defer t.mu.Unlock()
	reason, refused = t.rejected[seq]
	delete(t.rejected, seq)
	return reason, refused, nil
}

// next is closed at the next commit.
func (t *tracker) next() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Fold turns commits into a state. S is a pointer or behaves like one.
type Fold[S any] struct {
	New func() S
	// Apply changes s by one commit; entries of the library's own kind have been taken out, so there may be none. An
	// error stops the reader for good: *UnknownKind where an entry is neither known nor ignorable, anything else where
	// a fact can't be decoded. It must find that out before it changes s.
	Apply func(s S, c *weftv1.Commit, seq uint64) error
	// Encode gives equal bytes for equal states; Decode reads them. Without them there are no snapshots.
	Encode func(s S) []byte
	Decode func(b []byte) (S, error)
	// Version changes whenever the same commits would give another state or other bytes.
	Version uint32
}

// Loss says that a log ended before a place that it had once confirmed.
type Loss struct {
	Had  Position // newest place known to have been stored
	Tail Tail     // what is left
}

func (e *Loss) Error() string {
	return fmt.Sprintf("ledger: the log ends at %d, but record %d had been confirmed; commits were lost: `weft ledger adopt` "+
		"shows which and accepts what is left", e.Tail.Last, e.Had.Seq)
}

// Break is what a reader found in place of the next commit.
type Break struct {
	Seq    uint64
	Reason string
	Void   bool // the record itself is foreign to the chain and was passed over; otherwise the reader rebuilt
}

// errNoStart: records before the first stored one are gone, and no snapshot covers them.
var errNoStart = errors.New("ledger: the log has been trimmed and no usable snapshot covers what is gone")

// readBatch bounds one Read; tailEvery is how often an idle reader makes sure that the log has not lost its end.
const (
	readBatch = 512
	tailEvery = 2 * time.Second
)

// Projection is one state folded from one log, shared by any number of concurrent readers. It checks hash and term of
// every record; on a break it forgets its memory and rebuilds. It is a run.Shell.
//
// A record that does not link to the chain, although the reader has verified the chain from its start, is void: a
// deposed leader or a stranger wrote it, and every reader passes over it alike.
type Projection[S any] struct {
	log   Log
	fold  Fold[S]
	snaps Snapshots
	wake  <-chan struct{} // the log's; one channel, so that nothing is missed between a read and the wait after it

	onCommit []func(Position, *weftv1.Commit)
	onReset  []func(Position)
	onBreak  []func(Break)

	// step serialises whatever moves the position, hooks included; it is taken before mu.
	step      sync.Mutex
	opened    bool
	verified  uint64         // up to here the chain was followed from its oldest anchor: a mismatch is a void record
	proven    Position       // up to here the log was read again and led to what the memory holds
	suspect   bool           // the memory is not on the chain: rebuild before anything else
	offChain  []SnapshotMeta // snapshots found to lie on a branch that was lost
	checkedNS int64          // last look at the tail

	mu       sync.RWMutex // guards what follows; never held during I/O or hooks
	state    S
	at       Position
	commit   uint64 // sequence of the commit that at.Hash belongs to: at.Seq, unless void records follow it
	leader   string
	created  int64
	rebuilds uint64
	loss     *Loss
	stopped  error
	advanced chan struct{} // closed at the next change of position; nil while nobody waits
	wakes    []chan struct{}
	synced   bool
}

// NewProjection returns a projection that has read nothing yet. snaps may be nil.
func NewProjection[S any](log Log, fold Fold[S], snaps Snapshots) *Projection[S] {
	return &Projection[S]{log: log, fold: fold, snaps: snaps, wake: log.Wake(), state: fold.New()}
}

// OnCommit registers f to be called after every commit has been folded, in order, also while an old log is replayed.
// It runs on the goroutine that folds, outside of View's lock; it may call View, but neither Commit nor Step. Register
// before the first step.
func (p *Projection[S]) OnCommit(f func(at Position, c *weftv1.Commit)) {
	p.onCommit = append(p.onCommit, f)
}

// OnReset registers f to be called when the state was replaced, by a snapshot at start or by a rebuild: what was derived
// from earlier commits is worthless. OnCommit follows for every commit after at.
func (p *Projection[S]) OnReset(f func(at Position)) { p.onReset = append(p.onReset, f) }

// OnBreak registers f to be told of records that did not continue the chain.
func (p *Projection[S]) OnBreak(f func(Break)) { p.onBreak = append(p.onBreak, f) }

// View calls f with the state under the read lock. f must not keep or change s, nor call View again.
func (p *Projection[S]) View(f func(s S, at Position)) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	f(p.state, p.at)
}

// Position is where the projection stands.
func (p *Projection[S]) Position() Position {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.at
}

// Leader names the replica that opened the newest term, empty before the first.
func (p *Projection[S]) Leader() (replica string, term uint64) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.leader, p.at.Term
}

// Synced says whether the projection has once reached the end of the log since its start or its last rebuild.
func (p *Projection[S]) Synced() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.synced
}

// Lost returns the loss that the projection witnessed and that no leader has adopted yet, or nil.
func (p *Projection[S]) Lost() *Loss {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.loss
}

// Confirm says that a record is known to have been stored. If the log, read up to tail, ends before it, that is a loss.
func (p *Projection[S]) Confirm(seq uint64, tail Tail) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq > p.at.Seq && (p.loss == nil || p.loss.Had.Seq < seq) {
		p.loss = &Loss{Had: Position{Seq: seq}, Tail: tail}
	}
}

// Err returns why the projection has stopped for good, or nil.
func (p *Projection[S]) Err() error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.stopped
}

// Wake returns a new channel that receives, without ever blocking the projection, after each change of position and
// the hooks that follow it.
func (p *Projection[S]) Wake() <-chan struct{} {
	ch := make(chan struct{}, 1)
	p.mu.Lock()
	p.wakes = append(p.wakes, ch)
	p.mu.Unlock()
	return ch
}

// WaitFor blocks until the projection has read seq, has stopped, or ctx ends.
func (p *Projection[S]) WaitFor(ctx context.Context, seq uint64) error {
	for {
		p.mu.Lock()
		if p.at.Seq >= seq {
			p.mu.Unlock()
			return nil
		}
		if p.stopped != nil {
			defer p.mu.Unlock()
			return p.stopped
		}
		if p.advanced == nil {
			p.advanced = make(chan struct{})
		}
		ch := p.advanced
		p.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("wait for record %d of the ledger, now at %d: %w", seq, p.Position().Seq, ctx.Err())
		}
	}
}

// Wakes are the log's.
func (p *Projection[S]) Wakes() []<-chan struct{} { return []<-chan struct{}{p.wake} }

// Step reads what is stored after the position and folds it.
func (p *Projection[S]) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	if err := p.Err(); err != nil {
		return false, time.Time{}, err
	}
	if err := p.open(ctx); err != nil {
		return false, time.Time{}, err
	}
	m := p.mark()
	at := m.pos
	recs, err := p.log.Read(ctx, at.Seq+1, readBatch)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("read the ledger after %d: %w", at.Seq, err)
	}
	if len(recs) == 0 {
		did, err := p.idle(ctx, now, at)
		return did, now.Add(tailEvery), err
	}
	p.step.Lock()
	defer p.step.Unlock()
	if p.mark().rebuilds != m.rebuilds { // what was read belongs to a memory that is gone
		return true, time.Time{}, nil
	}
	for _, rec := range recs {
		if err := p.read(rec); err != nil {
			return true, time.Time{}, err
		}
		if p.suspect {
			return true, time.Time{}, nil // the next step rebuilds
		}
	}
	return true, time.Time{}, nil
}

// mark is a place in the log as one memory knows it.
type mark struct {
	pos      Position
	commit   uint64
	rebuilds uint64
}

func (p *Projection[S]) mark() mark {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return mark{pos: p.at, commit: p.commit, rebuilds: p.rebuilds}
}

// CatchUp steps until everything that the log holds now has been read and is known to continue what was read before.
func (p *Projection[S]) CatchUp(ctx context.Context, now time.Time) (Tail, error) {
	if err := p.open(ctx); err != nil {
		return Tail{}, err
	}
	start, verified := p.mark(), false
	for {
		at := p.mark()
		tail, err := p.log.Tail(ctx)
		if err != nil {
			return Tail{}, fmt.Errorf("ask for the ledger's end: %w", err)
		}
		p.compare(at.pos, tail)
		for did := true; did && (p.isSuspect() || p.Position().Seq < tail.Last); {
			if did, _, err = p.Step(ctx, now); err != nil {
				return Tail{}, err
			}
			if err := ctx.Err(); err != nil {
				return Tail{}, fmt.Errorf("catch up with the ledger: %w", err)
			}
		}
		end := p.mark()
		switch {
		case end.pos.Seq < tail.Last || p.isSuspect(): // it ends earlier than it said a moment ago: ask again
		case verified || end.commit != start.commit || end.rebuilds != start.rebuilds:
			return tail, nil // a commit that links to what was read proves it
		default:
			// Nothing new proves that the newest commit still stands: look at it.
			if verified, err = p.verify(ctx, end, tail); err != nil {
				return Tail{}, err
			}
		}
	}
}

// verify compares the newest commit with what the log holds at its place.
func (p *Projection[S]) verify(ctx context.Context, at mark, tail Tail) (bool, error) {
	if at.commit < tail.First || at.commit == 0 {
		return true, nil
	}
	recs, err := p.log.Read(ctx, at.commit, 1)
	if err != nil {
		return false, fmt.Errorf("read record %d again: %w", at.commit, err)
	}
	p.step.Lock()
	defer p.step.Unlock()
	if now := p.mark(); now.rebuilds != at.rebuilds {
		return false, nil
	}
	if len(recs) == 0 || recs[0].Seq != at.commit || !bytes.Equal(Hash(recs[0].Data), at.pos.Hash) {
		p.broke(at.commit, "another commit stands at this place")
		return false, nil
	}
	return true, nil
}

func (p *Projection[S]) isSuspect() bool {
	p.step.Lock()
	defer p.step.Unlock()
	return p.suspect
}

// idle looks, now and then, whether the log still is the one that was read.
func (p *Projection[S]) idle(ctx context.Context, now time.Time, at Position) (did bool, err error) {
	p.mu.Lock()
	p.synced = true
	p.mu.Unlock()
	p.step.Lock()
	due := now.UnixNano()-p.checkedNS >= int64(tailEvery)
	if due {
		p.checkedNS = now.UnixNano()
	}
	p.step.Unlock()
	if !due {
		return false, nil
	}
	tail, err := p.log.Tail(ctx)
	if err != nil {
		return false, fmt.Errorf("ask for the ledger's end: %w", err)
	}
	p.compare(at, tail)
	return p.isSuspect(), nil
}

// compare notices that the log has lost its end, or is another one. at was read before the tail was asked for.
func (p *Projection[S]) compare(at Position, tail Tail) {
	p.step.Lock()
	defer p.step.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if tail.Last >= at.Seq && tail.CreatedNS == p.created {
		return
	}
	p.suspect = true
	if p.loss == nil && at.Seq > 0 {
		p.loss = &Loss{Had: at, Tail: tail}
	}
}

// Apply folds one record: the leader's own, right after its acknowledgement. A record already read is compared and
// passed over. It fails if the record does not continue the chain here; the projection then rebuilds.
func (p *Projection[S]) Apply(rec Record) error {
	p.step.Lock()
	defer p.step.Unlock()
	at := p.Position()
	if rec.Seq > at.Seq+1 {
		return fmt.Errorf("ledger: record %d applied at position %d", rec.Seq, at.Seq)
	}
	if err := p.read(rec); err != nil {
		return err
	}
	if p.suspect || (p.Position().Seq == rec.Seq && !bytes.Equal(p.Position().Hash, Hash(rec.Data))) {
		return fmt.Errorf("ledger: record %d does not continue the chain", rec.Seq)
	}
	return nil
}

// read takes the record in, whatever it is. step is held.
func (p *Projection[S]) read(rec Record) error {
	at := p.Position()
	switch {
	case rec.Seq < at.Seq, rec.Seq == at.Seq && p.commit != rec.Seq: // known, or a void one
		return nil
	case rec.Seq == at.Seq:
		if !bytes.Equal(Hash(rec.Data), at.Hash) {
			p.broke(rec.Seq, "another commit stands at this place")
		}
		return nil
	case rec.Seq > at.Seq+1:
		p.broke(rec.Seq, fmt.Sprintf("the records after %d are gone", at.Seq))
		return nil
	}
	c, elected, err := check(at, rec)
	if err != nil {
		if rec.Seq > p.verified {
			p.broke(rec.Seq, err.Error())
			return nil
		}
		p.mu.Lock()
		p.at.Seq = rec.Seq
		p.mu.Unlock()
		for _, f := range p.onBreak {
			f(Break{Seq: rec.Seq, Reason: err.Error(), Void: true})
		}
		p.wakeUp()
		return nil
	}
	facts := c
	if elected != nil { // the fold sees only what it owns
		facts = weftv1.Commit_builder{
			Term: new(c.GetTerm()), Id: new(c.GetId()), Prev: c.GetPrev(), TimeNs: new(c.GetTimeNs()),
			Cursors: c.GetCursors(), Entries: c.GetEntries()[1:],
		}.Build()
	}
	next := Position{Seq: rec.Seq, Term: c.GetTerm(), Hash: Hash(rec.Data), TimeNS: c.GetTimeNs()}
	p.mu.Lock()
	if err := p.fold.Apply(p.state, facts, rec.Seq); err != nil {
		p.stopped = fmt.Errorf("fold record %d: %w", rec.Seq, err)
		p.mu.Unlock()
		p.wakeUp()
		return p.stopped
	}
	p.at, p.commit = next, rec.Seq
	if p.loss != nil && bytes.Equal(next.Hash, p.loss.Had.Hash) {
		p.loss = nil // it is there after all: a replica that lagged had been asked
	}
	if elected != nil {
		p.leader = elected.GetLeader()
		if p.loss != nil && rec.Seq > p.loss.Had.Seq {
			p.loss = nil // somebody has taken over what is left, and nothing that was lost is missing below
		}
	}
	p.mu.Unlock()
	for _, f := range p.onCommit {
		f(next, c)
	}
	p.wakeUp() // after the hooks: who is woken finds what they noted
	return nil
}

// broke marks the memory as off the chain. step is held.
func (p *Projection[S]) broke(seq uint64, reason string) {
	p.suspect = true
	for _, f := range p.onBreak {
		f(Break{Seq: seq, Reason: reason})
	}
}

// wakeUp tells whoever waits.
func (p *Projection[S]) wakeUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.advanced != nil {
		close(p.advanced)
		p.advanced = nil
	}
	for _, ch := range p.wakes {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

package ledger

import (
	"bytes"
	"context"
	"fmt"
	"slices"
)

// open gives the projection its memory: at the start from the newest snapshot on the chain, after a break from the
// oldest anchor there is, because a newer snapshot may lie on the branch that was lost.
func (p *Projection[S]) open(ctx context.Context) error {
	p.step.Lock()
	defer p.step.Unlock()
	if p.opened && !p.suspect {
		return nil
	}
	tail, err := p.log.Tail(ctx)
	if err != nil {
		return fmt.Errorf("ask for the ledger's end: %w", err)
	}
	metas, err := p.candidates(ctx, tail)
	if err != nil {
		return err
	}
	fromStart := tail.First <= 1
	if p.suspect && fromStart {
		p.install(tail, p.fold.New(), Position{}, tail.Last)
		return nil
	}
	verified := uint64(0)
	if p.suspect {
		verified = tail.Last
	} else {
		slices.Reverse(metas)
	}
	for _, m := range metas {
		s, ok, err := p.load(ctx, m)
		if err != nil {
			return err
		}
		if ok {
			p.install(tail, s, m.position(), verified)
			return nil
		}
	}
	if !fromStart {
		return errNoStart
	}
	p.install(tail, p.fold.New(), Position{}, tail.Last)
	return nil
}

// candidates lists the snapshots that could be on this chain, oldest first, and notices those that lie beyond its end.
func (p *Projection[S]) candidates(ctx context.Context, tail Tail) ([]SnapshotMeta, error) {
	if p.snaps == nil || p.fold.Decode == nil {
		return nil, nil
	}
	all, err := p.snaps.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the ledger's snapshots: %w", err)
	}
	sortSnapshots(all)
	var out []SnapshotMeta
	for _, m := range all {
		if m.Seq > tail.Last {
			p.mu.Lock()
			p.loss = &Loss{Had: m.position(), Tail: tail}
			p.mu.Unlock()
			continue
		}
		off := slices.ContainsFunc(p.offChain, m.same)
		if m.Fold == p.fold.Version && m.CreatedNS == tail.CreatedNS && m.Seq >= tail.First && !off {
			out = append(out, m)
		}
	}
	return out, nil
}

// load returns the state of a snapshot, if its commit stands in the log and its bytes are whole.
func (p *Projection[S]) load(ctx context.Context, m SnapshotMeta) (s S, ok bool, err error) {
	recs, err := p.log.Read(ctx, m.Seq, 1)
	if err != nil {
		return s, false, fmt.Errorf("read the commit of a snapshot: %w", err)
	}
	if len(recs) == 0 || recs[0].Seq != m.Seq || !bytes.Equal(Hash(recs[0].Data), m.Hash) {
		p.offChain = append(p.offChain, m)
		return s, false, nil
	}
	data, err := p.snaps.Get(ctx, m)
	if err != nil || !bytes.Equal(Hash(data), m.State) {
		return s, false, nil //nolint:nilerr // a snapshot that can't be read is skipped: an older one or the log itself serves
	}
	s, err = p.fold.Decode(data)
	return s, err == nil, nil
}

// install replaces the memory. step is held.
func (p *Projection[S]) install(tail Tail, s S, at Position, verified uint64) {
	reset := p.opened || at.Seq > 0
	p.opened, p.suspect, p.verified, p.proven = true, false, verified, at
	p.mu.Lock()
	p.state, p.at, p.commit, p.leader = s, at, at.Seq, ""
	p.created, p.synced = tail.CreatedNS, false
	p.rebuilds++
	p.mu.Unlock()
	if reset {
		for _, f := range p.onReset {
			f(at)
		}
	}
	p.wakeUp()
}

// Freeze encodes the state as it is now, with what a snapshot says about it. ok is false before the first commit.
func (p *Projection[S]) Freeze() (m SnapshotMeta, data []byte, ok bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.commit == 0 || p.fold.Encode == nil || p.stopped != nil {
		return SnapshotMeta{}, nil, false
	}
	data = p.fold.Encode(p.state)
	return SnapshotMeta{
		Seq: p.commit, Term: p.at.Term, TimeNS: p.at.TimeNS, Hash: p.at.Hash, State: Hash(data), Fold: p.fold.Version,
		CreatedNS: p.created,
	}, data, true
}

// prove follows the chain in the log, by a reader of its own, from the last place proven to the commit of a snapshot that
// was just frozen. A leader that outlived a lost tail appends records that fit by sequence and yet link to nothing:
// whoever reads the whole log passes over them, so nobody may start from a snapshot of them.
func (p *Projection[S]) prove(ctx context.Context, log Log, m SnapshotMeta) (bool, error) {
	p.step.Lock()
	at, rebuilds := p.proven, p.mark().rebuilds
	p.step.Unlock()
	tail, err := log.Tail(ctx)
	if err != nil {
		return false, fmt.Errorf("ask for the ledger's end: %w", err)
	}
	ok := tail.Last >= m.Seq
	if ok && at.Seq < tail.First && tail.First > 1 {
		// Only what a snapshot on the chain covers is ever trimmed: the oldest record left is on the chain.
		if at, ok, err = anchor(ctx, log, tail.First); err != nil {
			return false, err
		}
	}
	for next := max(at.Seq, 1); ok && next <= m.Seq; {
		recs, err := log.Read(ctx, next, readBatch)
		if err != nil {
			return false, fmt.Errorf("follow the chain from %d: %w", next, err)
		}
		ok = len(recs) > 0 && recs[0].Seq == next
		for _, r := range recs {
			switch c, _, err := check(at, r); {
			case r.Seq == at.Seq:
				ok = ok && bytes.Equal(Hash(r.Data), at.Hash)
			case err == nil && r.Seq <= m.Seq:
				at = Position{Seq: r.Seq, Term: c.GetTerm(), Hash: Hash(r.Data), TimeNS: c.GetTimeNs()}
			}
			next = r.Seq + 1
		}
	}
	p.step.Lock()
	defer p.step.Unlock()
	switch {
	case p.mark().rebuilds != rebuilds:
		return false, nil
	case !ok || !bytes.Equal(at.Hash, m.Hash):
		p.broke(m.Seq, "the commits before it do not lead here")
		return false, nil
	}
	p.proven = at
	return true, nil
}

// anchor is the position of the oldest record stored.
func anchor(ctx context.Context, log Log, first uint64) (Position, bool, error) {
	recs, err := log.Read(ctx, first, readBatch)
	if err != nil {
		return Position{}, false, fmt.Errorf("read the oldest record left: %w", err)
	}
	if len(recs) == 0 {
		return Position{}, false, nil
	}
	c, err := Decode(recs[0].Data)
	if err != nil {
		return Position{}, false, nil //nolint:nilerr // it is none: nothing can be proven from there
	}
	return Position{Seq: recs[0].Seq, Term: c.GetTerm(), Hash: Hash(recs[0].Data), TimeNS: c.GetTimeNs()}, true, nil
}

// beyond lists the snapshots that lie beyond the log's end: what they hold is lost.
func (p *Projection[S]) beyond(ctx context.Context) ([]SnapshotMeta, error) {
	if p.snaps == nil {
		return nil, nil
	}
	tail, err := p.log.Tail(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the ledger's end: %w", err)
	}
	all, err := p.snaps.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the ledger's snapshots: %w", err)
	}
	return slices.DeleteFunc(all, func(m SnapshotMeta) bool { return m.Seq <= tail.Last }), nil
}

// drop deletes snapshots whose loss was adopted; they would push out those that can be used.
func (p *Projection[S]) drop(ctx context.Context, ms []SnapshotMeta) error {
	for _, m := range ms {
		if err := p.snaps.Delete(ctx, m); err != nil {
			return fmt.Errorf("delete a snapshot of what was lost: %w", err)
		}
	}
	return nil
}

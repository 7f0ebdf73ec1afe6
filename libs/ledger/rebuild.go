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
	p.opened, p.suspect, p.verified = true, false, verified
	p.mu.Lock()
	p.state, p.at, p.commit, p.leader = s, at, at.Seq, ""
	p.created, p.synced = tail.CreatedNS, false
	p.rebuilds++
	p.wakeAll()
	p.mu.Unlock()
	if reset {
		for _, f := range p.onReset {
			f(at)
		}
	}
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

// dropBeyond deletes the snapshots that lie beyond the log's end: what they hold is lost and adopted as lost.
func (p *Projection[S]) dropBeyond(ctx context.Context) error {
	if p.snaps == nil {
		return nil
	}
	tail, err := p.log.Tail(ctx)
	if err != nil {
		return fmt.Errorf("ask for the ledger's end: %w", err)
	}
	all, err := p.snaps.List(ctx)
	if err != nil {
		return fmt.Errorf("list the ledger's snapshots: %w", err)
	}
	for _, m := range all {
		if m.Seq > tail.Last {
			if err := p.snaps.Delete(ctx, m); err != nil {
				return fmt.Errorf("delete a snapshot beyond the ledger's end: %w", err)
			}
		}
	}
	return nil
}

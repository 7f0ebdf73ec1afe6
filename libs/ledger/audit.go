package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Fault is something in a log or its snapshots that must not be, and the cure.
type Fault struct {
	Seq    uint64 `json:"seq"` // the record, or the commit of the snapshot
	Reason string `json:"reason"`
	Cure   string `json:"do"`
}

func (f Fault) Error() string { return fmt.Sprintf("record %d: %s; %s", f.Seq, f.Reason, f.Cure) }

// Audit is what a whole reading of a log found.
type Audit struct {
	Tail    Tail
	Start   uint64 // the snapshot that the fold began from; 0 = the first record
	Records uint64 // read
	Commits uint64 // of them on the chain
	Facts   uint64 // of the service, in the commits
	Void    []uint64
	Terms   uint64 // elections seen
	At      Position
	Leader  string
	State   []byte // hash of the state at At
	// Snapshots that equal the fold at their place, and those that this version can't compare: of another fold, of another
	// log, or of records that were trimmed.
	Snapshots, Skipped int
	Faults             []Fault
}

const (
	cureCopy = "put back a good copy of the stream's directory or a backup (`weft ledger restore`); to go on with the state as it " +
		"was before this record, do nothing: every reader does so"
	cureSnapshot = "readers pass over it and nothing is lost; `weft ledger snapshot` writes a good one"
)

// auditor follows one log.
type auditor[S any] struct {
	fold   Fold[S]
	snaps  Snapshots
	metas  []SnapshotMeta // still ahead, oldest first
	state  S
	out    *Audit
	hashes map[[32]byte]bool // of every record read
	cut    *Fault            // the first void record since the chain's last commit that follows nothing which is stored
}

// Verify reads a log from its start, or from the oldest snapshot that covers what was trimmed, and checks the chain, the
// terms, every fact, and every snapshot against the fold at its place. What it finds wrong is in the audit; the error is
// for a log that does not answer. confirmed is the newest record known from elsewhere to have been stored, or 0.
func Verify[S any](ctx context.Context, log Log, fold Fold[S], snaps Snapshots, confirmed uint64) (*Audit, error) {
	tail, err := log.Tail(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the ledger's end: %w", err)
	}
	a := &auditor[S]{fold: fold, snaps: snaps, state: fold.New(), out: &Audit{Tail: tail}, hashes: map[[32]byte]bool{}}
	if err := a.begin(ctx, log); err != nil {
		return a.out, err
	}
	if confirmed > tail.Last {
		a.fault(confirmed, fmt.Sprintf("it had been confirmed, but the log ends at %d: commits were lost", tail.Last),
			"`weft ledger adopt` shows which and accepts what is left")
	}
	if len(a.out.Faults) > 0 && a.out.At.Seq == 0 && tail.First > 1 {
		return a.out, nil // there is nothing to begin from
	}
	for next := a.out.At.Seq + 1; next <= tail.Last; {
		recs, err := log.Read(ctx, next, readBatch)
		if err != nil {
			return a.out, fmt.Errorf("read the ledger from %d: %w", next, err)
		}
		if len(recs) == 0 {
			break
		}
		for _, r := range recs {
			if r.Seq > tail.Last {
				break
			}
			if r.Seq != next {
				a.fault(next, fmt.Sprintf("it is gone: record %d follows", r.Seq), cureCopy)
			}
			next = r.Seq + 1
			if stop, err := a.take(ctx, r); err != nil || stop {
				return a.out, err
			}
		}
	}
	if a.cut != nil {
		a.out.Faults = append(a.out.Faults, *a.cut)
	}
	if a.fold.Encode != nil {
		a.out.State = Hash(a.fold.Encode(a.state))
	}
	return a.out, nil
}

func (a *auditor[S]) fault(seq uint64, reason, cure string) {
	a.out.Faults = append(a.out.Faults, Fault{Seq: seq, Reason: reason, Cure: cure})
}

// begin lists the snapshots to compare, and starts from the oldest good one if the first records were trimmed.
func (a *auditor[S]) begin(ctx context.Context, log Log) error {
	tail := a.out.Tail
	if a.snaps != nil && a.fold.Decode != nil {
		all, err := a.snaps.List(ctx)
		if err != nil {
			return fmt.Errorf("list the ledger's snapshots: %w", err)
		}
		sortSnapshots(all)
		for _, m := range all {
			switch {
			case m.CreatedNS == tail.CreatedNS && m.Seq > tail.Last:
				a.fault(m.Seq, fmt.Sprintf("a snapshot was taken there, but the log ends at %d: commits were lost", tail.Last),
					"`weft ledger adopt` shows which and accepts what is left")
			case m.Fold != a.fold.Version, m.CreatedNS != tail.CreatedNS, m.Seq < tail.First:
				a.out.Skipped++
			default:
				a.metas = append(a.metas, m)
			}
		}
	}
	if tail.First <= 1 {
		return nil
	}
	for i, m := range a.metas {
		ok, err := usable(ctx, log, a.snaps, a.fold, tail, m)
		if err != nil {
			return err
		}
		if !ok {
			a.fault(m.Seq, "its snapshot is damaged or not of this log", cureSnapshot)
			continue
		}
		data, err := a.snaps.Get(ctx, m)
		if err != nil {
			return fmt.Errorf("read the snapshot at %d: %w", m.Seq, err)
		}
		if a.state, err = a.fold.Decode(data); err != nil {
			return fmt.Errorf("decode the snapshot at %d: %w", m.Seq, err)
		}
		a.out.Start, a.out.At, a.metas = m.Seq, m.position(), a.metas[i+1:]
		a.out.Snapshots++
		return nil
	}
	a.fault(tail.First, errNoStart.Error(), "put back a backup: `weft ledger restore`")
	return nil
}

// take follows one record; stop says that nothing behind it can be judged.
func (a *auditor[S]) take(ctx context.Context, rec Record) (stop bool, err error) {
	a.out.Records++
	a.hashes[[32]byte(Hash(rec.Data))] = true
	c, elected, err := check(a.out.At, rec)
	if err != nil {
		a.void(rec, err)
		return false, nil
	}
	facts := c
	if elected != nil {
		a.out.Terms++
		a.out.Leader = elected.GetLeader()
		facts = weftv1.Commit_builder{
			Term: new(c.GetTerm()), Id: new(c.GetId()), Prev: c.GetPrev(), TimeNs: new(c.GetTimeNs()),
			Cursors: c.GetCursors(), Entries: c.GetEntries()[1:],
		}.Build()
	}
	if err := a.fold.Apply(a.state, facts, rec.Seq); err != nil {
		cure := cureCopy
		if u := (*UnknownKind)(nil); errors.As(err, &u) {
			cure = "run the version that wrote it, or a newer one"
		}
		a.fault(rec.Seq, err.Error(), cure)
		return true, nil
	}
	a.out.Commits++
	a.out.Facts += uint64(len(facts.GetEntries()))
	a.out.At = Position{Seq: rec.Seq, Term: c.GetTerm(), Hash: Hash(rec.Data), TimeNS: c.GetTimeNs()}
	a.cut = nil
	return false, a.compare(ctx)
}

// void notes a record that readers pass over. Whoever was deposed may leave some behind, and they are harmless; but if the
// log ends with one that follows a commit which is nowhere, then that commit was altered or lost, and all that followed it.
func (a *auditor[S]) void(rec Record, why error) {
	a.out.Void = append(a.out.Void, rec.Seq)
	c, err := Decode(rec.Data)
	if err != nil || a.cut != nil || len(c.GetPrev()) != 32 {
		return
	}
	if prev := c.GetPrev(); !bytes.Equal(prev, a.out.At.Hash) && !a.hashes[[32]byte(prev)] {
		a.cut = &Fault{
			Seq:    rec.Seq - 1,
			Reason: fmt.Sprintf("it was altered or lost: record %d continues a commit that is not stored (%v), and nothing continues the chain from %d on", rec.Seq, why, a.out.At.Seq),
			Cure:   cureCopy,
		}
	}
}

// compare checks the snapshots of the commit that was just folded.
func (a *auditor[S]) compare(ctx context.Context) error {
	i := slices.IndexFunc(a.metas, func(m SnapshotMeta) bool { return m.Seq > a.out.At.Seq })
	if i < 0 {
		i = len(a.metas)
	}
	due := a.metas[:i]
	a.metas = a.metas[i:]
	for _, m := range due {
		if m.Seq != a.out.At.Seq || !bytes.Equal(m.Hash, a.out.At.Hash) {
			a.fault(m.Seq, "its snapshot is of another commit: of a branch that was lost", cureSnapshot)
			continue
		}
		if !bytes.Equal(Hash(a.fold.Encode(a.state)), m.State) {
			a.fault(m.Seq, "its snapshot is not the state that the log leads to",
				"this is a fault of the program or of its memory; delete nothing and report it with `weft ledger export`")
			continue
		}
		data, err := a.snaps.Get(ctx, m)
		if err != nil || !bytes.Equal(Hash(data), m.State) {
			a.fault(m.Seq, "its snapshot is damaged", cureSnapshot)
			continue
		}
		a.out.Snapshots++
	}
	return nil
}

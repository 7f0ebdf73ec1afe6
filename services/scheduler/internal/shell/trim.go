package shell

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
)

const (
	trimEvery = time.Minute
	trimAfter = time.Hour
)

// Trimmer removes inputs that were consumed an hour ago. What the ledger says of them is long on disk; the hour is for
// an operator who puts an older copy of the ledger back. It also removes the records of the ledger that are in the oldest
// snapshot kept, and announced.
type Trimmer struct {
	proj   *Projection
	writer *Writer
	inputs []bus.Inbox // used for trimming only; not the decider's
	record *Records    // nil = the ledger stays whole
	marks  []mark
	next   time.Time
}

// mark is how far the inputs had been consumed at a time.
type mark struct {
	at      time.Time
	created []int64 // of the streams; a sequence means nothing in a stream that was made anew
	seqs    []uint64
}

// NewTrimmer makes one for the given inputs.
func NewTrimmer(proj *Projection, w *Writer, inputs ...bus.Inbox) *Trimmer {
	return &Trimmer{proj: proj, writer: w, inputs: inputs}
}

// Records are what trimming the ledger takes.
type Records struct {
	Log       ledger.Log // a reader of its own, that can trim
	Snapshots ledger.Snapshots
	Announcer *Announcer
}

// TrimRecords makes it trim the ledger too.
func (t *Trimmer) TrimRecords(r Records) { t.record = &r }

// Wakes implements run.Shell.
func (t *Trimmer) Wakes() []<-chan struct{} { return nil }

// Step implements run.Shell.
func (t *Trimmer) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	if now.Before(t.next) {
		return false, t.next, nil
	}
	t.next = now.Add(trimEvery)
	if !t.writer.Leading() {
		t.marks = nil
		return false, t.next, nil
	}
	if err := t.trimRecords(ctx); err != nil {
		return false, t.next, fmt.Errorf("trim the ledger: %w", err)
	}
	m := mark{at: now, created: make([]int64, len(t.inputs)), seqs: make([]uint64, len(t.inputs))}
	for i, in := range t.inputs {
		name, created, err := in.Stream(ctx)
		if err != nil {
			return false, t.next, err
		}
		m.created[i] = created
		t.proj.View(func(s *cell.State, _ ledger.Position) {
			if c := s.Cursor(name); c.GetCreatedNs() == created {
				m.seqs[i] = c.GetSeq()
			}
		})
	}
	t.marks = append(t.marks, m)
	if now.Sub(t.marks[0].at) < trimAfter {
		return false, t.next, nil
	}
	old := t.marks[0]
	for i, in := range t.inputs {
		// An older ledger may have been put back meanwhile: then less counts as consumed.
		seq := min(old.seqs[i], m.seqs[i])
		if seq == 0 || old.created[i] != m.created[i] {
			continue
		}
		if err := in.Trim(ctx, seq); err != nil {
			return false, t.next, fmt.Errorf("trim an input: %w", err)
		}
	}
	t.marks = t.marks[1:]
	return false, t.next, nil
}

// trimRecords removes what the snapshots cover. Events are made from the records themselves, so those not announced stay.
func (t *Trimmer) trimRecords(ctx context.Context) error {
	if t.record == nil {
		return nil
	}
	log, ok := t.record.Log.(ledger.Trimmable)
	through := t.record.Announcer.Through()
	if !ok || through == 0 {
		return nil
	}
	covered, err := ledger.Covered(ctx, t.record.Log, t.record.Snapshots, cellfold.Fold())
	if err != nil || covered == 0 {
		return err
	}
	if covered > through { // all or nothing: the oldest record left must be a snapshot's
		return nil
	}
	return log.TrimBefore(ctx, covered)
}

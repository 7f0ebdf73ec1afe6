package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var (
	// ErrNotLeading: this replica does not lead, or no longer does; nothing was appended.
	ErrNotLeading = errors.New("ledger: this replica does not lead")
	// ErrMoved: an append whose fate was unknown turned out to be stored, so the state moved on; decide again.
	ErrMoved = errors.New("ledger: the state moved on since this was decided")
)

// Writer appends the commits of one service's leader. All methods may be called concurrently, and one append is in flight;
// but what is committed must have been decided on the state as it is, so one loop decides and commits by turns.
type Writer[S any] struct {
	log     Log
	proj    *Projection[S]
	service string
	replica string

	// NewID makes commit ids; the default is a ULID. A simulator replaces it before the first use.
	NewID func(now time.Time) string
	// Confirmed tells the newest record that something outside the log proves to have been stored, 0 if nothing does. A
	// log that ends before it has lost commits, which a process that just started can't know by itself. May be nil.
	Confirmed func(ctx context.Context) (seq uint64, err error)
	// OnAdopt commits what an adoption begins with. It is called when this writer leads and nobody who knows of the loss
	// may lead yet: every later leader finds its commits. May be nil.
	OnAdopt func(ctx context.Context, now time.Time) error

	append sync.Mutex // held over each append
	unsure bool       // an append's fate is unknown: read to the tail first; guarded by append
	last   uint64     // where this writer's last commit, or ErrMoved, left the log; guarded by append

	mu   sync.Mutex
	term uint64 // the term this replica opened; 0 = it does not lead
}

// NewWriter returns a writer that does not lead yet. replica must be unique to this process, such as scheduler-01j….
func NewWriter[S any](log Log, proj *Projection[S], service, replica string) *Writer[S] {
	return &Writer[S]{log: log, proj: proj, service: service, replica: replica, NewID: newULID}
}

func newULID(now time.Time) string {
	return strings.ToLower(ulid.MustNew(ulid.Timestamp(now), rand.Reader).String())
}

// Service and Replica name this writer.
func (w *Writer[S]) Service() string { return w.service }

// Replica is the name given to NewWriter.
func (w *Writer[S]) Replica() string { return w.replica }

// Leading says whether this replica may commit, as far as its projection has read.
func (w *Writer[S]) Leading() bool {
	w.mu.Lock()
	own := w.term
	w.mu.Unlock()
	if own == 0 {
		return false
	}
	replica, term := w.proj.Leader()
	return replica == w.replica && term == own
}

// Term is the newest term known here, whoever leads.
func (w *Writer[S]) Term() uint64 {
	_, term := w.proj.Leader()
	return term
}

// Resign gives up leading; what is in flight still lands.
func (w *Writer[S]) Resign() { w.setTerm(0) }

func (w *Writer[S]) setTerm(t uint64) {
	w.mu.Lock()
	w.term = t
	w.mu.Unlock()
}

// Lead reads to the end of the log and opens the next term there, by a commit of its own: that it fits proves that the
// true end was read. ErrConflict means that somebody else was faster, *Loss that commits were lost and nobody adopted
// what is left.
func (w *Writer[S]) Lead(ctx context.Context, now time.Time) error {
	return w.lead(ctx, now, false)
}

// Survey reads to the end of the log and returns what is known to be lost, or nil.
func (w *Writer[S]) Survey(ctx context.Context, now time.Time) (*Loss, error) {
	// The outside is asked first: what a leader appends and announces meanwhile is then read, and not missed.
	confirmed := uint64(0)
	if w.Confirmed != nil {
		var err error
		if confirmed, err = w.Confirmed(ctx); err != nil {
			return nil, fmt.Errorf("ask what of the ledger is known outside of it: %w", err)
		}
	}
	tail, err := w.proj.CatchUp(ctx, now)
	if err != nil {
		return nil, err
	}
	w.proj.Confirm(confirmed, tail)
	return w.proj.Lost(), nil
}

// Adopt leads a log that has lost its end: it accepts what is left and returns what was known to be lost, or nil. Empty
// commits fill the places of what was lost, so that no place ever means two things to those who saw it: agents and
// readers of events go by it. Only the election behind them ends the loss for everybody: an adoption that was cut short
// is one that has not happened, and is done again.
func (w *Writer[S]) Adopt(ctx context.Context, now time.Time) (*Loss, error) {
	loss, err := w.Survey(ctx, now)
	if err != nil {
		return nil, err
	}
	beyond, err := w.proj.beyond(ctx)
	if err != nil {
		return loss, err
	}
	if err := w.lead(ctx, now, true); err != nil { // whoever still writes is deposed from here on
		return loss, err
	}
	if w.OnAdopt != nil {
		if err := w.OnAdopt(ctx, now); err != nil {
			return loss, fmt.Errorf("adopt: %w", err)
		}
	}
	if loss == nil {
		return nil, nil
	}
	for w.proj.Position().Seq < loss.Had.Seq {
		if _, err := w.Commit(ctx, now, nil, nil); err != nil {
			return loss, fmt.Errorf("fill the place of a lost commit: %w", err)
		}
	}
	if err := w.lead(ctx, now, true); err != nil {
		return loss, err
	}
	return loss, w.proj.drop(ctx, beyond)
}

func (w *Writer[S]) lead(ctx context.Context, now time.Time, adopt bool) error {
	w.append.Lock()
	defer w.append.Unlock()
	w.setTerm(0)
	loss, err := w.Survey(ctx, now)
	if err != nil {
		return err
	}
	w.unsure = false
	if loss != nil && !adopt {
		return loss
	}
	at := w.proj.Position()
	term := at.Term + 1
	entry := NewEntry(KindLeaderElected, weftv1.LeaderElected_builder{Term: &term, Leader: &w.replica}.Build())
	// Whoever the fold of this commit wakes must find that this replica leads, or it sleeps on.
	w.setTerm(term)
	if _, err := w.store(ctx, now, at, term, []*weftv1.Entry{entry}, nil); err != nil {
		w.setTerm(0)
		return fmt.Errorf("lead term %d: %w", term, err)
	}
	return nil
}

// Commit appends one commit and folds it. It returns ErrNotLeading, *TooLarge and ErrMoved with nothing appended, and
// ErrConflict after stepping down. After ErrUnavailable it is unknown whether the commit was stored: the writer still
// leads, and finds out before the next append; ErrMoved then says that it was.
func (w *Writer[S]) Commit(ctx context.Context, now time.Time, entries []*weftv1.Entry, cursors []*weftv1.Cursor) (Position, error) {
	w.append.Lock()
	defer w.append.Unlock()
	if !w.Leading() {
		return Position{}, ErrNotLeading
	}
	if w.unsure {
		if _, err := w.proj.CatchUp(ctx, now); err != nil {
			return Position{}, err
		}
		w.unsure = false
	}
	if !w.Leading() {
		return Position{}, ErrNotLeading
	}
	at := w.proj.Position()
	if at.Seq != w.last {
		w.last = at.Seq
		return Position{}, ErrMoved
	}
	return w.store(ctx, now, at, at.Term, entries, cursors)
}

// store appends at a position. append is held.
func (w *Writer[S]) store(ctx context.Context, now time.Time, at Position, term uint64, entries []*weftv1.Entry,
	cursors []*weftv1.Cursor,
) (Position, error) {
	id := w.NewID(now)
	c := weftv1.Commit_builder{
		Term: &term, Id: &id, Prev: at.Hash, TimeNs: new(max(now.UnixNano(), at.TimeNS+1)), Cursors: cursors, Entries: entries,
	}.Build()
	data, err := Encode(c)
	if err != nil {
		return Position{}, err
	}
	if len(data) > MaxCommit {
		return Position{}, &TooLarge{Size: len(data), Limit: MaxCommit}
	}
	seq, err := w.log.Append(ctx, at.Seq, id, data)
	switch {
	case errors.Is(err, ErrConflict):
		w.setTerm(0)
		return Position{}, err
	case err != nil:
		w.unsure = true
		return Position{}, err
	}
	if err := w.proj.Apply(Record{Seq: seq, Data: data}); err != nil {
		w.setTerm(0) // stored, but the log changed under this leader: whoever leads next sees what counts
		return Position{}, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	w.last = seq
	return Position{Seq: seq, Term: term, Hash: Hash(data), TimeNS: c.GetTimeNs()}, nil
}

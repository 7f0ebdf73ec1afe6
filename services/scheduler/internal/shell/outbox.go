package shell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/killpoint"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// Assigner writes each node's whole desired set to ASSIGNMENTS: one message a node, with the ledger sequence that it
// reflects, never a lower one, never deleted.
type Assigner struct {
	proj   *Projection
	writer *Writer
	out    bus.Outbox
	log    *slog.Logger
	wake   <-chan struct{}
	term   uint64
	wrote  map[string]written

	mu      sync.Mutex
	all     bool            // the state was replaced: look at every node
	touched map[string]bool // nodes whose desired set may have changed; written by the fold's hook
}

// written is what stands in the stream for a node.
type written struct {
	at   uint64 // position in the stream
	seq  uint64 // ledger sequence that it reflects
	body string // the desired set, without the sequence
}

// NewAssigner makes one; it must be made before the projection is first stepped.
func NewAssigner(proj *Projection, w *Writer, out bus.Outbox, log *slog.Logger) *Assigner {
	a := &Assigner{proj: proj, writer: w, out: out, log: log, touched: map[string]bool{}, wrote: map[string]written{}, wake: proj.Wake()}
	proj.OnCommit(a.note)
	proj.OnReset(func(ledger.Position) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all = true
	})
	return a
}

func (a *Assigner) note(at ledger.Position, c *weftv1.Commit) {
	var nodes []string
	a.proj.View(func(s *cell.State, _ ledger.Position) {
		for _, e := range c.GetEntries() {
			if f, err := cell.Fact(e, at.Seq); err == nil && f != nil {
				nodes = append(nodes, lifecycle.AssignedNodes(s, f)...)
			}
		}
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range nodes {
		a.touched[n] = true
	}
}

// Wakes implements run.Shell.
func (a *Assigner) Wakes() []<-chan struct{} { return []<-chan struct{}{a.wake} }

// Step implements run.Shell.
func (a *Assigner) Step(ctx context.Context, _ time.Time) (bool, time.Time, error) {
	if !a.writer.Leading() {
		a.term = 0
		return false, time.Time{}, nil
	}
	// The set is taken before the state is read: what is touched later is in the set of the next step.
	nodes, all := a.take()
	var s *cell.State
	var seq uint64
	a.proj.View(func(live *cell.State, at ledger.Position) { s, seq = live.Overlay(), at.Seq })
	if term := a.writer.Term(); term != a.term || all {
		clear(a.wrote)
		for n := range s.Nodes() {
			nodes[n.Name] = true
		}
		a.term = term
	}
	did := false
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		wrote, err := a.assign(ctx, s, n, seq)
		if err != nil {
			a.giveBack(nodes)
			return did, time.Time{}, fmt.Errorf("assign %s: %w", n, err)
		}
		delete(nodes, n)
		did = did || wrote
	}
	return did, time.Time{}, nil
}

// take empties the set of touched nodes.
func (a *Assigner) take() (nodes map[string]bool, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	nodes, all = a.touched, a.all
	a.touched, a.all = map[string]bool{}, false
	return nodes, all
}

// giveBack returns nodes that could not be written.
func (a *Assigner) giveBack(nodes map[string]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.Copy(a.touched, nodes)
}

func (a *Assigner) assign(ctx context.Context, s *cell.State, node string, seq uint64) (bool, error) {
	w, ok := a.wrote[node]
	if !ok {
		var err error
		if w, err = a.load(ctx, node); err != nil {
			return false, err
		}
	}
	m := lifecycle.Assignment(s, node, seq)
	body, err := bodyOf(m)
	if err != nil {
		return false, err
	}
	if w.at != 0 && body == w.body {
		a.wrote[node] = w
		return false, nil
	}
	if seq < w.seq {
		return false, fmt.Errorf("the stream holds the desired set of ledger record %d, this is %d: %w", w.seq, seq, ledger.ErrMoved)
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return false, err
	}
	killpoint.Reach(killpoint.Assign)
	at, err := a.out.Put(ctx, w.at, bus.Message{Subject: bus.SubjectAssign(node), Data: data})
	if err != nil {
		delete(a.wrote, node) // look what stands there
		return false, err
	}
	a.wrote[node] = written{at: at, seq: seq, body: body}
	return true, nil
}

func (a *Assigner) load(ctx context.Context, node string) (written, error) {
	msg, at, ok, err := a.out.Get(ctx, bus.SubjectAssign(node))
	if err != nil || !ok {
		return written{}, err
	}
	var m weftv1.Assignment
	if err := proto.Unmarshal(msg.Data, &m); err != nil {
		a.log.Warn("assignment in the stream is unreadable; it is replaced", "node", node, "error", err)
		return written{at: at, body: "unreadable"}, nil
	}
	seq := m.GetLedgerSeq()
	body, err := bodyOf(&m)
	return written{at: at, seq: seq, body: body}, err
}

// bodyOf is the desired set without the sequence, to compare; it leaves m as it was.
func bodyOf(m *weftv1.Assignment) (string, error) {
	seq := m.GetLedgerSeq()
	m.ClearLedgerSeq()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	m.SetLedgerSeq(seq)
	return string(b), err
}

// PositionHeader says which fact an event is: ledger sequence and index of the event within its commit.
const PositionHeader = "Weft-Ledger"

// positionOf reads which fact an event is.
func positionOf(m bus.Message) (seq uint64, index int, ok bool) {
	left, right, found := strings.Cut(m.Header[PositionHeader], "/")
	seq, err1 := strconv.ParseUint(left, 10, 64)
	index, err2 := strconv.Atoi(right)
	return seq, index, found && errors.Join(err1, err2) == nil
}

// assignedAt reads the ledger sequence that an assignment reflects.
func assignedAt(data []byte) (uint64, error) {
	var m weftv1.Assignment
	err := proto.Unmarshal(data, &m)
	return m.GetLedgerSeq(), err
}

// lookEvery is how often the end of a history is asked for that seems to be behind.
const lookEvery = 2 * time.Second

// Announcer writes EVENTS: each fact once, in the ledger's order. Its position is the stream's own last message, so two
// replicas that write at once can only write the same.
type Announcer struct {
	proj    *Projection
	writer  *Writer
	out     bus.Outbox
	history ledger.Log // a reader of its own: it may be behind the projection
	wakes   []<-chan struct{}
	term    uint64
	chain   ledger.Chain
	last    uint64    // position in the stream
	seq     uint64    // ledger sequence whose events come next
	skip    int       // events of it that are written already
	since   int64     // ledger time; what is older was announced, and has expired
	lookAt  time.Time // when to ask the history where it ends, while it seems to be behind
	elected atomic.Uint64
	through atomic.Uint64 // everything before this record was announced; 0 = not known
}

// Through is the first record of the ledger that may not be announced yet, 0 if that is not known here.
func (a *Announcer) Through() uint64 { return a.through.Load() }

// NewAnnouncer makes one; it must be made before the projection is first stepped. Log is read apart from the projection,
// so it must be a reader of its own.
func NewAnnouncer(proj *Projection, w *Writer, log ledger.Log, out bus.Outbox) *Announcer {
	// The channels are taken once: what a new one would miss is missed for ever.
	a := &Announcer{proj: proj, writer: w, out: out, history: log, wakes: []<-chan struct{}{proj.Wake(), log.Wake()}}
	proj.OnCommit(func(at ledger.Position, c *weftv1.Commit) {
		if es := c.GetEntries(); len(es) > 0 && es[0].GetKind() == ledger.KindLeaderElected {
			a.elected.Store(at.Seq)
		}
	})
	return a
}

// Wakes implements run.Shell.
func (a *Announcer) Wakes() []<-chan struct{} { return a.wakes }

// Step implements run.Shell: it writes the events of a few commits.
func (a *Announcer) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	if !a.writer.Leading() {
		a.term = 0
		a.through.Store(0)
		return false, time.Time{}, nil
	}
	if term := a.writer.Term(); term != a.term {
		a.through.Store(0)
		if err := a.position(ctx, now); err != nil {
			return false, time.Time{}, fmt.Errorf("position in EVENTS: %w", err)
		}
		a.term = term
	}
	var s *cell.State
	var tip uint64
	a.proj.View(func(live *cell.State, at ledger.Position) { s, tip = live.Overlay(), at.Seq })
	if a.seq > tip {
		return false, time.Time{}, nil
	}
	recs, err := a.history.Read(ctx, a.seq, 64)
	if err != nil {
		return false, time.Time{}, err
	}
	if len(recs) == 0 {
		err := a.look(ctx, now)
		return false, a.lookAt, err
	}
	did := false
	for _, r := range recs {
		if r.Seq > tip {
			break
		}
		if r.Seq > a.seq { // what lay before was purged
			a.seq, a.skip = r.Seq, 0
			a.chain.Reset()
		}
		// A record that is not on the chain never became true.
		if c, ok := a.chain.Next(r); ok && c.GetTimeNs() > a.since {
			if err := a.announce(ctx, r.Seq, c, s); err != nil {
				a.term = 0
				return did, time.Time{}, err
			}
		}
		a.seq, a.skip, did = r.Seq+1, 0, true
	}
	a.through.Store(a.seq)
	return did, time.Time{}, nil
}

// look makes a history that seems to be behind find out where its log ends: one that lost its tail would wait for ever.
func (a *Announcer) look(ctx context.Context, now time.Time) error {
	if now.Before(a.lookAt) {
		return nil
	}
	a.lookAt = now.Add(lookEvery)
	if _, err := a.history.Tail(ctx); err != nil {
		return fmt.Errorf("ask for the ledger's end: %w", err)
	}
	return nil
}

func (a *Announcer) announce(ctx context.Context, seq uint64, c *weftv1.Commit, s *cell.State) error {
	for i, ev := range lifecycle.CloudEvents(seq, c, s) {
		if i < a.skip {
			continue
		}
		m := bus.Message{Subject: bus.SubjectEvent(ev.Tenant, ev.Type), Data: ev.JSON,
			Header: map[string]string{PositionHeader: fmt.Sprintf("%d/%d", seq, i)}}
		if ev.Job != "" {
			m.Header[bus.HeaderJob] = ev.Job
		}
		killpoint.Reach(killpoint.Announce)
		at, err := a.out.Append(ctx, a.last, m)
		if err != nil {
			return fmt.Errorf("event %d/%d: %w", seq, i, err)
		}
		a.last, a.skip = at, i+1
	}
	return nil
}

// position finds where the stream stands.
func (a *Announcer) position(ctx context.Context, now time.Time) error {
	m, last, ok, err := a.out.Last(ctx)
	if err != nil {
		return err
	}
	a.last, a.seq, a.skip, a.since, a.lookAt = last, 1, 0, 0, time.Time{}
	a.chain.Reset()
	if !ok {
		if d, _ := bus.Declared(bus.StreamEvents); last > 0 && d.MaxAge > 0 {
			a.since = now.Add(-d.MaxAge).UnixNano()
		}
		return nil
	}
	n, i, found := positionOf(m)
	if !found {
		return fmt.Errorf("its last message says %q for %s; only a scheduler may write there", m.Header[PositionHeader], PositionHeader)
	}
	a.seq, a.skip = n, i+1
	if n <= a.proj.Position().Seq {
		return nil
	}
	// This replica is behind, or the ledger has lost its end and somebody adopted what is left: then what follows the
	// election is new.
	tail, err := a.history.Tail(ctx)
	if err == nil && n > tail.Last {
		a.seq, a.skip = a.elected.Load(), 0
	}
	return err
}

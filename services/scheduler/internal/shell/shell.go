// Package shell performs what lifecycle decides: it reads inputs, commits facts, and writes what follows from them. It
// owns the order append → evolve → outbox, and the cursors; it contains no rule of the domain.
//
// The shells work side by side: Decider turns inputs into commits, Assigner and Announcer write the two outboxes, Trimmer
// removes inputs consumed long ago, and the ledger's own follow the log, hold the leadership and write snapshots. Each may
// crash between any two steps: what was committed is in the ledger, what was not is read again.
package shell

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// Projection is the state of the cell as this service folds it.
type Projection = ledger.Projection[*cell.State]

// Writer appends to LEDGER.
type Writer = ledger.Writer[*cell.State]

// batch is how many inputs of one stream go into one step at most.
const batch = 256

// outage is how long the decider may be held up before it takes the silence of nodes for its own.
const outage = 2 * time.Second

// Decider is the heart of the scheduler: inputs in, commits out.
type Decider struct {
	proj   *Projection
	writer *Writer
	tail   func(context.Context) (ledger.Tail, error)
	inputs []*input // REQUESTS, REPORTS, CHECKPOINTS, in this order
	watch  *watch
	planner
	policy   lifecycle.Policy
	log      *slog.Logger
	term     uint64 // of the leadership that the inputs were last positioned for; 0 = none
	stepped  time.Time
	sure     time.Time // when this replica last proved, by the ledger, that it leads
	refusals refusals
	draining bool // a shutdown was asked for: no more plans
	wake     <-chan struct{}
}

// input is one stream that the decider consumes.
type input struct {
	inbox  bus.Inbox
	decide func(bus.Input) []command
	queued []bus.Input // read and not yet committed
}

// command is something to decide, with what to say if it is refused.
type command struct {
	lifecycle.Command
	key string // what refusals are counted by: a queue or a stream
	job string
}

// Options of a Decider.
type Options struct {
	Proj        *Projection
	Writer      *Writer
	Ledger      ledger.Log // asked for its end
	Requests    bus.Inbox
	Reports     bus.Inbox
	Checkpoints bus.Inbox  // nil = no saves
	Core        bus.Caller // asks the allocator
	Nodes       bus.Caller // hears the agents
	Policy      lifecycle.Policy
	Log         *slog.Logger
}

// NewDecider makes one; it serves beats from the first step on.
func NewDecider(o Options) (*Decider, error) {
	w, err := newWatch(o.Nodes, o.Policy.Silent)
	if err != nil {
		return nil, err
	}
	d := &Decider{
		proj: o.Proj, writer: o.Writer, tail: o.Ledger.Tail, watch: w, policy: o.Policy, log: o.Log,
		planner:  planner{caller: o.Core, log: o.Log, refused: map[string]int{}},
		refusals: newRefusals(),
		inputs:   []*input{{inbox: o.Requests, decide: decideRequest}, {inbox: o.Reports, decide: decideReport}},
		wake:     o.Proj.Wake(),
	}
	if o.Checkpoints != nil {
		d.inputs = append(d.inputs, &input{inbox: o.Checkpoints, decide: decideCheckpoint})
	}
	return d, nil
}

// Close stops listening for beats.
func (d *Decider) Close() { d.watch.beats.Close() }

// Wakes implements run.Shell.
func (d *Decider) Wakes() []<-chan struct{} {
	ws := []<-chan struct{}{d.wake, d.watch.beats.Wake()}
	for _, in := range d.inputs {
		ws = append(ws, in.inbox.Wake())
	}
	if d.pending != nil {
		ws = append(ws, d.pending.Done())
	}
	return ws
}

// Step implements run.Shell: everything that is waiting becomes one commit, or as few as fit.
func (d *Decider) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	if !d.writer.Leading() {
		d.term, d.sure = 0, time.Time{}
		d.watch.ignore()
		d.drop()
		return false, time.Time{}, nil
	}
	if err := d.takeOver(ctx, now); err != nil {
		return false, time.Time{}, err
	}
	if now.Sub(d.stepped) > outage && !d.stepped.IsZero() && d.late(now) {
		d.watch.restart(now)
	}
	s := d.state()
	d.watch.answer(now, s, d.writer.Term(), d.proj.Position().Seq, d.leads(ctx, now))

	units, err := d.collect(ctx, now, s)
	if err == nil {
		err = d.commit(ctx, now, units)
	}
	d.refusals.settle(now, err == nil)
	if err != nil {
		d.term = 0 // position the inputs anew: what was not committed is read again
		d.stepped = now
		d.watch.failed(now)
		switch {
		case errors.Is(err, ledger.ErrMoved), errors.Is(err, ledger.ErrNotLeading):
			return true, time.Time{}, nil
		case errors.Is(err, ledger.ErrConflict):
			d.log.Info("another replica wrote to the ledger; this one steps down", "error", err)
			return true, time.Time{}, nil
		}
		return false, time.Time{}, err
	}
	did := len(units) > 0
	if did {
		s = d.state()
		d.touch(now)
	}
	d.watch.committed(s, d.writer.Term(), d.proj.Position().Seq)
	if !d.draining {
		d.ask(now, s, d.proj.Position().Seq)
	}
	d.stepped = now
	return did, d.next(s), nil
}

// late says whether something was due that the decider did not get to: it was held up itself.
func (d *Decider) late(now time.Time) bool {
	return !d.watch.due.IsZero() && now.Sub(d.watch.due) > outage
}

// leads says whether the ledger has confirmed within the silence of a node that this replica leads. One that was cut off
// and deposed must not keep a node's ranks alive beyond the fence that its successor counts.
func (d *Decider) leads(ctx context.Context, now time.Time) bool {
	if now.Sub(d.sure) > d.policy.Silent/3 {
		tail, err := d.tail(ctx)
		if err == nil && tail.Last <= d.proj.Position().Seq && d.writer.Leading() {
			d.sure = now
		}
	}
	return now.Sub(d.sure) < d.policy.Silent
}

func (d *Decider) state() (s *cell.State) {
	d.proj.View(func(live *cell.State, _ ledger.Position) { s = live.Overlay() })
	return s
}

// takeOver positions everything at the start of a leadership.
func (d *Decider) takeOver(ctx context.Context, now time.Time) error {
	term := d.writer.Term()
	if d.term == term {
		return nil
	}
	s := d.state()
	for _, in := range d.inputs {
		name, created, err := in.inbox.Stream(ctx)
		if err != nil {
			return err
		}
		in.queued = nil
		seq := uint64(0)
		if c := s.Cursor(name); c.GetCreatedNs() == created {
			seq = c.GetSeq()
		}
		in.inbox.Seek(seq)
	}
	d.watch.restart(now)
	d.planner.reset(now)
	d.term = term
	return nil
}

// unit is what one input, or time, makes true: it is never cut.
type unit struct {
	facts  []*weftv1.Fact
	cursor *weftv1.Cursor
	step   lifecycle.Command // of a plan
}

// collect decides everything that waits, in order, each on the state that the ones before leave behind.
func (d *Decider) collect(ctx context.Context, now time.Time, base *cell.State) ([]unit, error) {
	var units []unit
	s := base.Overlay()
	at := max(now.UnixNano(), base.TimeNS())
	decide := func(c lifecycle.Command) ([]*weftv1.Fact, error) {
		facts, err := lifecycle.Decide(s, c, at, d.policy)
		for _, f := range facts {
			cell.Evolve(s, f, at)
		}
		return facts, err
	}
	add := func(facts []*weftv1.Fact) {
		if len(facts) > 0 {
			units = append(units, unit{facts: facts})
		}
	}
	for _, c := range d.watch.commands(now, s) {
		facts, err := decide(c)
		if err != nil {
			d.log.Warn("node watch", "error", err)
		}
		add(facts)
	}
	if due := lifecycle.NextDeadline(s, d.policy); due != 0 && due <= at {
		facts, _ := decide(lifecycle.Tick{})
		add(facts)
	}
	for _, in := range d.inputs {
		if len(in.queued) == 0 {
			got, err := in.inbox.Next(ctx, batch)
			if err != nil {
				return nil, fmt.Errorf("read input: %w", err)
			}
			in.queued = got
		}
		for _, msg := range in.queued {
			units = append(units, d.consume(now, msg, in.decide(msg), decide))
		}
	}
	if d.draining {
		d.drop()
	}
	for _, c := range d.planner.steps(now, s) {
		facts, err := decide(c)
		d.planner.result(c, err)
		if len(facts) > 0 {
			units = append(units, unit{facts: facts, step: c})
		}
	}
	return units, nil
}

// consume decides one input. Whatever it is, it is consumed.
func (d *Decider) consume(now time.Time, msg bus.Input, cmds []command, decide func(lifecycle.Command) ([]*weftv1.Fact, error)) unit {
	u := unit{cursor: weftv1.Cursor_builder{Stream: &msg.Stream, CreatedNs: &msg.CreatedNS, Seq: &msg.Seq}.Build()}
	for _, c := range cmds {
		if _, ok := c.Command.(lifecycle.ShutDown); ok {
			d.draining = true
		}
		var err error
		if p, poison := c.Command.(poison); poison {
			err = p.err
		} else {
			var facts []*weftv1.Fact
			facts, err = decide(c.Command)
			u.facts = append(u.facts, facts...)
		}
		if err != nil {
			if f := d.refusals.fact(now, msg, c, err); f != nil {
				u.facts = append(u.facts, f)
			}
		}
	}
	return u
}

// commit appends the units in order, in as few commits as fit.
func (d *Decider) commit(ctx context.Context, now time.Time, units []unit) error {
	for len(units) > 0 {
		var entries []*weftv1.Entry
		cursors := map[string]*weftv1.Cursor{}
		var order []string
		n, size := 0, 0
		for _, u := range units {
			es := ledger.FactEntries(u.facts)
			grown := size
			for _, e := range es {
				grown += proto.Size(e) + 16
			}
			if grown > ledger.MaxCommit-(16<<10) && n > 0 {
				break
			}
			size = grown
			entries = append(entries, es...)
			if u.cursor != nil {
				if cursors[u.cursor.GetStream()] == nil {
					order = append(order, u.cursor.GetStream())
				}
				cursors[u.cursor.GetStream()] = u.cursor
			}
			n++
		}
		var cs []*weftv1.Cursor
		for _, name := range order {
			cs = append(cs, cursors[name])
		}
		_, err := d.writer.Commit(ctx, now, entries, cs)
		if err == nil {
			d.sure = now
		}
		var large *ledger.TooLarge
		switch {
		case !errors.As(err, &large) || n != 1:
		case units[0].step != nil:
			d.planner.result(units[0].step, err)
			err = nil
		case units[0].cursor != nil:
			// The effect of one input does not fit a commit: the input is refused rather than the stream stopped.
			reason := "its effect does not fit one commit of the ledger"
			f := weftv1.Fact_builder{InputRejected: weftv1.InputRejected_builder{
				Stream: new(units[0].cursor.GetStream()), Seq: new(units[0].cursor.GetSeq()), Reason: &reason,
			}.Build()}.Build()
			_, err = d.writer.Commit(ctx, now, []*weftv1.Entry{ledger.FactEntry(f)}, cs)
		}
		if err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		for _, u := range units[:n] {
			d.committed(u)
		}
		units = units[n:]
	}
	return nil
}

// committed drops what is now in the ledger from the inputs.
func (d *Decider) committed(u unit) {
	if u.cursor == nil {
		return
	}
	for _, in := range d.inputs {
		if len(in.queued) > 0 && in.queued[0].Stream == u.cursor.GetStream() {
			in.queued = in.queued[1:]
		}
	}
}

// next is when time alone makes another step useful.
func (d *Decider) next(s *cell.State) time.Time {
	var next time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if due := lifecycle.NextDeadline(s, d.policy); due != 0 {
		sooner(time.Unix(0, due))
	}
	sooner(d.watch.next(s))
	if !d.draining {
		sooner(d.planner.next())
	}
	return next
}

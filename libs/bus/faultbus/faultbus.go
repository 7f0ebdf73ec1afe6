// Package faultbus wraps a bus.Outbox or a bus.Inbox and makes it fail where a test says so. It never fails by chance:
// whoever wants chance draws it and plans the fault.
package faultbus

import (
	"context"
	"sync"

	"github.com/weft-fabric/weft/libs/bus"
)

// Fault is what happens to one call.
type Fault int

// Faults of writes; Drop also fits reads and Trim, Delay and Short fit Next alone.
const (
	None    Fault = iota
	Drop          // nothing happens, the caller learns ErrUnavailable
	LoseAck       // it happens, the caller learns ErrUnavailable
	Late          // the caller learns ErrUnavailable; Land writes it if it still fits
	Twice         // a Publish is stored twice, as by a client that tried again
	Hold          // the caller's process is paused before anything is sent, until Resume
	HoldAck       // stored; the caller's process is paused before it learns that, until Resume
	Delay         // Next gives nothing this time, and wakes its reader again
	Short         // Next gives at most one, and wakes its reader again
)

// plan is a queue of faults.
type plan struct {
	mu sync.Mutex
	fs []Fault
}

func (p *plan) add(fs []Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fs = append(p.fs, fs...)
}

func (p *plan) take() Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.fs) == 0 {
		return None
	}
	f := p.fs[0]
	p.fs = p.fs[1:]
	return f
}

func (p *plan) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fs = nil
}

// Outbox is a bus.Outbox with planned faults.
type Outbox struct {
	out           bus.Outbox
	writes, reads plan
	held          chan struct{}

	mu     sync.Mutex
	late   []func(context.Context) error
	resume chan struct{} // closed by Resume
}

// WrapOutbox returns out without any fault planned.
func WrapOutbox(out bus.Outbox) *Outbox {
	return &Outbox{out: out, held: make(chan struct{}, 64), resume: make(chan struct{})}
}

// PlanWrites queues faults for the next writes, one each.
func (o *Outbox) PlanWrites(fs ...Fault) { o.writes.add(fs) }

// PlanReads queues faults for the next calls of Last and Get, one each.
func (o *Outbox) PlanReads(fs ...Fault) { o.reads.add(fs) }

// Heal forgets the faults that have not come true yet.
func (o *Outbox) Heal() {
	o.writes.clear()
	o.reads.clear()
}

// Land delivers the writes that were late, in order, and returns how each ended.
func (o *Outbox) Land(ctx context.Context) (errs []error) {
	o.mu.Lock()
	late := o.late
	o.late = nil
	o.mu.Unlock()
	for _, f := range late {
		errs = append(errs, f(ctx))
	}
	return errs
}

// Held receives once for each write that has come to its pause.
func (o *Outbox) Held() <-chan struct{} { return o.held }

// Resume lets every write go on that is held now.
func (o *Outbox) Resume() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.resume)
	o.resume = make(chan struct{})
}

// hold waits for Resume. It heeds no context: a paused process doesn't either.
func (o *Outbox) hold() {
	o.mu.Lock()
	resume := o.resume
	o.mu.Unlock()
	o.held <- struct{}{}
	<-resume
}

func (o *Outbox) write(ctx context.Context, f func(context.Context) (uint64, error)) (uint64, error) {
	fault := o.writes.take()
	if ctx.Err() != nil {
		return f(ctx) // the adapter's own words
	}
	switch fault {
	case Drop:
		return 0, bus.ErrUnavailable
	case LoseAck:
		if _, err := f(ctx); err != nil {
			return 0, err
		}
		return 0, bus.ErrUnavailable
	case Late:
		o.mu.Lock()
		defer o.mu.Unlock()
		o.late = append(o.late, func(ctx context.Context) error {
			_, err := f(ctx)
			return err
		})
		return 0, bus.ErrUnavailable
	case Twice:
		if _, err := f(ctx); err != nil {
			return 0, err
		}
	case Hold:
		o.hold()
	case HoldAck:
		seq, err := f(ctx)
		o.hold()
		return seq, err
	case None, Delay, Short:
	}
	return f(ctx)
}

// Publish implements bus.Outbox.
func (o *Outbox) Publish(ctx context.Context, m bus.Message) (uint64, error) {
	return o.write(ctx, func(ctx context.Context) (uint64, error) { return o.out.Publish(ctx, m) })
}

// Append implements bus.Outbox.
func (o *Outbox) Append(ctx context.Context, expected uint64, m bus.Message) (uint64, error) {
	return o.write(ctx, func(ctx context.Context) (uint64, error) { return o.out.Append(ctx, expected, m) })
}

// Put implements bus.Outbox.
func (o *Outbox) Put(ctx context.Context, expected uint64, m bus.Message) (uint64, error) {
	return o.write(ctx, func(ctx context.Context) (uint64, error) { return o.out.Put(ctx, expected, m) })
}

// Last implements bus.Outbox.
func (o *Outbox) Last(ctx context.Context) (bus.Message, uint64, bool, error) {
	if o.reads.take() == Drop {
		return bus.Message{}, 0, false, bus.ErrUnavailable
	}
	return o.out.Last(ctx) //nolint:wrapcheck // a decorator passes errors as they are
}

// Get implements bus.Outbox.
func (o *Outbox) Get(ctx context.Context, subject string) (bus.Message, uint64, bool, error) {
	if o.reads.take() == Drop {
		return bus.Message{}, 0, false, bus.ErrUnavailable
	}
	return o.out.Get(ctx, subject) //nolint:wrapcheck // a decorator passes errors as they are
}

// Inbox is a bus.Inbox with planned faults. As any Inbox it has one reader.
type Inbox struct {
	bus.Inbox
	reads, trims plan
	last         uint64 // what the reader has
}

// WrapInbox returns in without any fault planned. It must be fresh, or about to be sought.
func WrapInbox(in bus.Inbox) *Inbox { return &Inbox{Inbox: in} }

// PlanReads queues faults for the next calls of Next, one each.
func (i *Inbox) PlanReads(fs ...Fault) { i.reads.add(fs) }

// PlanTrims queues faults for the next calls of Trim, one each.
func (i *Inbox) PlanTrims(fs ...Fault) { i.trims.add(fs) }

// Heal forgets the faults that have not come true yet.
func (i *Inbox) Heal() {
	i.reads.clear()
	i.trims.clear()
}

// Seek implements bus.Inbox.
func (i *Inbox) Seek(seq uint64) {
	i.last = seq
	i.Inbox.Seek(seq)
}

// Next implements bus.Inbox.
func (i *Inbox) Next(ctx context.Context, limit int) ([]bus.Input, error) {
	fault := i.reads.take()
	if err := ctx.Err(); err != nil {
		return nil, err //nolint:wrapcheck // as the adapters say it
	}
	switch fault {
	case Drop:
		i.again()
		return nil, bus.ErrUnavailable
	case Delay:
		i.again()
		return nil, nil
	case Short:
		limit = min(limit, 1) // the adapter wakes for the rest
	case None, LoseAck, Late, Twice, Hold, HoldAck:
	}
	got, err := i.Inbox.Next(ctx, limit)
	if len(got) > 0 {
		i.last = got[len(got)-1].Seq
	}
	return got, err //nolint:wrapcheck // a decorator passes errors as they are
}

// again makes the adapter wake its reader once more, because the wake that it came for is used up.
func (i *Inbox) again() { i.Inbox.Seek(i.last) }

// Trim implements bus.Inbox.
func (i *Inbox) Trim(ctx context.Context, seq uint64) error {
	switch i.trims.take() {
	case Drop:
		return bus.ErrUnavailable
	case LoseAck:
		if err := i.Inbox.Trim(ctx, seq); err != nil {
			return err //nolint:wrapcheck // a decorator passes errors as they are
		}
		return bus.ErrUnavailable
	case None, Late, Twice, Hold, HoldAck, Delay, Short:
	}
	return i.Inbox.Trim(ctx, seq) //nolint:wrapcheck // a decorator passes errors as they are
}

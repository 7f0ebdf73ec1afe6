// Package shell answers questions about plans from a projection of the ledger. It owns waiting for the position that a
// question names; the answers come from package plan. It never steps the projection.
package shell

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/allocator/plan"
)

const (
	patience = 200 * time.Millisecond // how long a question waits for the ledger record that it names
	batch    = 16                     // questions taken in one step
)

// Answerer serves weft.rpc.allocator.plan and .explain. It is a run.Shell.
type Answerer struct {
	proj     *ledger.Projection[*cell.State]
	policy   plan.Policy
	plans    bus.Server
	asks     bus.Server
	wake     <-chan struct{}
	waiting  []question
	newest   *plan.Cycle // for the state at newestAt, with what was worked out for those who asked before
	newestAt ledger.Position
}

// question is a plan asked for at a position that may not be reached yet.
type question struct {
	req   bus.Request
	at    uint64
	until time.Time
}

// New makes an answerer; several of one cell share the questions.
func New(proj *ledger.Projection[*cell.State], core bus.Caller, policy plan.Policy) (*Answerer, error) {
	plans, err := core.Serve(bus.SubjectRPC("allocator", "plan"), "allocator")
	if err != nil {
		return nil, fmt.Errorf("allocator: %w", err)
	}
	asks, err := core.Serve(bus.SubjectRPC("allocator", "explain"), "allocator")
	if err != nil {
		plans.Close()
		return nil, fmt.Errorf("allocator: %w", err)
	}
	return &Answerer{proj: proj, policy: policy, plans: plans, asks: asks, wake: proj.Wake()}, nil
}

// Wakes implements run.Shell.
func (a *Answerer) Wakes() []<-chan struct{} {
	return []<-chan struct{}{a.plans.Wake(), a.asks.Wake(), a.wake}
}

// Step implements run.Shell.
func (a *Answerer) Step(_ context.Context, now time.Time) (bool, time.Time, error) {
	took := a.take(now)
	var s *cell.State
	var at ledger.Position
	a.proj.View(func(live *cell.State, pos ledger.Position) { s, at = live.Overlay(), pos })
	answered, next := a.answer(s, at, now)
	// One explanation a step: each may cost as much as a plan, and plans must not wait for a row of them.
	asks := a.asks.Next(1)
	for _, r := range asks {
		a.explain(r, s, at, now)
	}
	return took || answered || len(asks) > 0, next, nil
}

// take moves questions from the bus to those that wait.
func (a *Answerer) take(now time.Time) bool {
	reqs := a.plans.Next(batch)
	for _, r := range reqs {
		var q weftv1.PlanRequest
		if err := proto.Unmarshal(r.Data, &q); err != nil {
			refuse(r, bus.CodeInvalid, "not a plan request")
			continue
		}
		a.waiting = append(a.waiting, question{r, q.GetAt(), now.Add(patience)})
	}
	return len(reqs) > 0
}

// answer serves the questions whose record was read, all with one plan, and refuses those that waited too long, whatever
// was read meanwhile: who asked asks again. next is when the next one has waited long enough.
func (a *Answerer) answer(s *cell.State, at ledger.Position, now time.Time) (did bool, next time.Time) {
	var p *weftv1.Plan
	keep := a.waiting[:0]
	for _, q := range a.waiting {
		switch {
		case !now.Before(q.until):
			refuse(q.req, bus.CodeBehind, fmt.Sprintf("ledger record %d was not read in %v; the allocator is at %d", q.at, patience, at.Seq))
		case q.at <= at.Seq:
			if p == nil {
				p = a.cycle(s, at, now).Plan()
			}
			respond(q.req, p)
		default:
			keep = append(keep, q)
			if next.IsZero() || q.until.Before(next) {
				next = q.until
			}
		}
	}
	did = len(keep) < len(a.waiting)
	clear(a.waiting[len(keep):])
	a.waiting = keep
	return did, next
}

// cycle is the planning cycle for the state at a place in the ledger: questions about one state share the work.
func (a *Answerer) cycle(s *cell.State, at ledger.Position, now time.Time) *plan.Cycle {
	if a.newest == nil || a.newestAt.Seq != at.Seq || !bytes.Equal(a.newestAt.Hash, at.Hash) {
		a.newest, a.newestAt = plan.New(s, at.Seq, now.UnixNano(), a.policy), at
	}
	return a.newest
}

func (a *Answerer) explain(r bus.Request, s *cell.State, at ledger.Position, now time.Time) {
	var q weftv1.ExplainRequest
	if err := proto.Unmarshal(r.Data, &q); err != nil {
		refuse(r, bus.CodeInvalid, "not an explain request")
		return
	}
	e := a.cycle(s, at, now).Explain(q.GetJob())
	if e == nil {
		refuse(r, bus.CodeNotFound, fmt.Sprintf("no job %s; list jobs with `weft ps`", q.GetJob()))
		return
	}
	respond(r, e)
}

// Close leaves the questions to other replicas, and tells those who wait here. No step may follow.
func (a *Answerer) Close() {
	for _, q := range a.waiting {
		refuse(q.req, bus.CodeUnavailable, "this allocator is stopping")
	}
	a.waiting = nil
	for _, srv := range []bus.Server{a.plans, a.asks} {
		for reqs := srv.Next(batch); len(reqs) > 0; reqs = srv.Next(batch) {
			for _, r := range reqs {
				refuse(r, bus.CodeUnavailable, "this allocator is stopping")
			}
		}
		srv.Close()
	}
}

func refuse(r bus.Request, code, message string) {
	r.Respond(nil, &bus.Refusal{Code: code, Message: message})
}

func respond(r bus.Request, m proto.Message) {
	b, err := proto.Marshal(m)
	if err != nil {
		refuse(r, bus.CodeUnavailable, err.Error())
		return
	}
	r.Respond(b, nil)
}

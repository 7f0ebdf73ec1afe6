// Package shell answers questions about plans from a projection of the ledger. It owns waiting for the position that a
// question names; the answers come from package plan.
package shell

import (
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

// patience is how long a question waits for the ledger record that it names.
const patience = 200 * time.Millisecond

// Answerer serves weft.rpc.allocator.plan and .explain. It is a run.Shell.
type Answerer struct {
	proj    *ledger.Projection[*cell.State]
	policy  plan.Policy
	plans   bus.Server
	asks    bus.Server
	wake    <-chan struct{}
	waiting []question
}

// question is a plan asked for at a position that is not reached yet.
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
	did := false
	for _, r := range a.plans.Next(16) {
		did = true
		var q weftv1.PlanRequest
		if err := proto.Unmarshal(r.Data, &q); err != nil {
			r.Respond(nil, &bus.Refusal{Code: bus.CodeInvalid, Message: "not a plan request"})
			continue
		}
		a.waiting = append(a.waiting, question{r, q.GetAt(), now.Add(patience)})
	}
	var s *cell.State
	var seq uint64
	a.proj.View(func(live *cell.State, at ledger.Position) { s, seq = live.Overlay(), at.Seq })
	var next time.Time
	keep := a.waiting[:0]
	for _, q := range a.waiting {
		switch {
		case q.at <= seq:
			respond(q.req, plan.Plan(s, seq, now.UnixNano(), a.policy))
			did = true
		case !now.Before(q.until):
			q.req.Respond(nil, &bus.Refusal{Code: bus.CodeBehind, Message: fmt.Sprintf("read up to ledger record %d, asked for %d", seq, q.at)})
			did = true
		default:
			keep = append(keep, q)
			if next.IsZero() || q.until.Before(next) {
				next = q.until
			}
		}
	}
	a.waiting = keep
	for _, r := range a.asks.Next(16) {
		did = true
		a.explain(r, s, seq, now)
	}
	return did, next, nil
}

func (a *Answerer) explain(r bus.Request, s *cell.State, seq uint64, now time.Time) {
	var q weftv1.ExplainRequest
	if err := proto.Unmarshal(r.Data, &q); err != nil {
		r.Respond(nil, &bus.Refusal{Code: bus.CodeInvalid, Message: "not an explain request"})
		return
	}
	e := plan.Explain(s, seq, now.UnixNano(), a.policy, q.GetJob())
	if e == nil {
		r.Respond(nil, &bus.Refusal{Code: bus.CodeNotFound, Message: fmt.Sprintf("no job %s; list jobs with `weft ps`", q.GetJob())})
		return
	}
	respond(r, e)
}

func respond(r bus.Request, m proto.Message) {
	b, err := proto.Marshal(m)
	if err != nil {
		r.Respond(nil, &bus.Refusal{Code: bus.CodeUnavailable, Message: err.Error()})
		return
	}
	r.Respond(b, nil)
}

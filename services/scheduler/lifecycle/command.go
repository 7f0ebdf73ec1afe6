package lifecycle

import (
	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Refusal is the error of Decide: why a command was not accepted.
type Refusal = cell.Refusal

// Command is something that wants to become true.
type Command interface{ command() }

// Submit asks for a new job, or names one that exists.
type Submit struct {
	Tenant, Job string
	Spec        *weftv1.JobSpec // with defaults
	SpecHash    string
	By          string
	Traceparent string
}

// Cancel asks for a job's end. An empty tenant may cancel any.
type Cancel struct{ Tenant, Job, By string }

// ApplyQueues creates, replaces and removes queues, all or none.
type ApplyQueues struct {
	Queues []*weftv1.QueueSet
	By     string
}

// Cordon keeps new work off a node; with Drain its attempts are moved away, with Undo it is lifted.
type Cordon struct {
	Node, Reason, By string
	Drain, Undo      bool
}

// ShutDown puts every active job back into its queue, uncharged. Whoever sends it must stop asking for plans.
type ShutDown struct{ By string }

// Report is a message of a node's agent.
type Report struct{ Report *weftv1.Report }

// Checkpointed says that a save of a job was verified, or (Voided) must not be used any more.
type Checkpointed struct {
	Job    string
	Save   *weftv1.SaveRef
	Voided bool
}

// Silent says that the leader has not heard a node for Policy.Silent; Back that it hears it again.
type (
	Silent struct{ Node string }
	Back   struct{ Node string }
)

// TakeOver is a new leader's first command: nodes whose fence would end before it could have heard them get more time.
type TakeOver struct{}

// Place is one start of a plan; Evict one eviction of it.
type (
	Place struct {
		Plan  string
		Start *weftv1.Start
	}
	Evict struct{ Evict *weftv1.Evict }
)

// Claim holds nodes for a gang that was refused too often.
type Claim struct {
	Job   string
	Nodes []string
}

// Tick does what time alone makes due.
type Tick struct{}

func (Submit) command()       {}
func (Cancel) command()       {}
func (ApplyQueues) command()  {}
func (Cordon) command()       {}
func (ShutDown) command()     {}
func (Report) command()       {}
func (Checkpointed) command() {}
func (Silent) command()       {}
func (Back) command()         {}
func (TakeOver) command()     {}
func (Place) command()        {}
func (Evict) command()        {}
func (Claim) command()        {}
func (Tick) command()         {}

// FromRequest is the command of a request of the gateway.
func FromRequest(r *weftv1.Request) (Command, error) {
	switch r.WhichKind() {
	case weftv1.Request_Submit_case:
		q := r.GetSubmit()
		return Submit{
			Tenant: r.GetTenant(), Job: q.GetJob(), Spec: q.GetSpec(), SpecHash: q.GetSpecHash(), By: r.GetBy(),
			Traceparent: r.GetTraceparent(),
		}, nil
	case weftv1.Request_Cancel_case:
		return Cancel{Tenant: r.GetTenant(), Job: r.GetCancel().GetJob(), By: r.GetBy()}, nil
	case weftv1.Request_ApplyQueues_case:
		return ApplyQueues{Queues: r.GetApplyQueues().GetQueues(), By: r.GetBy()}, nil
	case weftv1.Request_Cordon_case:
		q := r.GetCordon()
		return Cordon{Node: q.GetNode(), Reason: q.GetReason(), By: r.GetBy(), Drain: q.GetDrain(), Undo: q.GetUndo()}, nil
	case weftv1.Request_ShutDown_case:
		return ShutDown{By: r.GetBy()}, nil
	}
	return nil, cell.Refuse(cell.CodeInvalid, "", "the request carries no command this version knows; upgrade the scheduler")
}

// JobOf is the job that a request names, or empty.
func JobOf(r *weftv1.Request) string {
	switch r.WhichKind() {
	case weftv1.Request_Submit_case:
		return r.GetSubmit().GetJob()
	case weftv1.Request_Cancel_case:
		return r.GetCancel().GetJob()
	}
	return ""
}

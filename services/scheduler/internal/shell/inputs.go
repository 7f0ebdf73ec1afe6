package shell

import (
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/jobspec"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// poison is an input that could not be read: it is consumed with a refusal.
type poison struct {
	lifecycle.Command
	err error
}

func unreadable(in bus.Input, err error) []command {
	return []command{{Command: poison{err: fmt.Errorf("unreadable: %w", err)}, key: in.Stream}}
}

func decideRequest(in bus.Input) []command {
	var r weftv1.Request
	if err := proto.Unmarshal(in.Data, &r); err != nil {
		return unreadable(in, err)
	}
	key, job := in.Stream+" "+r.GetTenant(), lifecycle.JobOf(&r)
	if q := r.GetSubmit().GetSpec().GetQueue(); q != "" {
		key = q
	}
	c, err := lifecycle.FromRequest(&r)
	if err != nil {
		return []command{{Command: poison{err: err}, key: key, job: job}}
	}
	return []command{{Command: c, key: key, job: job}}
}

func decideReport(in bus.Input) []command {
	var r weftv1.Report
	if err := proto.Unmarshal(in.Data, &r); err != nil {
		return unreadable(in, err)
	}
	// The subject is what the bus let its sender publish to; the message is only what it says.
	if in.Subject != bus.SubjectReport(r.GetNode()) {
		return unreadable(in, fmt.Errorf("a report of node %q came in on %s", r.GetNode(), in.Subject))
	}
	return []command{{Command: lifecycle.Report{Report: &r}, key: in.Subject}}
}

// decideCheckpoint reads one commit of the checkpoint log.
func decideCheckpoint(in bus.Input) []command {
	c, err := ledger.Decode(in.Data)
	if err != nil {
		return unreadable(in, err)
	}
	var out []command
	for _, e := range c.GetEntries() {
		var f weftv1.CheckpointFact
		if proto.Unmarshal(e.GetFact(), &f) != nil {
			continue // a kind of the ledger's own, or of a newer version: nothing that this service folds
		}
		switch f.WhichKind() {
		case weftv1.CheckpointFact_SaveCommitted_case:
			s := f.GetSaveCommitted()
			out = append(out, command{Command: lifecycle.Checkpointed{Job: s.GetJob(), Save: s.GetSave()}, key: in.Stream, job: s.GetJob()})
		case weftv1.CheckpointFact_SaveQuarantined_case:
			s := f.GetSaveQuarantined()
			ref := weftv1.SaveRef_builder{Save: proto.String(s.GetSave())}.Build()
			out = append(out, command{Command: lifecycle.Checkpointed{Job: s.GetJob(), Save: ref, Voided: true}, key: in.Stream, job: s.GetJob()})
		}
	}
	return out
}

// refusals turn refused inputs into facts, at most one a second for each key; the others are counted. What it notes holds
// once the facts are committed: an input whose commit failed is read again, and must be refused again.
type refusals struct {
	known map[string]refused
	draft map[string]refused
}

// refused is what is known of one key.
type refused struct {
	at     time.Time // of its last fact
	hidden uint64    // without a fact since
}

// keys bounds how many keys are remembered, because they come from outside.
const keys = 10_000

func newRefusals() refusals {
	return refusals{known: map[string]refused{}, draft: map[string]refused{}}
}

func (r *refusals) fact(now time.Time, in bus.Input, c command, err error) *weftv1.Fact {
	was, ok := r.draft[c.key]
	if !ok {
		was, ok = r.known[c.key]
	}
	if ok && now.Sub(was.at) < time.Second {
		was.hidden++
		r.draft[c.key] = was
		return nil
	}
	r.draft[c.key] = refused{at: now}
	reason := err.Error()
	b := weftv1.InputRejected_builder{Stream: &in.Stream, Seq: &in.Seq, Reason: &reason}
	if was.hidden > 0 {
		b.Suppressed = &was.hidden
	}
	if c.job != "" && jobspec.IsID(c.job) {
		b.Job = &c.job
	}
	return weftv1.Fact_builder{InputRejected: b.Build()}.Build()
}

// settle says whether what was noted since the last call came true.
func (r *refusals) settle(now time.Time, committed bool) {
	if committed {
		maps.Copy(r.known, r.draft)
	}
	clear(r.draft)
	if len(r.known) > keys {
		maps.DeleteFunc(r.known, func(_ string, x refused) bool { return now.Sub(x.at) >= time.Second })
	}
	if len(r.known) > keys {
		clear(r.known)
	}
}

package api

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// factOf reads the fact back out of an event: data is the fact's JSON, type its name. It is nil for kinds that this
// version does not know.
func factOf(ev *cloudEvent) *weftv1.Fact {
	f := &weftv1.Fact{}
	name, ok := strings.CutPrefix(ev.Type, "weft.")
	field := f.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(strings.ReplaceAll(name, "-", "_")))
	if !ok || field == nil {
		return nil
	}
	m := f.ProtoReflect().NewField(field)
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(ev.Data, m.Message().Interface()) != nil {
		return nil
	}
	f.ProtoReflect().Set(field, m)
	return f
}

// line says what an event says, for a person.
func line(ev *cloudEvent) string {
	who := ev.Subject
	if ev.Name != "" {
		who = ev.Queue + "/" + ev.Name
	}
	what := ""
	if f := factOf(ev); f != nil {
		what = sentence(f)
	}
	if what == "" {
		what = strings.ReplaceAll(strings.TrimPrefix(ev.Type, "weft."), "-", " ")
	}
	return oneLine(strings.TrimSpace(who + " " + what))
}

// sentence goes on from the name of the job, node or queue; empty = nothing better than the event's type.
func sentence(f *weftv1.Fact) string {
	switch f.WhichKind() {
	case weftv1.Fact_JobSubmitted_case:
		return "submitted by " + f.GetJobSubmitted().GetBy()
	case weftv1.Fact_JobPlaced_case:
		return placed(f.GetJobPlaced())
	case weftv1.Fact_NodeStarted_case:
		e := f.GetNodeStarted()
		return fmt.Sprintf("attempt %d started on %s", e.GetAttempt(), e.GetNode())
	case weftv1.Fact_AttemptRunning_case:
		return fmt.Sprintf("attempt %d runs: every rank has started", f.GetAttemptRunning().GetAttempt())
	case weftv1.Fact_RanksFailed_case:
		e := f.GetRanksFailed()
		text := fmt.Sprintf("attempt %d failed: %s", e.GetAttempt(), causeText(e.GetCause()))
		if len(e.GetRanks()) > 1 {
			text += ", first ranks " + ranks(e.GetRanks())
		}
		return text
	case weftv1.Fact_AttemptStopping_case:
		e := f.GetAttemptStopping()
		return fmt.Sprintf("attempt %d is being ended: %s", e.GetAttempt(), causeText(e.GetCause()))
	case weftv1.Fact_AttemptEnded_case:
		e := f.GetAttemptEnded()
		if !e.HasCause() {
			return fmt.Sprintf("attempt %d ended: every rank exited 0", e.GetAttempt())
		}
		return fmt.Sprintf("attempt %d ended: %s", e.GetAttempt(), causeText(e.GetCause()))
	case weftv1.Fact_JobCheckpointed_case:
		e := f.GetJobCheckpointed()
		if e.GetVoided() {
			return "save " + e.GetSave().GetSave() + " cannot be read and is not used again"
		}
		return fmt.Sprintf("save %s is complete and verified (step %d)", e.GetSave().GetSave(), e.GetSave().GetStep())
	case weftv1.Fact_JobRequeued_case:
		return requeued(f.GetJobRequeued())
	case weftv1.Fact_JobSucceeded_case:
		return "succeeded"
	case weftv1.Fact_JobFailed_case:
		e := f.GetJobFailed()
		if e.GetReason() != "" {
			return "failed: " + e.GetReason()
		}
		return "failed: " + causeText(e.GetCause())
	case weftv1.Fact_JobCancelled_case:
		return "cancelled by " + f.GetJobCancelled().GetBy()
	case weftv1.Fact_JobEvicted_case:
		e := f.GetJobEvicted()
		return fmt.Sprintf("attempt %d evicted: %s", e.GetAttempt(), e.GetReason())
	case weftv1.Fact_Released_case:
		e := f.GetReleased()
		return fmt.Sprintf("attempt %d released %s", e.GetAttempt(), e.GetNode())
	}
	return cellSentence(f)
}

// cellSentence is for facts that are about no job.
func cellSentence(f *weftv1.Fact) string {
	switch f.WhichKind() {
	case weftv1.Fact_QueueSet_case:
		if f.GetQueueSet().GetRemoved() {
			return "queue removed"
		}
		return fmt.Sprintf("queue set, weight %d", f.GetQueueSet().GetWeight())
	case weftv1.Fact_NodeInventory_case:
		inv := f.GetNodeInventory().GetInventory()
		text := fmt.Sprintf("has %d devices, %d cores", len(inv.GetDevices()), inv.GetCpuMilli()/1000)
		if inv.GetSimulated() {
			text += " (simulated)"
		}
		return text
	case weftv1.Fact_NodeCordoned_case:
		return "cordoned by " + f.GetNodeCordoned().GetBy() + ": " + f.GetNodeCordoned().GetReason()
	case weftv1.Fact_DeviceFailed_case:
		return fmt.Sprintf("device %d failed: %s", f.GetDeviceFailed().GetDevice(), f.GetDeviceFailed().GetReason())
	case weftv1.Fact_DeviceRecovered_case:
		return fmt.Sprintf("device %d recovered", f.GetDeviceRecovered().GetDevice())
	case weftv1.Fact_InputRejected_case:
		return "an input was refused: " + f.GetInputRejected().GetReason()
	}
	return ""
}

func placed(e *weftv1.JobPlaced) string {
	where := make([]string, 0, len(e.GetPlacements()))
	for _, p := range e.GetPlacements() {
		where = append(where, fmt.Sprintf("%s×%d", p.GetNode(), p.GetCount()))
	}
	text := fmt.Sprintf("attempt %d placed on %s", e.GetAttempt(), strings.Join(where, " "))
	if s := e.GetResumeFrom(); s.GetSave() != "" {
		text += fmt.Sprintf(", to resume from %s (step %d)", s.GetSave(), s.GetStep())
	}
	return text
}

func requeued(e *weftv1.JobRequeued) string {
	if !e.HasCause() {
		return "has waited long enough and is back in its queue"
	}
	text := "is back in its queue"
	if e.GetNotBeforeNs() != 0 {
		text = "starts again after " + time.Unix(0, e.GetNotBeforeNs()).UTC().Format("15:04:05")
	}
	if e.GetCharged() {
		return text + ", one restart charged"
	}
	return text + ", no restart charged"
}

func causeText(c *weftv1.Cause) string {
	if text := cell.Describe(c); text != "" {
		return text
	}
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(c.GetKind().String(), "CAUSE_KIND_"), "_", " "))
}

func ranks(rs []uint32) string {
	var out []string
	for i, r := range rs {
		if i == 8 {
			out = append(out, "…")
			break
		}
		out = append(out, fmt.Sprint(r))
	}
	return strings.Join(out, ", ")
}

package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Token says in one word why a job is where it is.
type Token string

// Known is one token with its meaning for people.
type Known struct {
	Token   Token
	Meaning string
}

// Tokens is the closed list; docs/glossary.md carries it.
var Tokens = []Known{
	{Running, "its ranks run"},
	{Starting, "it has its place; not every rank runs yet"},
	{Stopping, "its attempt is being ended"},
	{Ended, "it has succeeded, failed or was cancelled"},
	{Backoff, "it waits out the delay after a failure"},
	{WaitingForPlan, "there is a place for it now, or its turn has not come; the next plan tells"},
	{WaitingForQuota, "its queue, or one above, is at its limit"},
	{WaitingForGang, "some of its workers would fit now, but not the whole gang"},
	{WaitingForCapacity, "not one of its workers fits now"},
	{TopologyUnsatisfiable, "the gang would fit, but not within the topology level that it requires"},
	{NoSuchModel, "no node has an accelerator of a model that it accepts"},
	{NodesUnavailable, "the nodes that could take it are silent, lost, cordoned, spot, without working devices, or held for another job"},
	{NeverFits, "it would not fit even into the empty cell"},
}

// The tokens.
const (
	Running               Token = "Running"
	Starting              Token = "Starting"
	Stopping              Token = "Stopping"
	Ended                 Token = "Ended"
	Backoff               Token = "Backoff"
	WaitingForPlan        Token = "WaitingForPlan"
	WaitingForQuota       Token = "WaitingForQuota"
	WaitingForGang        Token = "WaitingForGang"
	WaitingForCapacity    Token = "WaitingForCapacity"
	TopologyUnsatisfiable Token = "TopologyUnsatisfiable"
	NoSuchModel           Token = "NoSuchModel"
	NodesUnavailable      Token = "NodesUnavailable"
	NeverFits             Token = "NeverFits"
)

// Explain says why a job is not running, by the planner's own code on the same state. It is nil for a job that the state
// does not hold.
func (c *Cycle) Explain(id string) *weftv1.Explanation {
	j := c.s.Job(id)
	if j == nil {
		return nil
	}
	b := weftv1.Explanation_builder{Job: &j.ID, Phase: new(string(j.Phase)), BasedOn: &c.seq}
	var r reason
	switch {
	case j.Phase == cell.Failed:
		r = reason{token: Ended, message: "The job failed."}
		if why := cmp.Or(j.Reason, cell.Describe(j.Cause)); why != "" {
			r.message = fmt.Sprintf("The job failed: %s.", why)
		}
	case j.Phase == cell.Cancelled:
		r = reason{token: Ended, message: "The job was cancelled."}
	case j.Phase.Ended():
		r = reason{token: Ended, message: "The job succeeded."}
	case j.Phase == cell.Running:
		r = reason{token: Running, message: fmt.Sprintf("All %d ranks run.", j.Attempt.Size)}
	case j.Phase == cell.Starting:
		r = reason{token: Starting, message: fmt.Sprintf("Attempt %d is placed; its ranks are being started.", j.Attempt.Number)}
	case j.Phase == cell.Stopping:
		r = reason{token: Stopping, message: fmt.Sprintf("Attempt %d is being ended: %s.", j.Attempt.Number, cell.Describe(j.Attempt.Cause))}
		b.EtaNs = &j.Attempt.KillAt
	case j.Phase == cell.Backoff:
		r = reason{token: Backoff, message: fmt.Sprintf("It failed (%s) and waits before its next attempt.", cell.Describe(j.Cause))}
		b.EtaNs = &j.NotBefore
	default:
		b.Position = new(position(c.s, j))
		e := explanation{planner: c.planned(), j: j}
		r = e.waiting()
		b.Filters, b.Deficits, b.Holders = e.filters, e.deficits, e.holders
	}
	b.Token, b.Message = new(string(r.token)), &r.message
	if r.cure != "" {
		b.Cure = &r.cure
	}
	return b.Build()
}

// reason is a token with a sentence for a person and, where there is one, what would help.
type reason struct {
	token         Token
	message, cure string
}

// position counts from 1 within the job's own queue.
func position(s *cell.State, j *cell.Job) uint32 {
	n := uint32(1)
	for o := range s.WaitingIn(j.Queue()) {
		if o.Phase == cell.Queued && before(o, j) < 0 {
			n++
		}
	}
	return n
}

// explanation looks at the state as the next plan leaves it: what others get before this job is not there for it.
type explanation struct {
	*planner
	j        *cell.Job
	filters  []*weftv1.FilterCount
	deficits []*weftv1.Deficit
	holders  []*weftv1.Holder
}

// waiting explains a queued job: from what can never change by itself to what the next release may change.
func (e *explanation) waiting() reason {
	spec := e.j.Spec
	if slices.ContainsFunc(e.steps, func(st *weftv1.PlanStep) bool { return st.GetStart().GetJob() == e.j.ID }) {
		return reason{WaitingForPlan, "There is a place for it now; it starts with the next plan.", ""}
	}
	e.count()
	if e.models() == 0 {
		return reason{NoSuchModel, fmt.Sprintf("No node has an accelerator of %s.", strings.Join(spec.GetModels(), " or ")),
			"accept another model (spec.models; see `weft nodes`), or add such a node"}
	}
	if never, largest := cell.NeverFits(e.s, spec); never {
		return reason{NeverFits, "It would not fit even into the empty cell: " + largest + ".", "ask for fewer or smaller workers, relax spec.topology.required, or add nodes"}
	}
	if path, what, limit := cell.OverLimit(e.s, e.j.Queue(), cell.MinGang(spec)); path != "" {
		e.hold(path)
		return reason{WaitingForQuota, fmt.Sprintf("Queue %s is limited to %s %s, and the jobs of it hold too much of that.", path, cell.Format(what, limit), what),
			"wait for a job of that queue to end, submit to another queue, or raise the limit (`weft queues apply`)"}
	}
	able := e.able()
	usable := slices.DeleteFunc(slices.Clone(able), func(v *nodeView) bool { return e.filter(e.j, v.node) != "" })
	least := leastSizes(spec)
	if len(usable) == 0 || fit(spec, least, split(spec, usable)) == nil && fit(spec, least, split(spec, able)) != nil {
		return reason{NodesUnavailable, "The nodes that could take it cannot be used now: they are silent, lost, cordoned, spot, without working devices, or held for another job.",
			"see `weft nodes`"}
	}
	e.lack(usable)
	e.hold("")
	parts := split(spec, usable)
	switch {
	case fit(spec, least, parts) != nil: // the tries ran out before its turn
		return reason{WaitingForPlan, "So many jobs wait that its turn has not come yet.", ""}
	case fit(withoutTopology(spec), least, parts) != nil:
		return reason{TopologyUnsatisfiable, fmt.Sprintf("The gang would fit now, but not within one %s.", cell.LevelName(spec.GetTopology().GetRequired())),
			"wait, or make the level spec.topology.preferred"}
	case len(parts) > 0 && total(least) > 1:
		return reason{WaitingForGang, fmt.Sprintf("Some of its %d workers would fit now, but a gang starts whole.", total(least)),
			"wait, or allow a smaller gang (spec.workers.min)"}
	}
	return reason{WaitingForCapacity, "Not one of its workers fits now.", "wait for a job to end, or add nodes"}
}

// able are the nodes that could take a worker of the job if nothing else were there.
func (e *explanation) able() (out []*nodeView) {
	for _, v := range e.nodes {
		empty := &nodeView{node: v.node, free: cell.Free(cell.NewState(), v.node)}
		if len(split(e.j.Spec, []*nodeView{empty})) > 0 {
			out = append(out, v)
		}
	}
	return out
}

func total(v []uint32) (n uint32) {
	for _, x := range v {
		n += x
	}
	return n
}

func leastSizes(spec *weftv1.JobSpec) []uint32 {
	all := sizes(spec)
	return all[len(all)-1]
}

func withoutTopology(spec *weftv1.JobSpec) *weftv1.JobSpec {
	return weftv1.JobSpec_builder{Groups: spec.GetGroups(), Models: spec.GetModels(), Mixed: new(spec.GetMixed())}.Build()
}

// count says how many nodes each filter rules out for one worker of the job.
func (e *explanation) count() {
	counts := map[string]uint32{}
	for _, v := range e.nodes {
		if f := cmp.Or(e.filter(e.j, v.node), whyNot(e.j.Spec, v)); f != "" {
			counts[f]++
		}
	}
	for _, f := range slices.Sorted(maps.Keys(counts)) {
		e.filters = append(e.filters, weftv1.FilterCount_builder{Filter: &f, Nodes: new(counts[f])}.Build())
	}
}

// whyNot is the first filter that keeps every worker of the job off a node, or empty if one fits.
func whyNot(spec *weftv1.JobSpec, v *nodeView) (why string) {
	for _, g := range spec.GetGroups() {
		if why = whyNotGroup(spec, g, v); why == "" {
			return ""
		}
	}
	return why
}

func whyNotGroup(spec *weftv1.JobSpec, g *weftv1.Group, v *nodeView) string {
	if each, milli := cell.DevicesPerWorker(g); each > 0 {
		right, free := 0, 0
		for i, d := range v.devices() {
			if accepts(spec, d) {
				right++
				if v.free.DeviceMilli[i] >= milli {
					free++
				}
			}
		}
		switch {
		case right < each:
			return cell.FilterModel
		case free < each:
			return cell.FilterDevices
		}
	}
	switch {
	case g.GetCpuMilli() > v.free.CPUMilli:
		return cell.FilterCPU
	case g.GetMemoryBytes() > v.free.MemoryBytes:
		return cell.FilterMemory
	case len(v.free.Ports) == 0:
		return cell.FilterPorts
	}
	return ""
}

// models counts the devices of acceptable models in the whole cell; a job without devices accepts anything.
func (e *explanation) models() int {
	if !needsDevices(e.j.Spec) {
		return 1
	}
	n := 0
	for _, v := range e.nodes {
		for _, d := range v.devices() {
			if accepts(e.j.Spec, d) {
				n++
			}
		}
	}
	return n
}

// lack compares what the smallest gang needs with what is free over all usable nodes.
func (e *explanation) lack(usable []*nodeView) {
	need := cell.MinGang(e.j.Spec)
	var free cell.Amounts
	for _, v := range usable {
		for i, d := range v.devices() {
			if accepts(e.j.Spec, d) {
				free.GPUMilli += v.free.DeviceMilli[i]
			}
		}
		free.CPUMilli += v.free.CPUMilli
		free.MemoryBytes += v.free.MemoryBytes
	}
	for _, d := range []struct {
		name       string
		need, free int64
	}{{"gpu-milli", need.GPUMilli, free.GPUMilli}, {"cpu-milli", need.CPUMilli, free.CPUMilli}, {"memory-bytes", need.MemoryBytes, free.MemoryBytes}} {
		if d.need > d.free {
			e.deficits = append(e.deficits, weftv1.Deficit_builder{Resource: &d.name, Needed: &d.need, Available: &d.free}.Build())
		}
	}
}

// hold lists the five jobs that hold most accelerators in a queue and below it, or in the whole cell.
func (e *explanation) hold(queue string) {
	type held struct {
		j *cell.Job
		n int64
	}
	var all []held
	for o := range e.s.ActiveJobs() {
		if queue != "" && o.Queue() != queue && !strings.HasPrefix(o.Queue(), queue+"/") {
			continue
		}
		var sum int64
		for _, p := range o.Attempt.Placements {
			if o.Attempt.Holds(p.GetNode()) {
				sum += cell.PlacementAmounts(o.Spec, p).GPUMilli
			}
		}
		if sum > 0 {
			all = append(all, held{o, sum})
		}
	}
	slices.SortFunc(all, func(a, b held) int { return cmp.Or(-cmp.Compare(a.n, b.n), cmp.Compare(a.j.ID, b.j.ID)) })
	for _, h := range all[:min(5, len(all))] {
		// The gateway hides what the asker may not see.
		e.holders = append(e.holders, weftv1.Holder_builder{Job: &h.j.ID, Queue: new(h.j.Queue()), GpuMilli: &h.n}.Build())
	}
}

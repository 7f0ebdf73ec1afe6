package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Token says in one word why a job is where it is.
type Token string

// Tokens is the closed list, with its meaning for people; docs/glossary.md carries it.
var Tokens = []struct {
	Token   Token
	Meaning string
}{
	{Running, "its ranks run"},
	{Starting, "it has its place; not every rank runs yet"},
	{Stopping, "its attempt is being ended"},
	{Ended, "it has succeeded, failed or was cancelled"},
	{Backoff, "it waits out the delay after a failure"},
	{WaitingForPlan, "there is a place for it now; the next plan starts it"},
	{WaitingForQuota, "its queue, or one above, is at its limit"},
	{WaitingForGang, "some of its workers would fit now, but not the whole gang"},
	{WaitingForCapacity, "not one of its workers fits now"},
	{TopologyUnsatisfiable, "the gang would fit, but not within the topology level that it requires"},
	{NoSuchModel, "no node has an accelerator of a model that it accepts"},
	{NodesUnavailable, "the nodes that could take it are silent, lost, cordoned or held for another job"},
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
func Explain(s *cell.State, seq uint64, now int64, pol Policy, id string) *weftv1.Explanation {
	j := s.Job(id)
	if j == nil {
		return nil
	}
	e := &explanation{s: s, j: j, now: now}
	b := weftv1.Explanation_builder{Job: &j.ID, Phase: new(string(j.Phase)), BasedOn: &seq}
	var token Token
	var message, cure string
	switch {
	case j.Phase.Ended():
		token, message = Ended, fmt.Sprintf("The job %s.", j.Phase)
		if why := cmp.Or(j.Reason, cell.Describe(j.Cause)); why != "" && j.Phase == cell.Failed {
			message = fmt.Sprintf("The job failed: %s.", why)
		}
	case j.Phase == cell.Running:
		token, message = Running, fmt.Sprintf("All %d ranks run.", j.Attempt.Size)
	case j.Phase == cell.Starting:
		token, message = Starting, fmt.Sprintf("Attempt %d is placed; its ranks are being started.", j.Attempt.Number)
	case j.Phase == cell.Stopping:
		token, message = Stopping, fmt.Sprintf("Attempt %d is being ended: %s.", j.Attempt.Number, cell.Describe(j.Attempt.Cause))
		b.EtaNs = &j.Attempt.KillAt
	case j.Phase == cell.Backoff:
		token, message = Backoff, fmt.Sprintf("It failed (%s) and waits before its next attempt.", cell.Describe(j.Cause))
		b.EtaNs = &j.NotBefore
	default:
		b.Position = new(position(s, j))
		token, message, cure = e.waiting(seq, pol)
		b.Filters, b.Deficits = e.filters, e.deficits
		if token == WaitingForCapacity || token == WaitingForGang || token == WaitingForQuota || token == TopologyUnsatisfiable {
			b.Holders = e.holders(token == WaitingForQuota)
		}
	}
	b.Token, b.Message = new(string(token)), &message
	if cure != "" {
		b.Cure = &cure
	}
	return b.Build()
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

type explanation struct {
	s        *cell.State
	j        *cell.Job
	now      int64
	filters  []*weftv1.FilterCount
	deficits []*weftv1.Deficit
}

// waiting explains a queued job: from what can never change by itself to what the next release may change.
func (e *explanation) waiting(seq uint64, pol Policy) (Token, string, string) {
	spec := e.j.Spec
	for _, st := range Plan(e.s, seq, e.now, pol).GetSteps() {
		if st.GetStart().GetJob() == e.j.ID {
			return WaitingForPlan, "There is a place for it now; it starts with the next plan.", ""
		}
	}
	p := newPlanner(e.s, e.now)
	e.count(p)
	if e.models(p) == 0 {
		return NoSuchModel, fmt.Sprintf("No node has an accelerator of %v.", spec.GetModels()), "accept another model (spec.models; see `weft nodes`), or add such a node"
	}
	if never, largest := cell.NeverFits(e.s, spec); never {
		return NeverFits, "It would not fit even into the empty cell: " + largest + ".", "ask for fewer or smaller workers, relax spec.topology.required, or add nodes"
	}
	if path, what, limit := cell.OverLimit(e.s, e.j.Queue(), cell.MinGang(spec)); path != "" {
		return WaitingForQuota, fmt.Sprintf("Queue %s is limited to %s %s, and the jobs of it hold too much of that.", path, cell.Format(what, limit), what),
			"wait for a job of that queue to end, submit to another queue, or raise the limit (`weft queues apply`)"
	}
	var usable []*nodeView
	for _, v := range p.nodes {
		if cell.Usable(e.s, v.node, e.j.ID) == nil {
			usable = append(usable, v)
		}
	}
	if len(usable) == 0 {
		return NodesUnavailable, "No node can be used now: all are silent, lost, cordoned or held for another job.", "see `weft nodes`"
	}
	e.lack(usable)
	least := leastSizes(spec)
	loose := fit(withoutTopology(spec), least, usable)
	switch {
	case loose != nil && spec.GetTopology().GetRequired() != weftv1.TopologyLevel_TOPOLOGY_LEVEL_UNSPECIFIED:
		return TopologyUnsatisfiable, fmt.Sprintf("The gang would fit now, but not within one %s.", cell.LevelName(spec.GetTopology().GetRequired())),
			"wait, or make the level spec.topology.preferred"
	case loose != nil:
		return WaitingForPlan, "There is a place for it, after the jobs before it have theirs.", ""
	case fit(withoutTopology(spec), oneWorker(spec), usable) != nil:
		return WaitingForGang, fmt.Sprintf("Some of its %d workers would fit now, but a gang starts whole.", total(least)), "wait, or allow a smaller gang (spec.workers.min)"
	}
	return WaitingForCapacity, "Not one of its workers fits now.", "wait for a job to end, or add nodes"
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

// oneWorker is a single worker of the first group.
func oneWorker(spec *weftv1.JobSpec) []uint32 {
	v := make([]uint32, len(spec.GetGroups()))
	v[0] = 1
	return v
}

func withoutTopology(spec *weftv1.JobSpec) *weftv1.JobSpec {
	return weftv1.JobSpec_builder{Groups: spec.GetGroups(), Models: spec.GetModels(), Mixed: new(spec.GetMixed())}.Build()
}

// count says how many nodes each filter rules out for one worker of the first group.
func (e *explanation) count(p *planner) {
	spec := e.j.Spec
	counts := map[string]uint32{}
	for _, v := range p.nodes {
		if err := cell.Usable(e.s, v.node, e.j.ID); err != nil {
			var inf *cell.Infeasible
			if errors.As(err, &inf) {
				counts[inf.Filter]++
			}
			continue
		}
		if why := whyNot(spec, v); why != "" {
			counts[why]++
		}
	}
	for _, f := range slices.Sorted(maps.Keys(counts)) {
		e.filters = append(e.filters, weftv1.FilterCount_builder{Filter: &f, Nodes: new(counts[f])}.Build())
	}
}

// whyNot is the first filter that keeps one worker of the first group off a node, or empty.
func whyNot(spec *weftv1.JobSpec, v *nodeView) string {
	g := spec.GetGroups()[0]
	w := cell.PerWorker(g)
	if each, milli := cell.DevicesPerWorker(g); each > 0 {
		right, free := 0, 0
		for i, d := range v.node.Inventory.GetDevices() {
			if len(spec.GetModels()) == 0 || slices.Contains(spec.GetModels(), d.GetModel()) {
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
	case w.CPUMilli > v.free.CPUMilli:
		return cell.FilterCPU
	case w.MemoryBytes > v.free.MemoryBytes:
		return cell.FilterMemory
	case len(v.free.Ports) == 0:
		return cell.FilterPorts
	}
	return ""
}

// models counts the devices of acceptable models in the whole cell; a job without devices accepts anything.
func (e *explanation) models(p *planner) int {
	if cell.MinGang(e.j.Spec).GPUMilli == 0 {
		return 1
	}
	n := 0
	for _, v := range p.nodes {
		for _, d := range v.node.Inventory.GetDevices() {
			if len(e.j.Spec.GetModels()) == 0 || slices.Contains(e.j.Spec.GetModels(), d.GetModel()) {
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
		for i, d := range v.node.Inventory.GetDevices() {
			if len(e.j.Spec.GetModels()) == 0 || slices.Contains(e.j.Spec.GetModels(), d.GetModel()) {
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

// holders are the five jobs that hold most accelerators, of the whole cell or of the job's tenant alone.
func (e *explanation) holders(tenantOnly bool) []*weftv1.Holder {
	type held struct {
		j *cell.Job
		n int64
	}
	var all []held
	for o := range e.s.ActiveJobs() {
		var sum int64
		for _, p := range o.Attempt.Placements {
			sum += cell.PlacementAmounts(o.Spec, p).GPUMilli
		}
		if sum > 0 && (!tenantOnly || o.Tenant == e.j.Tenant) {
			all = append(all, held{o, sum})
		}
	}
	slices.SortFunc(all, func(a, b held) int { return cmp.Or(-cmp.Compare(a.n, b.n), cmp.Compare(a.j.ID, b.j.ID)) })
	var out []*weftv1.Holder
	for _, h := range all[:min(5, len(all))] {
		b := weftv1.Holder_builder{Queue: new(h.j.Queue()), GpuMilli: &h.n}
		if h.j.Tenant == e.j.Tenant { // other tenants' jobs have no name here
			b.Job = &h.j.ID
		}
		out = append(out, b.Build())
	}
	return out
}

package cell

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Refusal says why a command was not accepted: Code for programs, Field for the word of the manifest it is about, and
// Message with the cure for people.
type Refusal struct{ Code, Field, Message string }

func (r *Refusal) Error() string { return r.Message }

// Codes of refusals.
const (
	CodeInvalid      = "invalid"       // the command makes no sense
	CodeNotFound     = "not-found"     // what it names does not exist
	CodeOtherSpec    = "other-spec"    // the id belongs to a job with another spec
	CodeUnknownQueue = "unknown-queue" // the queue was never created
	CodeNameTaken    = "name-taken"    // a live job of the queue has that name
	CodeOverLimit    = "over-limit"    // larger than its queue may ever hold
	CodeEnded        = "ended"         // the job is over
	CodeInfeasible   = "infeasible"    // the placement cannot be, or not any more
	CodeInUse        = "in-use"        // live jobs or other queues depend on it
	CodeGrace        = "grace"         // the grace is longer than the fence allows
)

// Refuse builds a refusal.
func Refuse(code, field, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// CheckSubmit says what a submit means here: a new job (nil, nil), the same job once more (existing; nil also if it was
// archived, then the refusal says so), or a refusal.
func CheckSubmit(s *State, tenant, jobID string, spec *weftv1.JobSpec, hash string) (existing *Job, refusal *Refusal) {
	if j := s.Job(jobID); j != nil {
		if j.SpecHash == hash && j.Tenant == tenant {
			return j, nil
		}
		return nil, Refuse(CodeOtherSpec, "metadata.id", "job %s exists with another spec; submit without an id to make a new job", jobID)
	}
	if a, ok := s.Archived(jobID); ok {
		if a.SpecHash == hash {
			return nil, Refuse(CodeEnded, "metadata.id", "job %s %s and is archived; submit without an id to run it again", jobID, a.Phase)
		}
		return nil, Refuse(CodeOtherSpec, "metadata.id", "job %s existed with another spec; submit without an id to make a new job", jobID)
	}
	if r := checkShapeOf(jobID, spec); r != nil {
		return nil, r
	}
	queue := spec.GetQueue()
	if Tenant(queue) != tenant {
		return nil, Refuse(CodeInvalid, "metadata.queue", "queue %s belongs to tenant %s, you are of %s", queue, Tenant(queue), tenant)
	}
	if s.Queue(queue) == nil {
		return nil, Refuse(CodeUnknownQueue, "metadata.queue", "queue %s does not exist; create it with `weft queues apply FILE`, list queues with `weft queues`", queue)
	}
	if j := s.JobByName(queue, spec.GetName()); j != nil {
		return nil, Refuse(CodeNameTaken, "metadata.name", "queue %s has a live job named %s (%s); cancel it or take another name", queue, spec.GetName(), j.ID)
	}
	if path, what, limit := overLimit(s, queue, MinGang(spec), false); path != "" {
		return nil, Refuse(CodeOverLimit, fieldOf(what), "the smallest gang needs more %s than queue %s may ever hold (limit %s); ask for less or raise the limit with `weft queues apply FILE`",
			what, path, Format(what, limit))
	}
	return nil, nil
}

func checkShapeOf(id string, spec *weftv1.JobSpec) *Refusal {
	if len(id) != 26 || strings.Trim(id, "0123456789abcdefghjkmnpqrstvwxyz") != "" {
		return Refuse(CodeInvalid, "metadata.id", "id %q is not a lower-case ULID; leave it out to get one", id)
	}
	if len(spec.GetGroups()) == 0 {
		return Refuse(CodeInvalid, "spec.workers", "the job has no workers; set workers")
	}
	for _, g := range spec.GetGroups() {
		m := g.GetGpuMilli()
		switch {
		case g.GetMin() == 0 || g.GetMax() < g.GetMin() || g.GetMax() > 1<<16:
			return Refuse(CodeInvalid, "spec.workers", "group %s wants %d to %d workers; min must be 1 or more, max not less and at most 65536", g.GetName(), g.GetMin(), g.GetMax())
		case m < 0 || (m > 1000 && m%1000 != 0) || g.GetCpuMilli() < 0 || g.GetMemoryBytes() < 0:
			return Refuse(CodeInvalid, "spec.gpus", "group %s asks for negative amounts or for parts of several cards", g.GetName())
		}
	}
	return nil
}

// overLimit finds the first queue from path to the root whose limit the amounts exceed: alone, or on top of what the
// queue holds already.
func overLimit(s *State, path string, a Amounts, onTop bool) (at, what string, limit int64) {
	for ; path != ""; path = Parent(path) {
		q := s.Queue(path)
		if q == nil || !q.Set.HasLimit() {
			continue
		}
		sum := a
		if onTop {
			sum = sum.Add(QueueUsage(s, path))
		}
		l := q.Set.GetLimit()
		switch {
		case l.HasGpuMilli() && sum.GPUMilli > l.GetGpuMilli() && a.GPUMilli > 0:
			return path, "gpus", l.GetGpuMilli()
		case l.HasCpuMilli() && sum.CPUMilli > l.GetCpuMilli() && a.CPUMilli > 0:
			return path, "cpu", l.GetCpuMilli()
		case l.HasMemoryBytes() && sum.MemoryBytes > l.GetMemoryBytes() && a.MemoryBytes > 0:
			return path, "memory", l.GetMemoryBytes()
		}
	}
	return "", "", 0
}

// OverLimit finds the first queue from path to the root that would exceed its limit if it held these amounts on top of
// what it holds; at is empty if none would. What is gpus, cpu or memory.
func OverLimit(s *State, path string, a Amounts) (at, what string, limit int64) {
	return overLimit(s, path, a, true)
}

func fieldOf(what string) string { return "spec." + what }

// Format writes an amount of gpus, cpu or memory for people: cards, cores or bytes.
func Format(what string, v int64) string {
	if what == "memory" {
		return strconv.FormatInt(v, 10) + " bytes of"
	}
	out := strconv.FormatInt(v/1000, 10)
	if v%1000 != 0 {
		out += strings.TrimRight(fmt.Sprintf(".%03d", v%1000), "0")
	}
	return out
}

// NeverFits says whether the smallest gang of a spec would not fit into the whole cell even if it were empty, cordons
// and silence apart, and how many workers of that shape would.
func NeverFits(s *State, spec *weftv1.JobSpec) (never bool, largest string) {
	want, best, bestIn := 0, 0, ""
	for _, g := range spec.GetGroups() {
		want += int(g.GetMin())
	}
	for _, domain := range emptyDomains(s, spec) {
		if n := domain.pack(spec, want); n > best {
			best, bestIn = n, domain.name
		}
	}
	switch {
	case best >= want:
		return false, ""
	case best == 0:
		return true, "not even one worker fits an empty node of this cell"
	}
	return true, fmt.Sprintf("%d of its %d workers would fit%s", best, want, bestIn)
}

// emptyDomain is one part of the empty cell that a gang might have to stay within.
type emptyDomain struct {
	name  string
	nodes []NodeFree
}

// emptyDomains splits the cell by the hard topology level and, where one model serves the gang, by model.
func emptyDomains(s *State, spec *weftv1.JobSpec) []emptyDomain {
	level := spec.GetTopology().GetRequired()
	type key struct{ domain, model string }
	var order []key
	parts := map[key]map[string]*NodeFree{}
	add := func(k key, n *Node) *NodeFree {
		if parts[k] == nil {
			parts[k] = map[string]*NodeFree{}
			order = append(order, k)
		}
		f := parts[k][n.Name]
		if f == nil {
			inv := n.Inventory
			f = &NodeFree{CPUMilli: inv.GetCpuMilli(), MemoryBytes: inv.GetMemoryBytes()}
			parts[k][n.Name] = f
		}
		return f
	}
	needsGPU := MinGang(spec).GPUMilli > 0
	for n := range s.Nodes() {
		if !needsGPU {
			if d, ok := Domain(n, -1, level); ok {
				add(key{domain: d}, n)
			}
			continue
		}
		for i, d := range n.Inventory.GetDevices() {
			if len(spec.GetModels()) > 0 && !slices.Contains(spec.GetModels(), d.GetModel()) {
				continue
			}
			k := key{model: d.GetModel()}
			if spec.GetMixed() {
				k.model = ""
			}
			domain, ok := Domain(n, i, level)
			if !ok {
				domain = fmt.Sprintf("%s?%d", n.Name, i) // a card outside any clique, a node outside any rack: alone
				if level != weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE {
					domain = n.Name + "?"
				}
			}
			k.domain = domain
			f := add(k, n)
			f.DeviceMilli = append(f.DeviceMilli, 1000)
		}
	}
	out := make([]emptyDomain, 0, len(order))
	for _, k := range order {
		d := emptyDomain{}
		if k.model != "" {
			d.name = " on " + k.model
		}
		names := make([]string, 0, len(parts[k]))
		for name := range parts[k] {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			d.nodes = append(d.nodes, *parts[k][name])
		}
		out = append(out, d)
	}
	return out
}

// pack counts how many workers of the smallest gang fit, first fit, largest need of cards first.
func (d emptyDomain) pack(spec *weftv1.JobSpec, want int) int {
	groups := slices.SortedStableFunc(slices.Values(spec.GetGroups()), func(a, b *weftv1.Group) int {
		return int(b.GetGpuMilli() - a.GetGpuMilli())
	})
	packed := 0
	for _, g := range groups {
		each, milli := DevicesPerWorker(g)
		for range g.GetMin() {
			if !slices.ContainsFunc(indices(d.nodes), func(i int) bool { return d.nodes[i].worker(g, each, milli) }) {
				break
			}
			packed++
		}
	}
	return min(packed, want)
}

func indices(nodes []NodeFree) []int {
	out := make([]int, len(nodes))
	for i := range out {
		out[i] = i
	}
	return out
}

// worker takes one worker out of what is free, if it fits.
func (f *NodeFree) worker(g *weftv1.Group, each int, milli int64) bool {
	if f.CPUMilli < g.GetCpuMilli() || f.MemoryBytes < g.GetMemoryBytes() {
		return false
	}
	var picks []int
	for i := 0; i < len(f.DeviceMilli) && len(picks) < each; i++ {
		if f.DeviceMilli[i] >= milli {
			picks = append(picks, i)
		}
	}
	if len(picks) < each {
		return false
	}
	for _, i := range picks {
		f.DeviceMilli[i] -= milli
	}
	f.CPUMilli -= g.GetCpuMilli()
	f.MemoryBytes -= g.GetMemoryBytes()
	return true
}

package plan

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// branch is one queue with what waits in it and below it.
type branch struct {
	path     string
	set      *weftv1.QueueSet
	jobs     []*cell.Job // own waiting jobs, in their order
	children []*branch   // those with waiting jobs in or below them
	below    []string    // all queues right below
}

// forest is the queue tree over the jobs that wait now.
func forest(s *cell.State) *branch {
	root := &branch{}
	at := map[string]*branch{"": root}
	var find func(path string) *branch
	find = func(path string) *branch {
		if b := at[path]; b != nil {
			return b
		}
		b := &branch{path: path}
		if q := s.Queue(path); q != nil {
			b.set = q.Set
		}
		at[path] = b
		up := find(cell.Parent(path))
		up.children = append(up.children, b)
		up.below = append(up.below, path)
		return b
	}
	for j := range s.WaitingJobs() {
		if j.Phase == cell.Queued {
			b := find(j.Queue())
			b.jobs = append(b.jobs, j)
		}
	}
	for q := range s.Queues() {
		if up := at[cell.Parent(q.Path)]; up != nil && at[q.Path] == nil {
			up.below = append(up.below, q.Path)
		}
	}
	for _, b := range at {
		slices.SortFunc(b.jobs, before)
		slices.SortFunc(b.children, func(a, c *branch) int { return strings.Compare(a.path, c.path) })
	}
	return root
}

// before orders the jobs of one queue: those that a fault threw out first, then by priority, age, and id.
func before(a, b *cell.Job) int {
	return cmp.Or(
		-compareBool(a.Degraded, b.Degraded),
		-cmp.Compare(a.Spec.GetPriority(), b.Spec.GetPriority()),
		cmp.Compare(a.Submitted, b.Submitted),
		cmp.Compare(a.ID, b.ID),
	)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// next is the job that this branch would start next: its own first one, or that of the child that is served least. Its
// own jobs count as one more child, of weight 1 and without a quota. Hopeless jobs are dropped, so that they neither hold
// up their queue nor cost another look.
func (b *branch) next(p *planner, hopeless func(*cell.Job) bool) *cell.Job {
	var best *cell.Job
	var bestKey key
	for len(b.jobs) > 0 && hopeless(b.jobs[0]) {
		b.jobs = b.jobs[1:]
	}
	if len(b.jobs) > 0 {
		best = b.jobs[0]
		bestKey = keyOf(b.ownUsage(p.s), nil, best, p.whole)
	}
	for _, c := range b.children {
		j := c.next(p, hopeless)
		if j == nil {
			continue
		}
		if k := keyOf(cell.QueueUsage(p.s, c.path), c.set, j, p.whole); best == nil || k.less(bestKey) {
			best, bestKey = j, k
		}
	}
	return best
}

// ownUsage is what the queue's own jobs hold, without those of the queues below.
func (b *branch) ownUsage(s *cell.State) cell.Amounts {
	used := cell.QueueUsage(s, b.path)
	for _, path := range b.below {
		used = used.Sub(cell.QueueUsage(s, path))
	}
	return used
}

// take removes a job from the branch, wherever it is below.
func (b *branch) take(j *cell.Job) bool {
	if len(b.jobs) > 0 && b.jobs[0].ID == j.ID {
		b.jobs = b.jobs[1:]
		return true
	}
	for _, c := range b.children {
		if c.path == j.Queue() || strings.HasPrefix(j.Queue(), c.path+"/") {
			if c.take(j) {
				return true
			}
		}
	}
	return false
}

// key orders siblings: gangs that a fault threw out, then queues within their quota, weight 0 last, then by the priority
// of the queue, then the least share for the weight. Usage counts the candidate. Ties go by the order of the names.
type key struct {
	degraded bool
	quota    bool
	weight   int64
	priority int32
	share    int64
}

func keyOf(used cell.Amounts, set *weftv1.QueueSet, j *cell.Job, whole cell.Amounts) key {
	used = used.Add(cell.MinGang(j.Spec))
	return key{
		degraded: j.Degraded,
		quota:    within(used, set.GetQuota()),
		weight:   weight(set),
		priority: set.GetPriority(),
		share:    cell.Share(used, whole),
	}
}

// weight is 1 where the queue says nothing.
func weight(set *weftv1.QueueSet) int64 {
	if !set.HasWeight() {
		return 1
	}
	return set.GetWeight()
}

// within: a resource that the quota does not name is not guaranteed, and does not count.
func within(used cell.Amounts, q *weftv1.Amounts) bool {
	named := q.HasGpuMilli() || q.HasCpuMilli() || q.HasMemoryBytes()
	return named && (!q.HasGpuMilli() || used.GPUMilli <= q.GetGpuMilli()) &&
		(!q.HasCpuMilli() || used.CPUMilli <= q.GetCpuMilli()) &&
		(!q.HasMemoryBytes() || used.MemoryBytes <= q.GetMemoryBytes())
}

func (a key) less(b key) bool {
	switch {
	case a.degraded != b.degraded:
		return a.degraded
	case a.quota != b.quota:
		return a.quota
	case (a.weight == 0) != (b.weight == 0):
		return b.weight == 0
	case a.priority != b.priority:
		return a.priority > b.priority
	}
	// share/weight by cross multiplication: no division, no NaN.
	ah, al := bits.Mul64(uint64(a.share), uint64(max(b.weight, 1)))
	bh, bl := bits.Mul64(uint64(b.share), uint64(max(a.weight, 1)))
	return cmp.Or(cmp.Compare(ah, bh), cmp.Compare(al, bl)) < 0
}

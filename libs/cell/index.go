package cell

import (
	"slices"
	"strings"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Amounts of what jobs hold or ask for.
type Amounts struct {
	GPUMilli    int64
	CPUMilli    int64
	MemoryBytes int64
}

// Add returns the sum.
func (a Amounts) Add(b Amounts) Amounts {
	return Amounts{a.GPUMilli + b.GPUMilli, a.CPUMilli + b.CPUMilli, a.MemoryBytes + b.MemoryBytes}
}

// Sub returns the difference.
func (a Amounts) Sub(b Amounts) Amounts {
	return Amounts{a.GPUMilli - b.GPUMilli, a.CPUMilli - b.CPUMilli, a.MemoryBytes - b.MemoryBytes}
}

// Times returns n of it.
func (a Amounts) Times(n int64) Amounts {
	return Amounts{a.GPUMilli * n, a.CPUMilli * n, a.MemoryBytes * n}
}

// Totals are the sums over the live jobs of a queue and of all queues below it.
type Totals struct {
	Used    Amounts // held by attempts and not yet released
	Demand  Amounts // smallest gangs of the waiting jobs
	Active  int     // jobs
	Waiting int     // jobs
}

func (t Totals) plus(o Totals, sign int) Totals {
	n := int64(sign)
	return Totals{
		Used: t.Used.Add(o.Used.Times(n)), Demand: t.Demand.Add(o.Demand.Times(n)),
		Active: t.Active + sign*o.Active, Waiting: t.Waiting + sign*o.Waiting,
	}
}

// put replaces a job (nil = none) and keeps every index in step.
func (s *State) put(old, now *Job) {
	switch {
	case now == nil:
		s.ended.del(s.edit, old.ID)
		s.live.del(s.edit, old.ID)
	case now.Phase.Ended():
		if old != nil && !old.Phase.Ended() {
			s.live.del(s.edit, now.ID)
		}
		s.ended.set(s.edit, now.ID, now)
	default:
		s.live.set(s.edit, now.ID, now)
	}
	s.reindex(old, now)
}

func (s *State) reindex(old, now *Job) {
	swap(s, &s.waiting, waitingKey(old), waitingKey(now), struct{}{})
	swap(s, &s.active, activeKey(old), activeKey(now), struct{}{})
	swap(s, &s.due, dueKey(old), dueKey(now), struct{}{})
	swap(s, &s.endings, endingKey(old), endingKey(now), struct{}{})
	swap(s, &s.names, nameKey(old), nameKey(now), struct{}{})
	if sameHold(old, now) && waits(old) == waits(now) {
		return
	}
	wasOn, isOn := heldNodes(old), heldNodes(now)
	for _, n := range wasOn {
		if !inSorted(isOn, n) {
			s.holds.del(s.edit, n+"\x00"+old.ID)
		}
	}
	for _, n := range isOn {
		if !inSorted(wasOn, n) {
			s.holds.set(s.edit, n+"\x00"+now.ID, struct{}{})
		}
	}
	s.count(old, now)
}

// count moves the totals of the job's queue and its ancestors.
func (s *State) count(old, now *Job) {
	was, is := share(old), share(now)
	diff := is.plus(was, -1)
	if diff == (Totals{}) {
		return
	}
	j := now
	if j == nil {
		j = old
	}
	for path := j.Queue(); path != ""; path = Parent(path) {
		t, _ := s.totals.get(path)
		if t = t.plus(diff, 1); t == (Totals{}) {
			s.totals.del(s.edit, path)
		} else {
			s.totals.set(s.edit, path, t)
		}
	}
}

// share is what one job adds to the totals of its queue.
func share(j *Job) Totals {
	switch {
	case j == nil || j.Phase.Ended():
		return Totals{}
	case j.Waiting():
		return Totals{Demand: MinGang(j.Spec), Waiting: 1}
	}
	t := Totals{Active: 1}
	if j.Attempt != nil {
		for _, p := range j.Attempt.Placements {
			if !inSorted(j.Attempt.Released, p.GetNode()) {
				t.Used = t.Used.Add(PlacementAmounts(j.Spec, p))
			}
		}
	}
	return t
}

// PerWorker is what one worker of a group asks for.
func PerWorker(g *weftv1.Group) Amounts {
	return Amounts{g.GetGpuMilli(), g.GetCpuMilli(), g.GetMemoryBytes()}
}

// MinGang is what the smallest gang of a job asks for.
func MinGang(spec *weftv1.JobSpec) Amounts {
	var sum Amounts
	for _, g := range spec.GetGroups() {
		sum = sum.Add(PerWorker(g).Times(int64(g.GetMin())))
	}
	return sum
}

// PlacementAmounts is what one placement of a job holds.
func PlacementAmounts(spec *weftv1.JobSpec, p *weftv1.Placement) Amounts {
	gs := spec.GetGroups()
	if int(p.GetGroup()) >= len(gs) {
		return Amounts{}
	}
	a := PerWorker(gs[p.GetGroup()]).Times(int64(p.GetCount()))
	a.GPUMilli = int64(len(p.GetDevices())) * p.GetMilli()
	return a
}

// QueueTotals are the sums over a queue and all queues below it.
func QueueTotals(s *State, path string) Totals { t, _ := s.totals.get(path); return t }

// QueueUsage is what the attempts of a queue and of those below it hold.
func QueueUsage(s *State, path string) Amounts { return QueueTotals(s, path).Used }

// QueueDemand is what the smallest gangs of the waiting jobs of a queue and of those below it ask for.
func QueueDemand(s *State, path string) Amounts { return QueueTotals(s, path).Demand }

// Parent is the path of the queue above, or empty.
func Parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return ""
	}
	return path[:i]
}

// Tenant is the root of a queue's path.
func Tenant(path string) string {
	root, _, _ := strings.Cut(path, "/")
	return root
}

func swap[V any](s *State, t *tree[V], was, is string, v V) {
	if was == is {
		return
	}
	if was != "" {
		t.del(s.edit, was)
	}
	if is != "" {
		t.set(s.edit, is, v)
	}
}

func waits(j *Job) bool { return j != nil && j.Waiting() }

func waitingKey(j *Job) string {
	if !waits(j) {
		return ""
	}
	return j.Queue() + "\x00" + j.ID
}

func activeKey(j *Job) string {
	if j == nil || j.Attempt == nil {
		return ""
	}
	return j.ID
}

func nameKey(j *Job) string {
	if j == nil || j.Phase.Ended() || j.Spec.GetName() == "" {
		return ""
	}
	return j.Queue() + "\x00" + j.Spec.GetName() + "\x00" + j.ID
}

func dueKey(j *Job) string {
	if j == nil {
		return ""
	}
	at := int64(0)
	switch j.Phase {
	case Backoff:
		at = j.NotBefore
	case Running:
		if limit := j.Spec.GetLimitNs(); limit > 0 && j.Attempt != nil {
			at = j.Attempt.RunningAt + limit
		}
	}
	if at == 0 {
		return ""
	}
	return timeKey(at, string(rune(DueJob))+j.ID)
}

func endingKey(j *Job) string {
	if j == nil || !j.Phase.Ended() {
		return ""
	}
	return timeKey(j.Ended, j.ID)
}

// sameHold says whether two versions of a job hold the same place.
func sameHold(a, b *Job) bool {
	if a == nil || b == nil || a.Attempt == nil || b.Attempt == nil {
		return (a == nil || a.Attempt == nil) && (b == nil || b.Attempt == nil) && share(a) == share(b)
	}
	return a.Attempt.Number == b.Attempt.Number && len(a.Attempt.Released) == len(b.Attempt.Released)
}

func heldNodes(j *Job) []string {
	if j == nil || j.Attempt == nil {
		return nil
	}
	if len(j.Attempt.Released) == 0 {
		return j.Attempt.nodes
	}
	return slices.DeleteFunc(slices.Clone(j.Attempt.nodes), func(n string) bool { return inSorted(j.Attempt.Released, n) })
}

func (s *State) putNode(old, now *Node) {
	swap(s, &s.due, nodeDue(old), nodeDue(now), struct{}{})
	s.nodes.set(s.edit, now.Name, now)
}

func nodeDue(n *Node) string {
	if n == nil || n.Condition != Silent || n.LostAt == 0 {
		return ""
	}
	return timeKey(n.LostAt, string(rune(DueNode))+n.Name)
}

// putClaim replaces the claim of a job (nil = none).
func (s *State) putClaim(job string, now *Claim) {
	old, had := s.claims.get(job)
	if !had && now == nil {
		return
	}
	swap(s, &s.due, claimDue(old), claimDue(now), struct{}{})
	if now == nil {
		s.claims.del(s.edit, job)
	} else {
		s.claims.set(s.edit, job, now)
	}
}

func claimDue(c *Claim) string {
	if c == nil {
		return ""
	}
	return timeKey(c.Expires, string(rune(DueClaim))+c.Job)
}

package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// fabric is a small cell: the scheduler's decisions over a ledger, simulated machines, and an oracle that keeps its own
// books of what was acknowledged, saved and run.
type fabric struct {
	t        *rapid.T
	pol      Policy
	now      int64
	up       bool // the scheduler
	s        *cell.State
	shadow   *cell.State // what another reader has, rebuilt now and then
	log      []*weftv1.Commit
	events   [][]Event // of each commit, as they went out
	agents   []*agent
	heard    map[string]int64
	assigned map[string]*weftv1.Assignment
	stream   []*weftv1.Report

	acked map[string]*books
	order []string
	lost  int // nodes, for the record
}

// books are what the oracle knows of one job.
type books struct {
	hash      string
	attempts  uint32
	saves     map[string]*weftv1.SaveRef
	successes int
	completed map[cell.Stray]map[string]bool // by attempt: nodes whose ranks all exited 0, as the machines know it
	nodes     map[cell.Stray][]string
}

func newFabric(t *rapid.T, nodes int) *fabric {
	p := DefaultPolicy()
	p.Fence, p.ArchiveAfter, p.MaxBackoff = 2*time.Minute, 3*time.Minute, time.Minute
	f := &fabric{
		t: t, pol: p, now: t0, up: true, s: cell.NewState(), shadow: cell.NewState(), heard: map[string]int64{},
		assigned: map[string]*weftv1.Assignment{}, acked: map[string]*books{},
	}
	f.must(ApplyQueues{Queues: []*weftv1.QueueSet{
		weftv1.QueueSet_builder{Queue: new("demo"), Weight: new(int64(1)), Limit: weftv1.Limits_builder{GpuMilli: new(int64(11_000))}.Build()}.Build(),
		weftv1.QueueSet_builder{Queue: new("demo/vision"), Weight: new(int64(1))}.Build(),
	}})
	for i := range nodes {
		a := &agent{f: f, name: fmt.Sprintf("n%d", i), up: true, linked: true, contact: f.now, runs: map[cell.Stray]*runOf{}, failed: map[uint32]bool{}}
		f.agents = append(f.agents, a)
		a.hello()
	}
	f.flow()
	return f
}

func (f *fabric) must(c Command) {
	if err := f.decide(c); err != nil {
		f.t.Fatalf("%T: %v", c, err)
	}
}

// decide decides on two readers' states, which must agree, and commits.
func (f *fabric) decide(c Command) error {
	facts, err := Decide(f.s, c, f.now, f.pol)
	again, err2 := Decide(f.shadow, c, f.now, f.pol)
	if fmt.Sprint(err) != fmt.Sprint(err2) || !slices.EqualFunc(facts, again, func(a, b *weftv1.Fact) bool { return proto.Equal(a, b) }) {
		f.t.Fatalf("%T: two readers of one ledger decide differently:\n%v %v\n%v %v", c, facts, err, again, err2)
	}
	if len(facts) == 0 {
		return err
	}
	f.now = max(f.now, f.s.TimeNS()+1)
	b := weftv1.Commit_builder{TimeNs: new(f.now)}
	step := f.s.Overlay()
	for _, fact := range facts {
		f.judge(step, fact, facts)
		b.Entries = append(b.Entries, entry(f.t, fact))
	}
	commit := b.Build()
	f.log = append(f.log, commit)
	for _, s := range []*cell.State{f.s, f.shadow} {
		if err := cell.Apply(s, commit, uint64(len(f.log))); err != nil {
			f.t.Fatal(err)
		}
	}
	f.events = append(f.events, CloudEvents(uint64(len(f.log)), commit, f.s))
	f.check()
	return nil
}

// judge holds one fact against the oracle, then folds it.
func (f *fabric) judge(step *cell.State, fact *weftv1.Fact, commit []*weftv1.Fact) {
	f.now = max(f.now, step.TimeNS())
	was, before := phasesOf(step), cell.Hash(step)
	f.judgeJob(step, fact, commit)
	f.judgeNode(fact)
	cell.Evolve(step, fact, f.now)
	for id, to := range phasesOf(step) {
		if from := was[id]; from != to && !cell.Allowed(from, to) {
			f.t.Fatalf("%s moved from %q to %q by %v", id, from, to, fact)
		}
	}
	if !fact.HasJobEvicted() && cell.Hash(step) == before {
		f.t.Fatalf("a fact without effect was emitted: %v", fact)
	}
}

func (f *fabric) judgeJob(step *cell.State, fact *weftv1.Fact, commit []*weftv1.Fact) {
	switch fact.WhichKind() {
	case weftv1.Fact_JobPlaced_case:
		e := fact.GetJobPlaced()
		j, b := step.Job(e.GetJob()), f.acked[e.GetJob()]
		b.attempts++
		n := uint32(0)
		for _, p := range e.GetPlacements() {
			n += p.GetCount()
		}
		g := j.Spec.GetGroups()[0]
		if e.GetAttempt() != b.attempts || n != e.GetSize() || n < g.GetMin() || n > g.GetMax() {
			f.t.Fatalf("I2: attempt %d (want %d) of %d ranks, %d placed, allowed %d to %d", e.GetAttempt(), b.attempts, e.GetSize(), n, g.GetMin(), g.GetMax())
		}
		for _, other := range commit {
			if other != fact && other.GetJobPlaced().GetJob() == e.GetJob() {
				f.t.Fatalf("I2: two placements of %s in one commit", e.GetJob())
			}
		}
		if want := b.newestFull(); !proto.Equal(e.GetResumeFrom(), want) && (want != nil || e.HasResumeFrom()) {
			f.t.Fatalf("I4: resumes from %v, the newest full save is %v", e.GetResumeFrom(), want)
		}
		for _, p := range e.GetPlacements() {
			key := cell.Stray{Job: e.GetJob(), Attempt: e.GetAttempt()}
			b.nodes[key] = append(b.nodes[key], p.GetNode())
		}
	case weftv1.Fact_JobSucceeded_case:
		id := fact.GetJobSucceeded().GetJob()
		b := f.acked[id]
		b.successes++
		key := cell.Stray{Job: id, Attempt: b.attempts}
		for _, n := range b.nodes[key] {
			if !b.completed[key][n] {
				f.t.Fatalf("I3: %s succeeded, but its ranks on %s did not all exit 0 in attempt %d", id, n, b.attempts)
			}
		}
		if b.successes != 1 {
			f.t.Fatalf("I3: %s succeeded %d times", id, b.successes)
		}
	case weftv1.Fact_AttemptEnded_case:
		e := fact.GetAttemptEnded()
		for _, a := range f.agents {
			if a.alive(e.GetJob(), e.GetAttempt()) {
				f.t.Fatalf("attempt %d of %s ended, and runs on %s", e.GetAttempt(), e.GetJob(), a.name)
			}
		}
	case weftv1.Fact_JobCheckpointed_case:
		e := fact.GetJobCheckpointed()
		if b := f.acked[e.GetJob()]; e.GetVoided() {
			delete(b.saves, e.GetSave().GetSave())
		} else {
			b.saves[e.GetSave().GetSave()] = e.GetSave()
		}
	}
}

func (f *fabric) judgeNode(fact *weftv1.Fact) {
	switch fact.WhichKind() {
	case weftv1.Fact_Released_case:
		e := fact.GetReleased()
		if f.agent(e.GetNode()).alive(e.GetJob(), e.GetAttempt()) {
			f.t.Fatalf("I1: attempt %d of %s counts as released on %s, and runs there", e.GetAttempt(), e.GetJob(), e.GetNode())
		}
	case weftv1.Fact_NodeLost_case:
		n := fact.GetNodeLost().GetNode()
		f.lost++
		if f.now-f.heard[n] < int64(f.pol.Silent) {
			f.t.Fatalf("I7: %s is lost and was heard %s ago", n, time.Duration(f.now-f.heard[n]))
		}
		for _, r := range f.agent(n).runs {
			if r.alive {
				f.t.Fatalf("I7: %s is lost, and %v still runs there", n, r.key)
			}
		}
	case weftv1.Fact_RanksFailed_case:
		e := fact.GetRanksFailed()
		if k := e.GetCause().GetKind(); k == weftv1.CauseKind_CAUSE_KIND_NODE_LOST {
			if f.agent(e.GetCause().GetNode()).alive(e.GetJob(), e.GetAttempt()) {
				f.t.Fatalf("I7: silence was taken for death: %v", fact)
			}
		}
	}
}

func (b *books) newestFull() (best *weftv1.SaveRef) {
	for _, r := range b.saves {
		full := r.GetClass() == weftv1.SaveClass_SAVE_CLASS_FULL
		if full && (best == nil || r.GetAttempt() > best.GetAttempt() || (r.GetAttempt() == best.GetAttempt() && r.GetStep() > best.GetStep())) {
			best = r
		}
	}
	return best
}

func (f *fabric) agent(name string) *agent {
	return f.agents[slices.IndexFunc(f.agents, func(a *agent) bool { return a.name == name })]
}

// check holds the whole state against capacities, counted afresh from the jobs, and against what was acknowledged.
func (f *fabric) check() {
	type use struct {
		milli map[uint32]int64
		cpu   int64
		mem   int64
		ports map[uint32]string
	}
	used := map[string]*use{}
	for j := range f.s.Jobs() {
		if j.Attempt == nil {
			continue
		}
		for _, p := range j.Attempt.Placements {
			if slices.Contains(j.Attempt.Released, p.GetNode()) {
				continue
			}
			u := used[p.GetNode()]
			if u == nil {
				u = &use{milli: map[uint32]int64{}, ports: map[uint32]string{}}
				used[p.GetNode()] = u
			}
			g := j.Spec.GetGroups()[p.GetGroup()]
			u.cpu += int64(p.GetCount()) * g.GetCpuMilli()
			u.mem += int64(p.GetCount()) * g.GetMemoryBytes()
			for _, d := range p.GetDevices() {
				if u.milli[d] += p.GetMilli(); u.milli[d] > 1000 {
					f.t.Fatalf("I1: device %d of %s is granted %d thousandths", d, p.GetNode(), u.milli[d])
				}
			}
			for i := range p.GetPortCount() {
				if other := u.ports[p.GetPortBase()+i]; other != "" {
					f.t.Fatalf("I1: port %d of %s is given to %s and %s", p.GetPortBase()+i, p.GetNode(), other, j.ID)
				}
				u.ports[p.GetPortBase()+i] = j.ID
			}
		}
	}
	for name, u := range used {
		inv := f.s.Node(name).Inventory
		if u.cpu > inv.GetCpuMilli() || u.mem > inv.GetMemoryBytes() {
			f.t.Fatalf("I1: %s has %d cpu and %d memory in use", name, u.cpu, u.mem)
		}
	}
	if limit := cell.QueueUsage(f.s, "demo").GPUMilli; limit > 11_000 {
		f.t.Fatalf("queue demo holds %d above its limit", limit)
	}
	for id, b := range f.acked {
		j := f.s.Job(id)
		a, archived := f.s.Archived(id)
		if (j == nil || j.SpecHash != b.hash) && (!archived || a.SpecHash != b.hash) {
			f.t.Fatalf("I3: the acknowledged job %s is lost", id)
		}
		if j != nil && j.Phase.Active() != (j.Attempt != nil) {
			f.t.Fatalf("%s is %s with attempt %v", id, j.Phase, j.Attempt)
		}
	}
	if cell.Hash(f.s) != cell.Hash(f.shadow) {
		f.t.Fatal("two readers of one ledger differ")
	}
}

// rebuild gives the shadow another origin: a snapshot, or the whole ledger.
func (f *fabric) rebuild(replay bool) {
	var s *cell.State
	if replay {
		s = cell.NewState()
		for i, c := range f.log {
			if err := cell.Apply(s, c, uint64(i+1)); err != nil {
				f.t.Fatal(err)
			}
		}
	} else {
		var err error
		if s, err = cell.Decode(cell.Encode(f.s)); err != nil {
			f.t.Fatal(err)
		}
	}
	if cell.Hash(s) != cell.Hash(f.s) {
		f.t.Fatalf("I8: the state differs after a restart (replay %v)", replay)
	}
	if a, b := views(f.s), views(s); a != b {
		f.t.Fatalf("derived views differ after a restart (replay %v):\n%s\n%s", replay, a, b)
	}
	f.shadow = s
}

// sameEvents: an outbox that is behind, or a second one, says of every commit what was said at its time.
func (f *fabric) sameEvents() {
	for i, c := range f.log {
		later := CloudEvents(uint64(i+1), c, f.s)
		if len(later) != len(c.GetEntries()) || !slices.EqualFunc(later, f.events[i], func(a, b Event) bool {
			return a.Tenant == b.Tenant && a.Type == b.Type && a.Job == b.Job && string(a.JSON) == string(b.JSON)
		}) {
			f.t.Fatalf("the events of commit %d depend on when one looks:\n%s\n%s", i+1, f.events[i], later)
		}
	}
}

// views writes what readers take from indexes, which are not part of the hash.
func views(s *cell.State) string {
	out := ""
	for n := range s.Nodes() {
		out += fmt.Sprintf("%s %+v:", n.Name, cell.Free(s, n))
		for j := range s.OnNode(n.Name) {
			out += " " + j.ID
		}
	}
	for q := range s.Queues() {
		out += fmt.Sprintf("\n%s %+v:", q.Path, cell.QueueTotals(s, q.Path))
		for j := range s.WaitingIn(q.Path) {
			out += " " + j.ID
		}
	}
	for d := range s.Deadlines() {
		out += fmt.Sprintf("\n%+v", d)
	}
	for at, id := range s.Endings() {
		out += fmt.Sprintf("\nended %d %s", at, id)
	}
	for j := range s.LiveJobs() {
		out += "\nlive " + j.ID
	}
	for j := range s.ActiveJobs() {
		out += "\nactive " + j.ID
	}
	return out
}

// flow lets everything that is said reach everybody that can be reached.
func (f *fabric) flow() {
	for range 4 {
		f.outbox()
		for _, a := range f.agents {
			a.reconcile()
			f.publish(a)
		}
		for f.consume(false) {
		}
	}
}

func (f *fabric) publish(a *agent) {
	if a.up && a.linked {
		f.stream = append(f.stream, a.out...)
		a.out = nil
	}
}

// consume decides the oldest report, and once more if it was published twice.
func (f *fabric) consume(twice bool) bool {
	if !f.up || len(f.stream) == 0 {
		return false
	}
	r := f.stream[0]
	f.stream = f.stream[1:]
	f.must(Report{r})
	if twice {
		f.must(Report{r})
	}
	return true
}

func (f *fabric) outbox() {
	if f.up {
		for _, a := range f.agents {
			f.assigned[a.name] = Assignment(f.s, a.name, uint64(len(f.log)))
		}
	}
}

// advance lets time pass, second by second: machines by their own clocks first, then beats, silence and deadlines.
func (f *fabric) advance(d time.Duration) {
	for range int(d / time.Second) {
		f.now += int64(time.Second)
		for _, a := range f.agents {
			a.timers()
			if !f.up || !a.up || !a.linked {
				continue
			}
			a.contact, f.heard[a.name] = f.now, f.now
			if n := f.s.Node(a.name); n != nil && n.Condition == cell.Lost {
				if len(a.out) == 0 && len(f.stream) == 0 {
					a.hello() // the answer to its beat says that it is unknown
				}
			}
			f.must(Back{a.name})
		}
		if !f.up {
			continue
		}
		for _, a := range f.agents {
			if f.now-f.heard[a.name] >= int64(f.pol.Silent) {
				f.must(Silent{a.name})
			}
		}
		if at := NextDeadline(f.s, f.pol); at != 0 && at <= f.now {
			f.must(Tick{})
		}
	}
}

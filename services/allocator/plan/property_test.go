package plan

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// anyWorld is a small cell with a history: nodes of every kind and state, queues with limits, jobs that came and went.
// Everything is scarce, so that every filter has work.
func anyWorld(t *rapid.T) *world {
	w := newWorld()
	word := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	num := func(label string, from, to int) int { return rapid.IntRange(from, to).Draw(t, label) }
	nodes := num("nodes", 1, 6)
	for i := range nodes {
		w.node(fmt.Sprintf("n%d", i), machine{
			model: word("model", "A100", "H100"), cards: num("cards", 0, 5), cliques: num("cliques", 0, 2), cpu: 1000 * int64(num("cpu", 2, 16)),
			memory: int64(num("memory", 2, 16)) << 30, ports: uint32(num("ports", 2, 12)), rack: word("rack", "", "r0", "r1"),
			block: word("block", "", "b0", "b1"), spot: num("spot", 0, 5) == 0,
		})
	}
	anyNode := func() string { return fmt.Sprintf("n%d", num("node", 0, nodes-1)) }
	paths := []string{"q", "q/a", "q/b", "p"}
	for _, path := range paths {
		if num("queue known", 0, 5) == 0 {
			continue
		}
		w.queue(path, func(b *weftv1.QueueSet_builder) {
			b.Weight, b.Priority = new(int64(num("weight", 0, 3))), new(int32(num("queue priority", 0, 1)))
			if num("limit", 0, 2) == 0 {
				limited(int64(num("limit of", 0, 8)))(b)
			}
			if num("quota", 0, 1) == 0 {
				guaranteed(int64(num("quota of", 0, 4)))(b)
			}
		})
	}
	jobs := 0
	for range num("rounds", 1, 3) {
		for range num("jobs", 0, 6) {
			sp := spec{
				queue: word("queue", paths...), priority: int32(num("priority", 0, 2)), spot: num("takes spot", 0, 2) == 0, mixed: num("mixed", 0, 4) == 0,
				required: weftv1.TopologyLevel(num("required", 0, 5)), models: rapid.SampledFrom([][]string{nil, {"A100"}, {"H100"}, {"A100", "H100"}}).Draw(t, "models"),
			}
			for range num("groups", 1, 2) {
				least := uint32(num("least", 1, 4))
				sp.groups = append(sp.groups, weftv1.Group_builder{
					Min: &least, Max: new(least + uint32(num("elastic", 0, 3))), GpuMilli: new(rapid.SampledFrom([]int64{0, 250, 500, 1000, 1000, 2000, 3000}).Draw(t, "gpu")),
					CpuMilli: new(int64(500 * num("worker cpu", 0, 6))), MemoryBytes: new(int64(num("worker memory", 0, 4)) << 30),
				}.Build())
			}
			w.submit(fmt.Sprintf("job%02d", jobs), sp)
			jobs++
		}
		w.disturb(t, anyNode)
		if err := w.apply(w.plan()); err != nil {
			t.Fatalf("the plan cannot be: %v", err)
		}
		for _, j := range slices.Collect(w.ActiveJobs()) {
			if num("ends", 0, 2) == 0 {
				w.end(j.ID)
			}
		}
	}
	for range num("late jobs", 0, 4) {
		w.submit(fmt.Sprintf("job%02d", jobs), spec{queue: word("queue", paths...), groups: []*weftv1.Group{gang(uint32(num("workers", 1, 3)), int64(num("gpus", 0, 2)))}})
		jobs++
	}
	w.disturb(t, anyNode)
	return w
}

// disturb is what happens to a cell beside jobs.
func (w *world) disturb(t *rapid.T, anyNode func() string) {
	for range rapid.IntRange(0, 3).Draw(t, "disturbances") {
		name := anyNode()
		n := w.Node(name)
		switch rapid.SampledFrom([]string{"cordon", "silent", "lost", "card", "claim", "other cards"}).Draw(t, "what") {
		case "cordon":
			w.cordon(name)
		case "silent":
			w.fact(weftv1.Fact_builder{NodeSilent: weftv1.NodeSilent_builder{Node: &name, LostAtNs: new(int64(1 << 60))}.Build()})
		case "lost":
			w.fact(weftv1.Fact_builder{NodeLost: weftv1.NodeLost_builder{Node: &name}.Build()})
		case "card":
			w.fact(weftv1.Fact_builder{DeviceFailed: weftv1.DeviceFailed_builder{Node: &name, Device: new(uint32(0))}.Build()})
		case "claim":
			for j := range w.WaitingJobs() {
				w.claim(j.ID, name, anyNode())
				break
			}
		case "other cards": // a new generation: what runs there holds indices that cannot be compared
			w.fact(weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{
				Node: &name, Generation: new(n.Generation + 1), Inventory: n.Inventory,
			}.Build()})
		}
	}
}

// Every step of a plan can be, whole, in the state that the steps before it made; and no queue comes over its limit.
func TestPlansAreFeasible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		p := w.plan()
		if err := w.apply(p); err != nil {
			t.Fatalf("the plan cannot be: %v", err)
		}
		for _, st := range p.GetSteps() {
			sizes := map[uint32]uint32{}
			for _, pl := range st.GetStart().GetPlacements() {
				sizes[pl.GetGroup()] += pl.GetCount()
			}
			for i, g := range w.Job(st.GetStart().GetJob()).Spec.GetGroups() {
				if n := sizes[uint32(i)]; n < g.GetMin() || n > g.GetMax() {
					t.Errorf("%d workers of %d to %d", n, g.GetMin(), g.GetMax())
				}
			}
		}
		for q := range w.Queues() {
			if q.Set.GetLimit().HasGpuMilli() && cell.QueueUsage(w.State, q.Path).GPUMilli > q.Set.GetLimit().GetGpuMilli() {
				t.Errorf("queue %s holds %d of %d", q.Path, cell.QueueUsage(w.State, q.Path).GPUMilli, q.Set.GetLimit().GetGpuMilli())
			}
		}
	})
}

// A plan leaves nothing to the next one.
func TestPlansReachAFixedPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		if err := w.apply(w.plan()); err != nil {
			t.Fatalf("the plan cannot be: %v", err)
		}
		if p := w.plan(); len(p.GetSteps()) > 0 {
			t.Fatalf("the next plan would start %v", started(p))
		}
	})
}

// The same state gives the same plan, also in another replica that read it from a snapshot; and it stays as it was.
func TestPlansAreDeterministicAndPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		before := cell.Hash(w.State)
		want := w.plan()
		other, err := cell.Decode(cell.Encode(w.State))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			for _, s := range []*cell.State{w.State, other} {
				if got := New(s, 7, w.at, DefaultPolicy()).Plan(); !proto.Equal(got, want) {
					t.Fatalf("the same state gives\n%v\nand\n%v", want, got)
				}
			}
		}
		for j := range w.LiveJobs() {
			New(w.State, 7, w.at, DefaultPolicy()).Explain(j.ID)
		}
		if cell.Hash(w.State) != before {
			t.Fatal("planning changed the state")
		}
	})
}

// Explain agrees with Plan: it says that a place is there exactly for those that the plan starts, and it has one of the
// known tokens and one sentence for every job.
func TestExplainAgreesWithPlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := anyWorld(t)
		starts := started(w.plan())
		for j := range w.Jobs() {
			e := New(w.State, 7, w.at, DefaultPolicy()).Explain(j.ID)
			token := Token(e.GetToken())
			if (token == WaitingForPlan) != slices.Contains(starts, j.ID) {
				t.Errorf("%s: %s; the plan starts %v", j.ID, token, starts)
			}
			if !slices.ContainsFunc(Tokens, func(k Known) bool { return k.Token == token }) || e.GetMessage() == "" {
				t.Errorf("%s: token %q, message %q", j.ID, token, e.GetMessage())
			}
		}
	})
}

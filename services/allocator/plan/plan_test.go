package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Stories of what a plan starts, and where: each cell has one thing that decides.
func TestPlan(t *testing.T) {
	one := func(g ...*weftv1.Group) spec { return spec{groups: g} }
	for _, c := range []struct {
		name   string
		given  func(w *world)
		starts string // job node:[devices] node:[devices], one job a line
	}{
		{"nothing waits", func(w *world) { w.node("n0", machine{cards: 4}) }, ""},
		{"no nodes", func(w *world) { w.submit("a", one(gang(1, 1))) }, ""},
		{"a gang over two nodes", func(w *world) {
			w.node("n0", machine{cards: 2})
			w.node("n1", machine{cards: 2})
			w.submit("a", one(gang(4, 1)))
		}, "a n0:[0 1] n1:[0 1]"},
		{"never part of a gang", func(w *world) {
			w.node("n0", machine{cards: 3})
			w.submit("a", one(gang(4, 1)))
			w.submit("b", one(gang(1, 3)))
		}, "b n0:[0 1 2]"},
		{"never part of a gang of two roles", func(w *world) {
			w.node("n0", machine{cards: 4})
			w.submit("a", one(gang(1, 1), gang(1, 4)))
		}, ""},
		{"an elastic gang at the largest size that fits", func(w *world) {
			w.node("n0", machine{cards: 5})
			w.submit("a", one(workers(2, 8, 1)))
		}, "a n0:[0 1 2 3 4]"},
		{"an elastic gang gives way to the limit of its queue", func(w *world) {
			w.node("n0", machine{cards: 8})
			w.queue("q", limited(3))
			w.submit("a", one(workers(2, 8, 1)))
		}, "a n0:[0 1 2]"},
		{"the tightest fit", func(w *world) {
			w.node("n0", machine{cards: 8})
			w.node("n1", machine{cards: 4})
			w.node("n2", machine{cards: 3})
			w.submit("a", one(gang(1, 3)))
			w.submit("b", one(gang(4, 1)))
		}, "a n2:[0 1 2]\nb n1:[0 1 2 3]"},
		{"within a clique", func(w *world) {
			w.node("n0", machine{cards: 6, cliques: 3})
			w.node("n1", machine{cards: 8, cliques: 2})
			w.submit("a", one(gang(1, 3)))
		}, "a n1:[0 1 2]"},
		{"whole cliques stay whole", func(w *world) {
			w.node("n0", machine{cards: 2, cliques: 1})
			w.node("n1", machine{cards: 4, cliques: 1})
			w.submit("held", one(gang(1, 1)))
			w.fact(weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{
				Job: new("held"), Attempt: new(uint32(1)), Size: new(uint32(1)), Placements: []*weftv1.Placement{weftv1.Placement_builder{
					Node: new("n1"), Generation: new(uint64(1)), Count: new(uint32(1)), Devices: []uint32{3}, Milli: new(int64(1000)),
				}.Build()},
			}.Build()})
			w.submit("a", one(gang(1, 1)))
		}, "a n1:[0]"},
		{"a part of a card goes onto the fullest that holds it", func(w *world) {
			w.node("n0", machine{cards: 3, cliques: 1})
			for i, milli := range []int64{600, 700, 300, 400} {
				g := gang(1, 1)
				g.SetGpuMilli(milli)
				w.submit(string(rune('a'+i)), one(g))
			}
		}, "a n0:[0]\nb n0:[1]\nc n0:[1]\nd n0:[0]"},
		{"a rack before a block before the cell", func(w *world) {
			for i, m := range []machine{{rack: "r0", block: "b0"}, {rack: "r1", block: "b0"}, {rack: "r2", block: "b1"}, {rack: "r2", block: "b1"}} {
				m.cards = 2
				w.node(fmt.Sprintf("n%d", i), m)
			}
			w.submit("a", one(gang(4, 1)))
		}, "a n2:[0 1] n3:[0 1]"},
		{"a required rack is never a block", func(w *world) {
			w.node("n0", machine{cards: 2, rack: "r0", block: "b0"})
			w.node("n1", machine{cards: 2, rack: "r1", block: "b0"})
			w.submit("a", spec{groups: []*weftv1.Group{gang(4, 1)}, required: rack})
			w.submit("b", spec{groups: []*weftv1.Group{gang(3, 1)}, required: block})
		}, "b n0:[0 1] n1:[0]"},
		{"a required clique, one card without one", func(w *world) {
			w.node("n0", machine{cards: 2})
			w.submit("a", spec{groups: []*weftv1.Group{gang(2, 1)}, required: clique})
			w.submit("b", spec{groups: []*weftv1.Group{gang(1, 1)}, required: clique})
		}, "b n0:[0]"},
		{"one model a gang", func(w *world) {
			w.node("n0", machine{cards: 2})
			w.node("n1", machine{cards: 2, model: "H100"})
			w.submit("a", one(gang(3, 1)))
			w.submit("b", spec{groups: []*weftv1.Group{gang(3, 1)}, mixed: true})
		}, "b n0:[0 1] n1:[0]"},
		{"only an accepted model", func(w *world) {
			w.node("n0", machine{cards: 2})
			w.node("n1", machine{cards: 2, model: "H100"})
			w.submit("a", spec{groups: []*weftv1.Group{gang(1, 1)}, models: []string{"H100"}})
		}, "a n1:[0]"},
		{"large workers choose first", func(w *world) {
			w.node("n0", machine{cards: 4})
			w.node("n1", machine{cards: 5})
			w.submit("a", one(gang(1, 1), gang(2, 4)))
		}, "a n1:[4] n0:[0 1 2 3] n1:[0 1 2 3]"},
		{"without devices, away from free cards", func(w *world) {
			w.node("n0", machine{cards: 4})
			w.node("n1", machine{cpu: 9000})
			w.node("n2", machine{cpu: 8000})
			w.submit("a", one(gang(2, 0)))
		}, "a n2:[]"},
		{"spot nodes only for those who say so", func(w *world) {
			w.node("n0", machine{cards: 4, spot: true})
			w.submit("a", one(gang(1, 1)))
			w.submit("b", spec{groups: []*weftv1.Group{gang(1, 1)}, spot: true})
		}, "b n0:[0]"},
		{"cordoned and silent nodes get nothing", func(w *world) {
			w.node("n0", machine{cards: 4})
			w.node("n1", machine{cards: 4})
			w.cordon("n0")
			w.fact(weftv1.Fact_builder{NodeSilent: weftv1.NodeSilent_builder{Node: new("n1"), LostAtNs: new(int64(1 << 60))}.Build()})
			w.submit("a", one(gang(1, 1)))
		}, ""},
		{"ports of the same plan count", func(w *world) {
			w.node("n0", machine{cards: 8, ports: 5})
			w.submit("a", one(gang(3, 1)))
			w.submit("b", one(gang(2, 1)))
		}, "a n0:[0 1 2]"},
		{"no place whose ports the scheduler could not give out in the order of the ranks", func(w *world) {
			w.node("n0", machine{cards: 8, ports: 7})
			w.submit("gone", one(gang(2, 1)))
			w.submit("held", one(gang(1, 1)))
			if err := w.apply(w.plan()); err != nil {
				panic(err)
			}
			w.end("gone") // three ports in a row, then two of the held one, then two in a row
			w.submit("a", one(gang(1, 1), gang(3, 2)))
			w.submit("b", one(gang(1, 1), gang(2, 2)))
		}, "b n0:[5] n0:[0 1 3 4]"},
		{"priority, then age", func(w *world) {
			w.node("n0", machine{cards: 3})
			w.submit("a", spec{groups: []*weftv1.Group{gang(1, 1)}})
			w.submit("c", spec{groups: []*weftv1.Group{gang(1, 1)}})
			w.submit("b", spec{groups: []*weftv1.Group{gang(1, 1)}})
			w.submit("d", spec{groups: []*weftv1.Group{gang(1, 1)}, priority: 5})
		}, "d n0:[0]\na n0:[1]\nc n0:[2]"},
		{"a blocked head does not idle what it can't use", func(w *world) {
			w.node("n0", machine{cards: 2})
			w.submit("a", spec{groups: []*weftv1.Group{gang(4, 1)}, priority: 5})
			w.submit("b", one(gang(2, 1)))
		}, "b n0:[0 1]"},
		{"nodes that are held for a job go to it, though an older one of its shape waits", func(w *world) {
			w.node("n0", machine{cards: 2})
			w.submit("a", one(gang(2, 1)))
			w.submit("b", one(gang(2, 1)))
			w.claim("b", "n0")
		}, "b n0:[0 1]"},
		{"what a claim no longer holds is given on in the same plan", func(w *world) {
			w.node("n0", machine{cards: 2})
			w.node("n1", machine{cards: 2})
			w.submit("a", one(gang(2, 1)))
			w.submit("b", one(gang(2, 1)))
			w.claim("b", "n0", "n1")
		}, "b n0:[0 1]\na n1:[0 1]"},
		{"no queue over its limit, nor those above it", func(w *world) {
			w.node("n0", machine{cards: 8})
			w.queue("q", limited(3))
			w.queue("q/a", limited(2))
			for _, id := range []string{"a", "b", "c"} {
				w.submit(id, spec{queue: "q/a", groups: []*weftv1.Group{gang(1, 1)}})
			}
			w.submit("d", spec{queue: "q/b", groups: []*weftv1.Group{gang(2, 1)}})
			w.submit("e", spec{queue: "q/b", groups: []*weftv1.Group{gang(1, 1)}})
		}, "a n0:[0]\nb n0:[1]\ne n0:[2]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			c.given(w)
			p := w.plan()
			var lines []string
			for _, id := range started(p) {
				lines = append(lines, strings.Join(append([]string{id}, places(p, id)...), " "))
			}
			if got := strings.Join(lines, "\n"); got != c.starts {
				t.Fatalf("the plan starts\n%s\nwant\n%s", got, c.starts)
			}
			if err := w.apply(p); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// fair submits n jobs of one card to each queue, all at once as far as age matters, and says who gets the next cards.
func fair(t *testing.T, w *world, cards, n int, queues ...string) string {
	t.Helper()
	w.node("n0", machine{cards: cards})
	for i := range n {
		for _, q := range queues {
			w.submit(fmt.Sprintf("%s-%d", strings.ReplaceAll(q, "/", "."), i), spec{queue: q, groups: []*weftv1.Group{gang(1, 1)}})
		}
	}
	var order []string
	for _, id := range started(w.run(t)) {
		order = append(order, id[:strings.IndexByte(id, '-')])
	}
	return strings.Join(order, " ")
}

// The order between queues: weighted dominant resource fairness over the tree.
func TestOrderBetweenQueues(t *testing.T) {
	for _, c := range []struct {
		name   string
		queues map[string][]func(*weftv1.QueueSet_builder)
		from   []string
		want   string
	}{
		{"equal weights take turns", nil, []string{"a", "b"}, "a b a b a b a b"},
		{"two to one", map[string][]func(*weftv1.QueueSet_builder){"a": {weighs(2)}, "b": {weighs(1)}}, []string{"a", "b"}, "a a b a a b b b"},
		{"weight 0 takes what others leave", map[string][]func(*weftv1.QueueSet_builder){"a": {weighs(0), ranked(9)}}, []string{"a", "b"}, "b b b b a a a a"},
		{"within the quota first", map[string][]func(*weftv1.QueueSet_builder){"b": {guaranteed(2)}}, []string{"a", "b"}, "b b a a a b a b"},
		{"a quota holds for weight 0", map[string][]func(*weftv1.QueueSet_builder){"b": {guaranteed(2), weighs(0)}}, []string{"a", "b"}, "b b a a a a b b"},
		{"the priority of a queue", map[string][]func(*weftv1.QueueSet_builder){"b": {ranked(1)}}, []string{"a", "b"}, "b b b b a a a a"},
		{"the tree, not the leaves", nil, []string{"a/x", "a/y", "b"}, "a.x b a.y b a.x b a.y b"},
		{"a queue's own jobs are one more child", nil, []string{"a", "a/x"}, "a a.x a a.x a a.x a a.x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			for path, change := range c.queues {
				w.queue(path, change...)
			}
			if got := fair(t, w, 8, 4, c.from...); got != c.want {
				t.Fatalf("cards go to %s, want %s", got, c.want)
			}
		})
	}
}

// The dominant resource counts: a queue of large memory and one of many cards get equal shares of what each wants most.
func TestDominantResource(t *testing.T) {
	w := newWorld()
	w.node("n0", machine{cards: 8, memory: 16 << 30})
	cards, memory := gang(1, 2), gang(1, 1)
	memory.SetMemoryBytes(4 << 30)
	for i := range 4 {
		w.submit(fmt.Sprintf("c%d", i), spec{queue: "cards", groups: []*weftv1.Group{cards}})
		w.submit(fmt.Sprintf("m%d", i), spec{queue: "memory", groups: []*weftv1.Group{memory}})
	}
	// Each c is 2 of 8 cards, each m is 4 of 16 GiB: a quarter both.
	if got := started(w.run(t)); !slices.Equal(got, []string{"c0", "m0", "c1", "m1", "c2"}) {
		t.Fatalf("starts %v", got)
	}
}

// What runs already counts, and a job that a fault threw out goes before everybody.
func TestOrderCountsWhatRunsAndDegradedJobsGoFirst(t *testing.T) {
	w := newWorld()
	w.node("n0", machine{cards: 2})
	w.submit("a0", spec{queue: "a", groups: []*weftv1.Group{gang(2, 1)}})
	w.run(t)
	w.runs("a0")
	w.submit("a1", spec{queue: "a", groups: []*weftv1.Group{gang(1, 1)}})
	w.submit("b0", spec{queue: "b", groups: []*weftv1.Group{gang(1, 1)}})
	w.node("n1", machine{cards: 1})
	if got := started(w.plan()); !slices.Equal(got, []string{"b0"}) {
		t.Fatalf("starts %v, want b0: a holds 2 cards", got)
	}
	one := new(uint32(1))
	w.fact(weftv1.Fact_builder{AttemptStopping: weftv1.AttemptStopping_builder{Job: new("a0"), Attempt: one, KillAtNs: new(int64(1))}.Build()})
	w.fact(weftv1.Fact_builder{Released: weftv1.Released_builder{Job: new("a0"), Attempt: one, Node: new("n0")}.Build()})
	w.fact(weftv1.Fact_builder{AttemptEnded: weftv1.AttemptEnded_builder{Job: new("a0"), Attempt: one}.Build()})
	w.fact(weftv1.Fact_builder{JobRequeued: weftv1.JobRequeued_builder{Job: new("a0"), Degraded: new(true)}.Build()})
	if got := started(w.plan()); !slices.Equal(got, []string{"a0", "b0"}) {
		t.Fatalf("starts %v, want a0 first", got)
	}
}

// The tries bound one plan; what had no turn is told, and comes with the next plans.
func TestTriesBoundAPlan(t *testing.T) {
	w := newWorld()
	w.node("n0", machine{cards: 8})
	for i := range 5 {
		w.submit(fmt.Sprintf("a%d", i), spec{groups: []*weftv1.Group{gang(1, 1)}})
	}
	pol := Policy{Tries: 2}
	for _, want := range []struct {
		starts    []string
		exhausted bool
	}{{[]string{"a0", "a1"}, true}, {[]string{"a2", "a3"}, true}, {[]string{"a4"}, false}} {
		p := New(w.State, 7, w.at, pol).Plan()
		if got := started(p); !slices.Equal(got, want.starts) || p.GetExhausted() != want.exhausted {
			t.Fatalf("starts %v, exhausted %v, want %v", got, p.GetExhausted(), want)
		}
		if err := w.apply(p); err != nil {
			t.Fatal(err)
		}
	}
}

// A plan is named by what it says and by the record that it is based on.
func TestPlanID(t *testing.T) {
	w := newWorld()
	w.node("n0", machine{cards: 2})
	w.submit("a", spec{groups: []*weftv1.Group{gang(1, 1)}})
	p := w.plan()
	if p.GetBasedOn() != 7 || p.GetId() != w.plan().GetId() {
		t.Fatalf("plan %s based on %d", p.GetId(), p.GetBasedOn())
	}
	if other := New(w.State, 8, w.at, DefaultPolicy()).Plan(); other.GetId() == p.GetId() {
		t.Fatal("plans of two records have one name")
	}
	w.submit("b", spec{groups: []*weftv1.Group{gang(1, 1)}})
	if w.plan().GetId() == p.GetId() {
		t.Fatal("two plans have one name")
	}
}

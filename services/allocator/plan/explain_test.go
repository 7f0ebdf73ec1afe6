package plan

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var update = flag.Bool("update", false, "rewrite the generated parts of the documentation")

const (
	glossary   = "../../../docs/glossary.md"
	begin, end = "<!-- tokens:begin -->", "<!-- tokens:end -->"
)

// The table of tokens in docs/glossary.md is generated from Tokens, so it cannot lie.
func TestDocsExplainTokens(t *testing.T) {
	doc, err := os.ReadFile(glossary)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no block between %s and %s", glossary, begin, end)
	}
	var b strings.Builder
	b.WriteString("| token | meaning |\n|---|---|\n")
	for _, k := range Tokens {
		fmt.Fprintf(&b, "| `%s` | %s |\n", k.Token, k.Meaning)
	}
	want := head + begin + "\n" + b.String() + end + tail
	if want == string(doc) {
		return
	}
	if !*update {
		t.Fatalf("the table in %s differs from plan.Tokens; run make generate", glossary)
	}
	if err := os.WriteFile(glossary, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// explained are the stories of job "j", each with the token and what else must be said.
var explained = []struct {
	name  string
	token Token
	given func(w *world, t *testing.T)
	says  []string // parts of message and cure
	also  string   // position, filters, deficits and holders, as brief writes them
}{
	{"placed", Starting, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 1})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.run(t)
	}, []string{"Attempt 1 is placed"}, ""},
	{"every rank runs", Running, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 2})
		w.submit("j", spec{groups: []*weftv1.Group{gang(2, 1)}})
		w.run(t)
		w.runs("j")
	}, []string{"All 2 ranks run."}, ""},
	{"asked to end", Stopping, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 1})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.run(t)
		w.stop("j")
	}, []string{"Attempt 1 is being ended: rank 0 on n0 exited with code 3."}, "eta 99"},
	{"between attempts", Backoff, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 1})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.run(t)
		w.stop("j")
		w.ended("j")
		w.fact(weftv1.Fact_builder{JobRequeued: weftv1.JobRequeued_builder{Job: new("j"), NotBeforeNs: new(int64(1234)), Cause: exit3}.Build()})
	}, []string{"exited with code 3", "next attempt"}, "eta 1234"},
	{"succeeded", Ended, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 1})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.run(t)
		w.end("j")
	}, []string{"The job succeeded."}, ""},
	{"failed", Ended, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 1})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.run(t)
		w.stop("j")
		w.ended("j")
		w.fact(weftv1.Fact_builder{JobFailed: weftv1.JobFailed_builder{Job: new("j"), Reason: new("3 of 3 restarts are used up")}.Build()})
	}, []string{"The job failed: 3 of 3 restarts are used up."}, ""},
	{"cancelled", Ended, func(w *world, _ *testing.T) {
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.fact(weftv1.Fact_builder{JobCancelled: weftv1.JobCancelled_builder{Job: new("j")}.Build()})
	}, []string{"The job was cancelled."}, ""},
	{"its turn is now", WaitingForPlan, func(w *world, _ *testing.T) {
		w.node("n0", machine{cards: 2})
		w.submit("i", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
	}, []string{"starts with the next plan"}, "position 2"},
	{"its queue is full", WaitingForQuota, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 8})
		w.queue("q", limited(4))
		w.submit("i", spec{queue: "q/a", groups: []*weftv1.Group{gang(3, 1)}})
		w.submit("x", spec{queue: "p", groups: []*weftv1.Group{gang(1, 1)}})
		w.run(t)
		w.submit("j", spec{queue: "q/b", groups: []*weftv1.Group{gang(2, 1)}})
	}, []string{"Queue q is limited to 4 gpus", "raise the limit"}, "position 1 holder i 3000"},
	{"half a gang would fit", WaitingForGang, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 4})
		w.submit("i", spec{groups: []*weftv1.Group{gang(2, 1)}})
		w.run(t)
		w.submit("j", spec{groups: []*weftv1.Group{gang(4, 1)}})
	}, []string{"Some of its 4 workers", "spec.workers.min"}, "position 1 deficit gpu-milli 4000>2000 holder i 2000"},
	{"everything is taken, by another tenant", WaitingForCapacity, func(w *world, t *testing.T) {
		w.nodes(2, "n", machine{cards: 4})
		w.submit("i", spec{queue: "p", groups: []*weftv1.Group{gang(8, 1)}})
		w.run(t)
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
	}, []string{"Not one of its workers fits now."}, "position 1 filter devices 2 deficit gpu-milli 1000>0 holder i 8000"},
	{"a job before it takes the last card", WaitingForCapacity, func(w *world, _ *testing.T) {
		w.node("n0", machine{cards: 1})
		w.submit("i", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
	}, []string{"Not one of its workers fits now."}, "position 2 filter devices 1 deficit gpu-milli 1000>0 holder i 1000"},
	{"no memory", WaitingForCapacity, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 2, memory: 3 << 30})
		w.submit("i", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.run(t)
		g := gang(1, 1)
		g.SetMemoryBytes(3 << 30)
		w.submit("j", spec{groups: []*weftv1.Group{g}})
	}, nil, "position 1 filter memory 1 deficit memory-bytes 3221225472>2147483648 holder i 1000"},
	{"enough cards, but in two racks", TopologyUnsatisfiable, func(w *world, t *testing.T) {
		w.node("n0", machine{cards: 2, rack: "r0"})
		w.node("n1", machine{cards: 2, rack: "r0"})
		w.node("n2", machine{cards: 2, rack: "r1"})
		w.submit("i", spec{groups: []*weftv1.Group{gang(1, 2)}})
		w.run(t)
		w.submit("j", spec{groups: []*weftv1.Group{gang(4, 1)}, required: rack})
	}, []string{"not within one rack", "spec.topology.preferred"}, "position 1 filter devices 1 holder i 2000"},
	{"no such card", NoSuchModel, func(w *world, _ *testing.T) {
		w.node("n0", machine{cards: 2})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}, models: []string{"H100", "H200"}})
	}, []string{"No node has an accelerator of H100 or H200.", "accept another model"}, "position 1 filter model 1"},
	{"the only node with its model is cordoned", NodesUnavailable, func(w *world, _ *testing.T) {
		w.node("n0", machine{cards: 2})
		w.node("n1", machine{cards: 2, model: "H100"})
		w.cordon("n1")
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}, models: []string{"H100"}})
	}, []string{"cordoned"}, "position 1 filter cordoned 1 filter model 1"},
	{"one node of its gang is lost", NodesUnavailable, func(w *world, _ *testing.T) {
		w.nodes(2, "n", machine{cards: 2})
		w.fact(weftv1.Fact_builder{NodeLost: weftv1.NodeLost_builder{Node: new("n1")}.Build()})
		w.submit("j", spec{groups: []*weftv1.Group{gang(2, 2)}})
	}, []string{"lost"}, "position 1 filter node 1"},
	{"all nodes are held for another job", NodesUnavailable, func(w *world, _ *testing.T) {
		w.node("n0", machine{cards: 2})
		w.submit("i", spec{groups: []*weftv1.Group{gang(3, 1)}})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
		w.claim("i", "n0")
	}, []string{"held for another job"}, "position 2 filter claimed 1"},
	{"only spot nodes", NodesUnavailable, func(w *world, _ *testing.T) {
		w.node("n0", machine{cards: 2, spot: true})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
	}, []string{"spot"}, "position 1 filter spot 1"},
	{"its cards have failed", NodesUnavailable, func(w *world, _ *testing.T) {
		w.node("n0", machine{cards: 1})
		w.fact(weftv1.Fact_builder{DeviceFailed: weftv1.DeviceFailed_builder{Node: new("n0"), Device: new(uint32(0))}.Build()})
		w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
	}, []string{"without working devices"}, "position 1 filter devices 1"},
	{"larger than the cell", NeverFits, func(w *world, _ *testing.T) {
		w.nodes(2, "n", machine{cards: 4})
		w.submit("j", spec{groups: []*weftv1.Group{gang(9, 1)}})
	}, []string{"8 of its 9 workers would fit", "add nodes"}, "position 1"},
}

var exit3 = weftv1.Cause_builder{Kind: weftv1.CauseKind_CAUSE_KIND_EXIT.Enum(), Node: new("n0"), ExitCode: new(int32(3))}.Build()

// stop begins the end of a job's attempt; ended finishes it.
func (w *world) stop(id string) {
	w.fact(weftv1.Fact_builder{AttemptStopping: weftv1.AttemptStopping_builder{
		Job: &id, Attempt: &w.Job(id).Attempts, KillAtNs: new(int64(99)), Cause: exit3,
	}.Build()})
}

func (w *world) ended(id string) {
	a := w.Job(id).Attempt
	for _, n := range a.Nodes() {
		w.fact(weftv1.Fact_builder{Released: weftv1.Released_builder{Job: &id, Attempt: &a.Number, Node: &n}.Build()})
	}
	w.fact(weftv1.Fact_builder{AttemptEnded: weftv1.AttemptEnded_builder{Job: &id, Attempt: &a.Number}.Build()})
}

// brief writes the figures of an explanation.
func brief(e *weftv1.Explanation) string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if e.GetPosition() > 0 {
		add("position %d", e.GetPosition())
	}
	if e.GetEtaNs() > 0 {
		add("eta %d", e.GetEtaNs())
	}
	for _, f := range e.GetFilters() {
		add("filter %s %d", f.GetFilter(), f.GetNodes())
	}
	for _, d := range e.GetDeficits() {
		add("deficit %s %d>%d", d.GetResource(), d.GetNeeded(), d.GetAvailable())
	}
	for _, h := range e.GetHolders() {
		add("holder %s %d", h.GetJob(), h.GetGpuMilli())
	}
	return strings.Join(out, " ")
}

func TestExplain(t *testing.T) {
	told := map[Token]bool{}
	for _, c := range explained {
		told[c.token] = true
		t.Run(string(c.token)+"/"+c.name, func(t *testing.T) {
			w := newWorld()
			c.given(w, t)
			e := New(w.State, 7, w.at, DefaultPolicy()).Explain("j")
			if e.GetToken() != string(c.token) || e.GetJob() != "j" || e.GetBasedOn() != 7 || e.GetPhase() != string(w.Job("j").Phase) {
				t.Fatalf("explained as %v, want %s", e, c.token)
			}
			for _, part := range c.says {
				if !strings.Contains(e.GetMessage()+" "+e.GetCure(), part) {
					t.Errorf("%q, cure %q: does not say %q", e.GetMessage(), e.GetCure(), part)
				}
			}
			if got := brief(e); got != c.also {
				t.Errorf("with %s\nwant %s", got, c.also)
			}
			if got := w.Job("j").Phase == cell.Queued && c.token != WaitingForPlan; got != (e.GetCure() != "") {
				t.Errorf("cure %q", e.GetCure())
			}
		})
	}
	for _, k := range Tokens {
		if !told[k.Token] {
			t.Errorf("no story of %s", k.Token)
		}
	}
}

func TestExplainOfNoJob(t *testing.T) {
	if e := New(newWorld().State, 7, 0, DefaultPolicy()).Explain("j"); e != nil {
		t.Fatalf("got %v", e)
	}
}

// A job that had no turn waits for the plan: whether it fits is not known yet.
func TestExplainWhenTheTriesRanOut(t *testing.T) {
	w := newWorld()
	w.node("n0", machine{cards: 8})
	w.submit("i", spec{groups: []*weftv1.Group{gang(1, 1)}})
	w.submit("j", spec{groups: []*weftv1.Group{gang(1, 1)}})
	e := New(w.State, 7, w.at, Policy{Tries: 1}).Explain("j")
	if Token(e.GetToken()) != WaitingForPlan || !strings.Contains(e.GetMessage(), "turn has not come") {
		t.Fatalf("explained as %v", e)
	}
}

// The five that hold most are named, the largest first; what an attempt has released it does not hold.
func TestHolders(t *testing.T) {
	w := newWorld()
	w.nodes(2, "n", machine{cards: 16})
	for i := range 6 {
		w.submit(fmt.Sprintf("i%d", i), spec{groups: []*weftv1.Group{gang(uint32(1+i), 1)}})
	}
	w.run(t)
	w.submit("wide", spec{groups: []*weftv1.Group{gang(11, 1)}})
	w.run(t)
	nodes := w.Job("wide").Attempt.Nodes()
	if len(nodes) != 2 {
		t.Fatalf("the wide job is on %v", nodes)
	}
	w.runs("wide")
	w.stop("wide")
	w.fact(weftv1.Fact_builder{Released: weftv1.Released_builder{Job: new("wide"), Attempt: new(uint32(1)), Node: &nodes[0]}.Build()})
	held := int64(0)
	for _, p := range w.Job("wide").Attempt.Placements {
		if p.GetNode() == nodes[1] {
			held += 1000 * int64(len(p.GetDevices()))
		}
	}
	w.submit("j", spec{groups: []*weftv1.Group{gang(32, 1)}})
	var got, want []string
	for _, h := range New(w.State, 7, w.at, DefaultPolicy()).Explain("j").GetHolders() {
		got = append(got, fmt.Sprintf("%s %d", h.GetJob(), h.GetGpuMilli()))
	}
	all := map[string]int64{"wide": held}
	for i := range 6 {
		all[fmt.Sprintf("i%d", i)] = int64(1000 * (1 + i))
	}
	ids := []string{"i0", "i1", "i2", "i3", "i4", "i5", "wide"}
	slices.SortStableFunc(ids, func(a, b string) int { return int(all[b] - all[a]) })
	for _, id := range ids[:5] {
		want = append(want, fmt.Sprintf("%s %d", id, all[id]))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("holders %v, want %v", got, want)
	}
}

package shell

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestFromSubmitToTheEnd(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	n1 := r.agent("n1")
	id := r.submit(1)
	p.pass(time.Second)
	if j := p.job(id); j.Phase != cell.Running || j.Attempts != 1 {
		t.Fatalf("%s after %d attempts", j.Phase, j.Attempts)
	}
	n1.release(id, 1, true)
	p.pass(time.Second)
	if j := p.job(id); j.Phase != cell.Succeeded {
		t.Fatal(j.Phase)
	}
	want := "queue_set job_submitted node_joined node_inventory job_placed node_started attempt_running released attempt_ended job_succeeded"
	if got := r.kinds(); got != want {
		t.Fatalf("%s\nwant %s", got, want)
	}
	p.checkEvents()
	p.checkAssignments()
	if len(p.failures) > 0 || p.logged.Len() > 0 {
		t.Fatalf("%v\n%s", p.failures, p.logged)
	}
}

func TestNobodyIsAskedWhileNobodyWaits(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	p.pass(time.Minute)
	if r.asked != 0 {
		t.Fatalf("%d questions to the allocator", r.asked)
	}
	for i := range 5 { // one more than fit
		r.submit(i)
	}
	p.pass(time.Minute)
	before := r.asked
	p.pass(time.Hour)
	if r.asked != before {
		t.Fatalf("%d questions in an hour without a change", r.asked-before)
	}
}

func TestPoisonIsPutAsideOnce(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	r.publish(bus.StreamRequests, bus.SubjectRequest("demo", "submit"), []byte{0xff, 0xff, 0xff})
	unknown := r.request("none", weftv1.Request_builder{})
	r.publish(bus.StreamReports, bus.SubjectReport("n1"), []byte("garbage"))
	r.publish(bus.StreamCheckpoints, bus.SubjectCheckpoint, []byte{0xff})
	id := r.submit(1)
	p.pass(time.Second)
	if j := p.job(id); j.Phase != cell.Running {
		t.Fatalf("behind the poison the job is %s", j.Phase)
	}
	reasons := map[string]string{}
	for _, f := range r.facts() {
		if f.HasInputRejected() {
			x := f.GetInputRejected()
			reasons[fmt.Sprint(x.GetStream(), x.GetSeq())] += x.GetReason()
		}
	}
	for key, part := range map[string]string{
		bus.StreamRequests + "2": "unreadable", fmt.Sprint(bus.StreamRequests, unknown): "carries no command this version knows",
		bus.StreamReports + "2": "unreadable", bus.StreamCheckpoints + "1": "unreadable",
	} {
		if !strings.Contains(reasons[key], part) {
			t.Errorf("input %s: %q does not say %q", key, reasons[key], part)
		}
	}
	if len(reasons) != 4 {
		t.Errorf("refused: %v", reasons)
	}
	// Another life reads on behind it.
	commits := len(r.facts())
	r.leader("b").pass(time.Second)
	if n := len(r.facts()); n != commits {
		t.Fatalf("a new leader made %d facts of inputs that were consumed", n-commits)
	}
}

func TestAReportOfAnotherNodeIsRefused(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.agent("n1")
	p.pass(time.Second)
	thief := &fakeAgent{r: r, name: "n1", boot: "boot-2"}
	data := bytesOf(t, weftv1.Report_builder{Node: &thief.name, BootId: &thief.boot, Hello: &weftv1.Hello{}}.Build())
	r.publish(bus.StreamReports, bus.SubjectReport("n2"), data)
	p.pass(time.Second)
	if n := p.state().Node("n1"); n.BootID != "boot-1" {
		t.Fatal("n2 spoke for n1")
	}
	if got := r.kinds("input_rejected", "node_joined"); got != "node_joined input_rejected" {
		t.Fatal(got)
	}
}

func TestRefusalsAreFactsOnceASecondAndCounted(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	p.pass(time.Second)
	for i := range 10 {
		r.submitTo("demo/nowhere", i)
	}
	r.submitTo("demo/none", 20) // another queue has a count of its own
	p.pass(time.Second)
	r.submitTo("demo/nowhere", 30)
	p.pass(time.Second)
	var got []string
	for _, f := range r.facts() {
		if x := f.GetInputRejected(); f.HasInputRejected() {
			got = append(got, fmt.Sprintf("%s hides %d", x.GetJob(), x.GetSuppressed()))
			if !strings.Contains(x.GetReason(), "queue demo/") || !strings.Contains(x.GetReason(), "weft queues apply") {
				t.Errorf("the reason names neither queue nor cure: %s", x.GetReason())
			}
		}
	}
	want := []string{jobID(0) + " hides 0", jobID(20) + " hides 0", jobID(30) + " hides 9"}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Fatalf("%v\nwant %v", got, want)
	}
}

func TestARefusalWhoseCommitFailedIsSaidAgain(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	p.settle()
	p.ledger.PlanAppends(drop)
	r.submitTo("nowhere", 1)
	p.settle() // fails
	p.settle() // the loop tries again within the second
	if got := r.kinds(); got != "input_rejected" {
		t.Fatalf("facts: %q, failures: %v", got, p.failures)
	}
}

func TestKeysOfRefusalsAreBounded(t *testing.T) {
	refused := newRefusals()
	now := time.Unix(1, 0)
	for i := range 3 * keys {
		now = now.Add(time.Millisecond)
		for range 2 {
			refused.fact(now, bus.Input{}, command{key: fmt.Sprint(i)}, errors.New("no"))
		}
		refused.settle(now, true)
	}
	if n := len(refused.known) + len(refused.draft); n > keys {
		t.Fatalf("%d keys are remembered", n)
	}
}

func TestShutDownAsksForNoMorePlans(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	id := r.submit(1)
	p.pass(time.Second)
	// A plan is under way when the shutdown comes.
	waiting := r.submit(2)
	p.step(p.decider)
	p.now = p.now.Add(debounce)
	p.step(p.decider)
	if p.decider.pending == nil {
		t.Fatal("no question is under way")
	}
	r.answerPlans(p)
	r.request("shutdown", weftv1.Request_builder{ShutDown: &weftv1.ShutDown{}})
	asked := r.asked
	p.pass(time.Minute)
	for _, j := range []string{id, waiting} {
		if j := p.job(j); j.Phase != cell.Queued || j.Restarts != 0 {
			t.Errorf("%s is %s with %d restarts", j.ID, j.Phase, j.Restarts)
		}
	}
	if r.asked != asked || p.decider.pending != nil {
		t.Errorf("%d more questions", r.asked-asked)
	}
}

func TestThreeRefusalsClaimTheNodes(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	p.pass(time.Second)
	refuse := true
	r.planner = func(s *cell.State) []*weftv1.PlanStep {
		steps := r.firstFit(s)
		if refuse && len(steps) > 0 {
			steps[0].GetStart().GetPlacements()[0].SetGeneration(99) // of an inventory that is not there
		}
		return steps
	}
	id := r.submit(1)
	for range 40 { // 10 ms each: long enough for four plans
		p.now = p.now.Add(10 * time.Millisecond)
		p.settle()
		if p.state().Claim(id) != nil {
			break
		}
	}
	c := p.state().Claim(id)
	if c == nil || strings.Join(c.Nodes, ",") != "n1" {
		t.Fatalf("claim %+v after %d plans", c, r.asked)
	}
	if n := p.decider.refused[id]; n != 4 {
		t.Errorf("claimed at refusal %d", n)
	}
	refuse = false
	p.pass(time.Second)
	if j := p.job(id); j.Phase != cell.Running {
		t.Fatal(j.Phase)
	}
	if len(p.decider.refused) > 0 {
		t.Error("the refusals are remembered after the start")
	}
}

func TestAStepThatIsRefusedForEverCostsLittle(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	r.planner = func(s *cell.State) []*weftv1.PlanStep {
		steps := r.firstFit(s)
		for _, st := range steps {
			st.GetStart().GetPlacements()[0].SetGeneration(99)
		}
		return steps
	}
	r.submit(1)
	p.pass(time.Minute) // beats let the decider look once a second
	first := r.asked
	p.pass(10 * time.Minute)
	if n := r.asked - first; n < 60 || n > 300 {
		t.Errorf("%d plans in ten minutes", n)
	}
	if n := strings.Count(p.logged.String(), "plan step refused"); n > 20 {
		t.Errorf("%d lines in the log", n)
	}
}

func TestAGangTooLargeForACommitStopsNobody(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	p.pass(time.Second)
	big := unit{step: nil, facts: []*weftv1.Fact{weftv1.Fact_builder{NodeSilent: weftv1.NodeSilent_builder{
		Node: new(strings.Repeat("x", ledger.MaxCommit)),
	}.Build()}.Build()}}
	big.step = placeOf("job-x")
	if err := p.decider.commit(context.Background(), p.now, []unit{big}); err != nil {
		t.Fatalf("a step of a plan stops the scheduler: %v", err)
	}
	if p.decider.refused["job-x"] != 1 {
		t.Error("it does not count as refused")
	}
	big.step = nil
	if err := p.decider.commit(context.Background(), p.now, []unit{big}); err == nil {
		t.Error("what time made true was dropped")
	}
}

package shell

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// save publishes one commit of the checkpoint service.
func (r *rig) save(entries ...*weftv1.Entry) {
	r.t.Helper()
	data, err := ledger.Encode(weftv1.Commit_builder{Term: new(uint64(1)), Id: new("c"), TimeNs: new(r.now.UnixNano()), Entries: entries}.Build())
	if err != nil {
		r.t.Fatal(err)
	}
	r.publish(bus.StreamCheckpoints, bus.SubjectCheckpoint, data)
}

func committed(job, name string, step uint64) *weftv1.Entry {
	ref := weftv1.SaveRef_builder{Save: &name, Attempt: new(uint32(1)), Step: &step, Class: new(weftv1.SaveClass_SAVE_CLASS_FULL)}.Build()
	return ledger.FactEntry(weftv1.CheckpointFact_builder{SaveCommitted: weftv1.SaveCommitted_builder{Job: &job, Save: ref}.Build()}.Build())
}

func quarantined(job, name string) *weftv1.Entry {
	return ledger.FactEntry(weftv1.CheckpointFact_builder{SaveQuarantined: weftv1.SaveQuarantined_builder{Job: &job, Save: &name}.Build()}.Build())
}

func TestTheNextAttemptResumesFromTheNewestSaveThatStands(t *testing.T) {
	r, p, id := running(t)
	r.save(ledger.NewEntry(ledger.KindLeaderElected, weftv1.LeaderElected_builder{Term: new(uint64(1))}.Build()))
	r.save(committed(id, "s1", 10), committed(id, "s2", 20))
	r.save(committed(id, "s3", 30))
	r.save(quarantined(id, "s3"))
	r.save(committed(jobID(99), "s1", 10)) // of a job that nobody knows
	p.pass(time.Second)
	r.agents["n1"].say(weftv1.Report_builder{RanksExited: weftv1.RanksExited_builder{Job: &id, Attempt: new(uint32(1)), Exits: []*weftv1.RankExit{
		weftv1.RankExit_builder{Rank: new(uint32(0)), ExitCode: new(int32(1))}.Build(),
	}}.Build()})
	p.pass(time.Minute)
	j := p.job(id)
	if j.Attempts != 2 || j.Phase != cell.Running || j.Attempt.ResumeFrom.GetSave() != "s2" {
		t.Fatalf("%s in attempt %d, from %v", j.Phase, j.Attempts, j.Attempt.ResumeFrom)
	}
	if got := r.kinds("input_rejected"); got != "" {
		t.Fatal(got)
	}
	p.checkEvents()
	p.checkAssignments()
}

func TestAnAllocatorThatIsBehindOrAwayIsAskedAgain(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	r.agent("n1")
	p.settle()
	id := r.submit(1)
	// next lets time pass in small steps until the allocator is asked, and returns the question.
	next := func(within time.Duration) bus.Request {
		t.Helper()
		for end := p.now.Add(within); p.now.Before(end); p.now = p.now.Add(10 * time.Millisecond) {
			p.step(p.decider)
			if q := r.plans.Next(1); len(q) == 1 {
				return q[0]
			}
		}
		t.Fatalf("no question within %s", within)
		return bus.Request{}
	}
	next(time.Second).Respond(nil, &bus.Refusal{Code: bus.CodeBehind, Message: "at 1, asked for 4"})
	if p.logged.Len() > 0 {
		t.Errorf("being behind is no news: %s", p.logged)
	}
	next(200*time.Millisecond).Respond(nil, &bus.Refusal{Code: bus.CodeUnavailable, Message: "no"})
	q := next(2 * time.Second)
	if n := strings.Count(p.logged.String(), "no plan"); n != 1 {
		t.Errorf("%d lines of an allocator that cannot plan", n)
	}
	q.Respond([]byte{0xff}, nil) // unreadable
	next(2 * time.Second)        // no answer at all
	q = next(planTimeout + 2*time.Second)
	if n := strings.Count(p.logged.String(), "no plan"); n != 2 { // the third one is not told
		t.Errorf("%d lines:\n%s", n, p.logged)
	}
	data, err := proto.Marshal(weftv1.Plan_builder{Id: new("p"), Steps: r.firstFit(p.state())}.Build())
	if err != nil {
		t.Fatal(err)
	}
	q.Respond(data, nil)
	p.pass(time.Second)
	if j := p.job(id); j.Phase != cell.Running {
		t.Fatal(j.Phase)
	}
}

// Time alone must wake the decider while a question is under way: an answer that never comes wakes nobody.
func TestAQuestionEndsByItself(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	p.settle()
	r.submit(1)
	p.step(p.decider)
	p.now = p.now.Add(debounce)
	_, next, err := p.decider.Step(t.Context(), p.now)
	if err != nil || p.decider.pending == nil || next.IsZero() || next.After(p.now.Add(planTimeout)) {
		t.Fatalf("steps again at %v, %v", next, err)
	}
}

func TestAPlanMayEvictForABeneficiary(t *testing.T) {
	r := newRig(t)
	p := r.leader("a")
	r.queue("demo")
	n1 := r.agent("n1")
	p.pass(time.Second)
	for i := range 4 {
		r.submit(i)
	}
	p.pass(6 * time.Second) // one start a second
	urgent := r.submit(9)
	evicted := false
	r.planner = func(s *cell.State) []*weftv1.PlanStep {
		if evicted {
			return r.firstFit(s)
		}
		evicted = true
		return []*weftv1.PlanStep{
			weftv1.PlanStep_builder{Evict: weftv1.Evict_builder{Beneficiary: &urgent, Victims: []string{jobID(99)}}.Build()}.Build(), // refused
			weftv1.PlanStep_builder{Evict: weftv1.Evict_builder{Beneficiary: &urgent, Victims: []string{jobID(2)}, Reason: new("share")}.Build()}.Build(),
		}
	}
	p.pass(5 * time.Second)
	if j := p.job(urgent); j.Phase != cell.Running {
		t.Fatalf("the beneficiary is %s; %s; %s", j.Phase, r.kinds(), p.logged)
	}
	if j := p.job(jobID(2)); j.Phase != cell.Queued || j.Restarts != 0 {
		t.Fatalf("the victim is %s with %d restarts", j.Phase, j.Restarts)
	}
	if n := len(n1.runs()); n != 5 {
		t.Fatalf("%d runs", n)
	}
	p.checkEvents()
}

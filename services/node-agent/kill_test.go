package nodeagent

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/testkit"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

func netListen(port int) (net.Listener, error) { return net.Listen("tcp", fmt.Sprintf(":%d", port)) }

// TestAKilledAgentIsFollowedByOneThatAdopts is the bar: SIGKILL of the agent while ranks run, one of which ends while
// there is no agent.
func TestAKilledAgentIsFollowedByOneThatAdopts(t *testing.T) {
	ways(t, func(t *testing.T, root string) {
		n := onNATS(t, root)
		n.assign(attempt("job-a", 1, n.spec(n.ranks("term"), nil)), attempt("job-b", 1, n.spec([]string{"sh", "-c", "sleep 600"}, nil)))
		at := n.started(n.started(0))
		a, b := n.pids("job-a", "1"), n.pids("job-b", "1")
		n.kill()
		for _, ids := range []map[uint32]bool{{0: a[0].Alive(), 1: a[1].Alive()}, {0: b[0].Alive(), 1: b[1].Alive()}} {
			if !ids[0] || !ids[1] {
				t.Fatalf("ranks died with the agent: %v", ids)
			}
		}
		n.exit(1, 7)
		testkit.Eventually(t, waitLong, func() bool { return !a[1].Alive() })
		n.start()
		hello, at := n.said(at, "hello", func(r *weftv1.Report) bool { return r.HasHello() })
		if h := hello.GetHello().GetHeld(); len(h) != 2 {
			t.Fatalf("held: %v", h)
		}
		x, _ := n.exited(at)
		if e := x.GetExits(); len(e) != 1 || e[0].GetRank() != 1 || e[0].GetExitCode() != 7 {
			t.Fatalf("exits: %v", e)
		}
		n.started(n.started(at))
		for job, before := range map[string]map[uint32]string{"job-a": {0: fmt.Sprint(a[0]), 1: fmt.Sprint(a[1])}, "job-b": {0: fmt.Sprint(b[0]), 1: fmt.Sprint(b[1])}} {
			for rank, id := range n.pids(job, "1") {
				if fmt.Sprint(id) != before[rank] {
					t.Errorf("%s rank %d was restarted: %v, was %s", job, rank, id, before[rank])
				}
			}
		}
		// The adopted ones still obey.
		n.assign(stopping(attempt("job-b", 1, ""), time.Second))
		n.said(at, "job-b released", func(r *weftv1.Report) bool { return r.GetAttemptReleased().GetJob() == "job-b" })
		testkit.Eventually(t, waitLong, func() bool { return !a[0].Alive() && !b[0].Alive() && !b[1].Alive() })
		last := uint64(0)
		for _, r := range n.reports {
			if r.GetSeq() <= last {
				t.Fatalf("report numbers repeat:\n%s", n.transcript())
			}
			last = r.GetSeq()
		}
	})
}

// TestAgentsKilledAgainAndAgain kills the agent at arbitrary moments of launches; every attempt must nevertheless run
// exactly once and be released.
func TestAgentsKilledAgainAndAgain(t *testing.T) {
	n := onNATS(t, "")
	at := 0
	for i := range 8 {
		job := fmt.Sprintf("job-%d", i)
		mark := n.ctl + "-" + job
		n.assign(attempt(job, 1, n.spec([]string{"sh", "-c", "echo $$ >> " + mark + "-$RANK; sleep 0.05"}, nil)))
		time.Sleep(time.Duration(i) * 4 * time.Millisecond) // the moment is the point of this test
		n.kill()
		n.start()
		var r *weftv1.Report
		r, at = n.said(at, job+" released", func(r *weftv1.Report) bool { return r.GetAttemptReleased().GetJob() == job })
		if !r.GetAttemptReleased().GetCompleted() {
			t.Fatalf("%v\n%s", r, n.transcript())
		}
		for rank := range 2 {
			b := readLines(t, fmt.Sprintf("%s-%d", mark, rank))
			if len(b) != 1 {
				t.Errorf("%s rank %d ran %d times", job, rank, len(b))
			}
		}
	}
}

// TestTheShimKeepsTheFenceWithoutAnAgent: an agent that died must not let ranks outlive the fence.
func TestTheShimKeepsTheFenceWithoutAnAgent(t *testing.T) {
	m := inMemory(t, func(c *Config) { c.Fence, c.FenceMargin = 2*time.Second, 500*time.Millisecond })
	m.assign(attempt("job-a", 1, m.spec(m.ranks(), func(s *weftv1.JobSpec) {
		s.SetCheckpoint(weftv1.CheckpointPolicy_builder{GraceNs: new(int64(200 * time.Millisecond))}.Build())
	})))
	m.started(0)
	pids := m.pids("job-a", "1")
	freeze(t, pids[1])
	m.stop()
	began := time.Now()
	testkit.Eventually(t, waitLong, func() bool { return !pids[0].Alive() && !pids[1].Alive() })
	if d := time.Since(began); d < 500*time.Millisecond || d > 2500*time.Millisecond {
		t.Errorf("dead %v after the agent ended; the fence is 2 s after the last contact", d)
	}
	var x shim.Exit
	testkit.Eventually(t, waitLong, func() bool {
		ok, err := shim.ReadFile(filepath.Join(m.dir, "runs", "job-a-1"), shim.FileExit, &x)
		return ok && err == nil
	})
	for _, r := range x.Ranks {
		if !r.Asked {
			t.Errorf("counts as a failure: %+v", r)
		}
	}
}

// TestAnAgentMayAskWhereASaveLies: with a node's own rights on a real bus, where a service answers only the caller's
// inbox.
func TestAnAgentMayAskWhereASaveLies(t *testing.T) {
	n := onNATS(t, cgroup.None)
	srv, err := n.caller.Serve(bus.SubjectNodeRPC("checkpoint", "locate", "*"), "checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	a := attempt("job-a", 2, n.spec(n.ranks(), nil))
	a.SetResumeFrom(weftv1.SaveRef_builder{Save: new("a1-s000000000005-full")}.Build())
	n.assign(a)
	select {
	case <-srv.Wake():
	case <-time.After(waitLong):
		t.Fatal("never asked")
	}
	var q weftv1.LocateRequest
	r := srv.Next(1)[0]
	if err := proto.Unmarshal(r.Data, &q); err != nil || q.GetJob() != "job-a" || q.GetSave() != "a1-s000000000005-full" {
		t.Fatalf("asked %v: %v", &q, err)
	}
	data, err := proto.Marshal(weftv1.LocateReply_builder{Error: new("quarantined")}.Build())
	if err != nil {
		t.Fatal(err)
	}
	r.Respond(data, nil)
	f, _ := n.said(0, "restore failed", func(r *weftv1.Report) bool { return r.HasRestoreFailed() })
	if x := f.GetRestoreFailed(); x.GetSave() != "a1-s000000000005-full" || x.GetMessage() != "quarantined" {
		t.Fatalf("got %v", x)
	}
}

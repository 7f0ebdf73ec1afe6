package nodeagent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/testkit"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// pids are the ranks' processes of a run, by its files.
func (f *fabric) pids(job string, n string) map[uint32]proc.ID {
	f.t.Helper()
	var st shim.Started
	ok, err := shim.ReadFile(filepath.Join(f.dir, "runs", job+"-"+n), shim.FileStarted, &st)
	if err != nil || !ok {
		f.t.Fatalf("no ranks of %s/%s: %v", job, n, err)
	}
	out := map[uint32]proc.ID{}
	for _, r := range st.Ranks {
		out[r.Rank] = r.ID
	}
	return out
}

// ways runs a test with cgroups, where this machine allows them, and without.
func ways(t *testing.T, f func(t *testing.T, root string)) {
	t.Helper()
	m := cgroup.Open("", "weft-test-ways")
	if m.Works() {
		_ = m.Remove()
		t.Run("cgroup", func(t *testing.T) { f(t, "") })
	} else {
		t.Logf("not tested with cgroups: %s", m.Condition().GetMessage())
	}
	t.Run("no cgroup", func(t *testing.T) { f(t, cgroup.None) })
}

func TestAJobFromAssignmentToRelease(t *testing.T) {
	ways(t, func(t *testing.T, root string) {
		m := inMemory(t, func(c *Config) { c.CgroupRoot = root })
		hello, at := m.said(0, "hello", func(r *weftv1.Report) bool { return r.HasHello() })
		inv := hello.GetHello().GetInventory()
		if len(inv.GetDevices()) != 8 || !inv.GetSimulated() || inv.GetCpuMilli() == 0 || inv.GetMemoryBytes() == 0 || hello.GetBootId() == "" {
			t.Fatalf("hello: %v", hello)
		}
		if got := inv.GetConditions()[0].GetStatus() == weftv1.ConditionStatus_CONDITION_STATUS_OK; got != (root == "") {
			t.Fatalf("conditions: %v", inv.GetConditions())
		}
		a := attempt("job-a", 1, m.spec(m.ranks(), nil))
		m.assign(a)
		at = m.started(at)
		m.exit(0, 0)
		m.exit(1, 0)
		r, at := m.released(at)
		if !r.GetCompleted() || r.GetJob() != "job-a" || r.GetAttempt() != 1 {
			t.Fatalf("released: %v", r)
		}
		if at != len(m.reports) || len(m.reports) != 3 {
			t.Fatalf("said more than hello, started, released:\n%s", m.transcript())
		}
		logs := m.bus.Inbox(bus.StreamLogs, "")
		in, err := logs.Next(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		var text string
		for _, i := range in {
			var c weftv1.LogChunk
			if err := proto.Unmarshal(i.Data, &c); err != nil {
				t.Fatal(err)
			}
			text += string(c.GetData())
		}
		if !strings.Contains(text, "rank 0 of 2 on n1\n") || !strings.Contains(text, "rank 1 of 2 on n1\n") {
			t.Fatalf("output before the release: %q", text)
		}
		run := filepath.Join(m.dir, "runs", "job-a-1")
		if _, err := os.Stat(run); err != nil {
			t.Fatalf("the run directory must stay while the assignment names it: %v", err)
		}
		m.assign()
		testkit.Eventually(t, waitLong, func() bool { _, err := os.Stat(run); return os.IsNotExist(err) })
	})
}

func TestAFailedRankIsSaidAndOthersRunOn(t *testing.T) {
	m := inMemory(t, nil)
	a := attempt("job-a", 1, m.spec(m.ranks(), nil))
	m.assign(a)
	at := m.started(0)
	pids := m.pids("job-a", "1")
	m.exit(1, 3)
	x, at := m.exited(at)
	if e := x.GetExits(); len(e) != 1 || e[0].GetRank() != 1 || e[0].GetExitCode() != 3 || e[0].GetSignal() != 0 || e[0].GetLastWords() != "rank gives up with 3" {
		t.Fatalf("exits: %v", e)
	}
	if !pids[0].Alive() {
		t.Fatal("the other rank was ended; that is the scheduler's to decide")
	}
	// A rank that nobody told to die.
	if err := pids[0].Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	x, at = m.exited(at)
	if e := x.GetExits(); len(e) != 2 || e[1].GetRank() != 0 || e[1].GetSignal() != 9 {
		t.Fatalf("exits: %v", e)
	}
	if r, _ := m.released(at); r.GetCompleted() {
		t.Fatal("completed, with failed ranks")
	}
}

func TestStopWithGraceAndAFrozenRank(t *testing.T) {
	ways(t, func(t *testing.T, root string) {
		m := inMemory(t, func(c *Config) { c.CgroupRoot = root })
		a := attempt("job-a", 1, m.spec(m.ranks("term"), nil))
		m.assign(a)
		at := m.started(0)
		pids := m.pids("job-a", "1")
		testkit.Eventually(t, waitLong, func() bool {
			b, err := os.ReadFile(filepath.Join(m.dir, "logs", "job-a", "1", "rank-0.out"))
			return err == nil && len(b) > 0
		})
		freeze(t, pids[1])
		began := time.Now()
		m.assign(stopping(a, 400*time.Millisecond))
		r, _ := m.released(at)
		if d := time.Since(began); d < 400*time.Millisecond {
			t.Errorf("released after %v, within the grace of a rank that did not end", d)
		}
		if r.GetCompleted() {
			t.Error("a stopped attempt completed")
		}
		for _, x := range m.reports {
			if x.HasRanksExited() {
				t.Errorf("ends that were asked for were said as failures: %v", x)
			}
		}
		out, err := os.ReadFile(filepath.Join(m.dir, "logs", "job-a", "1", "rank-0.out"))
		if err != nil || !strings.HasSuffix(string(out), "saved\n") {
			t.Errorf("rank 0 could not save: %q %v", out, err)
		}
		if pids[1].Alive() {
			t.Error("the frozen rank lives")
		}
	})
}

func TestOrphansDieWithTheirJob(t *testing.T) {
	ways(t, func(t *testing.T, root string) {
		m := inMemory(t, func(c *Config) { c.CgroupRoot = root })
		script := `setsid sh -c 'echo $$ > ` + m.ctl + `-orphan-$RANK; exec sleep 600' & while ! [ -s ` + m.ctl + `-orphan-$RANK ]; do sleep 0.01; done`
		a := attempt("job-a", 1, m.spec([]string{"sh", "-c", script}, nil))
		m.assign(a)
		r, _ := m.released(m.started(0))
		if !r.GetCompleted() {
			t.Errorf("not completed: %v", r)
		}
		for _, rank := range []string{"0", "1"} {
			b, err := os.ReadFile(m.ctl + "-orphan-" + rank)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat("/proc/" + strings.TrimSpace(string(b))); !os.IsNotExist(err) {
				t.Errorf("the orphan of rank %s lives after the release", rank)
			}
		}
	})
}

func TestAStaleAssignmentIsRefusedAlsoAfterARestart(t *testing.T) {
	m := inMemory(t, nil)
	a, b := attempt("job-a", 1, m.spec(m.ranks(), nil)), attempt("job-b", 1, m.spec(m.ranks(), nil))
	m.assignAt(7, a)
	at := m.started(0)
	pids := m.pids("job-a", "1")
	m.restart()
	m.assignAt(6, b)
	_, at = m.said(at, "hello", func(r *weftv1.Report) bool { return r.HasHello() })
	at = m.started(at)
	m.assignAt(8, a)
	m.exit(0, 0)
	m.exit(1, 0)
	m.released(at)
	for _, r := range m.reports {
		if r.GetRanksStarted().GetJob() == "job-b" || r.GetAttemptReleased().GetJob() == "job-b" {
			t.Fatalf("the stale assignment was obeyed: %v", r)
		}
	}
	if len(pids) != 2 {
		t.Fatalf("pids: %v", pids)
	}
}

func TestStoppedBeforeItBegan(t *testing.T) {
	m := inMemory(t, nil)
	m.assign(stopping(attempt("job-a", 1, m.spec(m.ranks(), nil)), time.Second))
	if r, _ := m.released(0); r.GetCompleted() {
		t.Fatal("completed")
	}
	m.assign()
	m.assign(attempt("job-b", 1, m.spec(m.ranks(), nil)))
	m.started(0)
	for _, r := range m.reports {
		if r.GetRanksStarted().GetJob() == "job-a" {
			t.Fatal("it was started")
		}
	}
}

func TestWhatCannotStartSaysWhy(t *testing.T) {
	m := inMemory(t, nil)
	busy := listen(t, 20007)
	defer busy.Close()
	port := attempt("job-port", 1, m.spec(m.ranks(), nil))
	port.SetMasterPort(20007)
	for _, c := range []struct {
		a    *weftv1.AssignedAttempt
		kind weftv1.CauseKind
		say  string
	}{
		{attempt("job-command", 1, m.spec([]string{"no-such-command"}, nil)), weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, "no-such-command"},
		{attempt("job-spec", 1, "spec-0000"), weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, "spec-0000"},
		{attempt("job-bundle", 1, m.spec(m.ranks(), func(s *weftv1.JobSpec) { s.SetBundle("b3-00") })), weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, "b3-00"},
		{port, weftv1.CauseKind_CAUSE_KIND_PORT_BUSY, "20007"},
	} {
		job := c.a.GetJob()
		m.assign(c.a)
		r, at := m.said(0, job, func(r *weftv1.Report) bool { return r.GetLaunchFailed().GetJob() == job })
		if f := r.GetLaunchFailed(); f.GetKind() != c.kind || !strings.Contains(f.GetMessage(), c.say) {
			t.Errorf("%s: %v", job, f)
		}
		m.said(at, job+" released", func(r *weftv1.Report) bool { return r.GetAttemptReleased().GetJob() == job })
		// The next agent says the same, and does not try again.
		at = len(m.reports)
		m.restart()
		_, at = m.said(at, job+" again", func(r *weftv1.Report) bool { return r.GetLaunchFailed().GetJob() == job })
		m.said(at, job+" released again", func(r *weftv1.Report) bool { return r.GetAttemptReleased().GetJob() == job })
	}
}

func TestALostShimIsAFailureAndNothingSurvivesIt(t *testing.T) {
	ways(t, func(t *testing.T, root string) {
		m := inMemory(t, func(c *Config) { c.CgroupRoot = root })
		m.assign(attempt("job-a", 1, m.spec(m.ranks(), nil)))
		at := m.started(0)
		pids := m.pids("job-a", "1")
		var sp proc.ID
		if ok, err := shim.ReadFile(filepath.Join(m.dir, "runs", "job-a-1"), shim.FileShim, &sp); err != nil || !ok {
			t.Fatal(err)
		}
		if err := sp.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		x, at := m.exited(at)
		if len(x.GetExits()) != 2 || x.GetExits()[0].GetSignal() != 9 || !strings.Contains(x.GetExits()[0].GetLastWords(), "shim") {
			t.Fatalf("exits: %v", x)
		}
		if r, _ := m.released(at); r.GetCompleted() {
			t.Fatal("completed")
		}
		for rank, p := range pids {
			if p.Alive() {
				t.Errorf("rank %d lives after the release", rank)
			}
		}
	})
}

func TestWithoutContactRanksDieBeforeTheFence(t *testing.T) {
	m := inMemory(t, func(c *Config) { c.Fence, c.FenceMargin = 1500*time.Millisecond, 300*time.Millisecond })
	a := attempt("job-a", 1, m.spec(m.ranks("term"), func(s *weftv1.JobSpec) {
		s.SetCheckpoint(weftv1.CheckpointPolicy_builder{GraceNs: new(int64(500 * time.Millisecond))}.Build())
	}))
	m.assign(a)
	at := m.started(0)
	pids := m.pids("job-a", "1")
	freeze(t, pids[1])
	m.mu.Lock()
	m.silent = true
	m.mu.Unlock()
	began := time.Now()
	r, _ := m.released(at)
	if d := time.Since(began); d < 900*time.Millisecond || d > 1500*time.Millisecond {
		t.Errorf("dead %v after contact was lost; the fence is at 1.5 s, SIGKILL at 1.2 s", d)
	}
	if r.GetCompleted() || pids[1].Alive() {
		t.Errorf("released: %v", r)
	}
}

func listen(t *testing.T, port int) interface{ Close() error } {
	t.Helper()
	l, err := netListen(port)
	if err != nil {
		t.Skipf("port %d is in use on this machine: %v", port, err)
	}
	return l
}

func readLines(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// freeze stops a process, and waits until it has: a signal sent meanwhile could still be handled first.
func freeze(t *testing.T, id proc.ID) {
	t.Helper()
	if err := id.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, waitLong, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", id.Pid))
		return err == nil && strings.Contains(string(b), ") T ")
	})
}

// Ranks that told of progress and stop doing so are reported once; those that never did may be silent for ever.
func TestHungRanksAreSaid(t *testing.T) {
	m := inMemory(t, nil)
	soon := func(s *weftv1.JobSpec) { s.SetHangAfterNs(int64(300 * time.Millisecond)) }
	quiet := attempt("job-quiet", 1, m.spec(m.ranks(), soon))
	telling := attempt("job-telling", 1, m.spec(m.ranks("beat"), soon))
	for _, p := range telling.GetPlacements() { // beside the other job
		p.SetDevices([]uint32{4, 5})
		p.SetPortBase(p.GetPortBase() + 50)
	}
	m.assign(quiet, telling)
	at := m.started(m.started(0))
	testkit.Eventually(t, waitLong, func() bool {
		_, err := os.Stat(filepath.Join(m.dir, "runs", "job-telling-1", shim.FileBeat(0)))
		return err == nil
	})
	if err := os.WriteFile(m.ctl+"-hang", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, at := m.said(at, "hung", func(r *weftv1.Report) bool { return r.HasRanksHung() })
	h := r.GetRanksHung()
	if h.GetJob() != "job-telling" || h.GetAttempt() != 1 || h.GetStep() == 0 || time.Duration(h.GetSilentNs()) < 300*time.Millisecond {
		t.Errorf("%v", h)
	}
	for _, id := range m.pids("job-telling", "1") {
		if !id.Alive() {
			t.Error("a rank was ended; that is the scheduler's to decide")
		}
	}
	for i := range 2 {
		m.exit(i, 0)
	}
	_, at = m.released(at)
	_, at = m.released(at)
	if at != len(m.reports) {
		t.Errorf("said more than that:\n%s", m.transcript())
	}
}

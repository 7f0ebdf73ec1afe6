package nodeagent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/jobspec"
	"github.com/weft-fabric/weft/libs/testkit"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
)

// This test binary is also a shim, an agent that can be killed, and a rank that does what a file says.
func TestMain(m *testing.M) {
	MaybeShim()
	switch {
	case len(os.Args) > 1 && os.Args[1] == "rank":
		os.Exit(rankMain(os.Args[2:]))
	case os.Getenv("TEST_AGENT_DIR") != "":
		agentMain()
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

const waitLong = 20 * time.Second

// rankMain obeys the file <first argument>-<RANK>: it exits with the code in it. "term" as second argument exits 0 on
// SIGTERM, as a script that saves does; "beat" tells of progress until the file <first argument>-hang exists.
func rankMain(args []string) int {
	caught := make(chan os.Signal, 1)
	if len(args) > 1 && args[1] == "term" {
		signal.Notify(caught, unix.SIGTERM)
	}
	step := 0
	fmt.Printf("rank %s of %s on %s\n", os.Getenv("RANK"), os.Getenv("WORLD_SIZE"), os.Getenv("WEFT_NODE"))
	for {
		select {
		case <-caught:
			fmt.Println("saved")
			return 0
		case <-time.After(2 * time.Millisecond):
		}
		if _, err := os.Stat(args[0] + "-hang"); err != nil && len(args) > 1 && args[1] == "beat" {
			step++
			file := os.Getenv("WEFT_BEAT_FILE")
			if os.WriteFile(file+".tmp", fmt.Appendf(nil, `{"step": %d}`, step), 0o600) == nil {
				_ = os.Rename(file+".tmp", file)
			}
		}
		if b, err := os.ReadFile(args[0] + "-" + os.Getenv("RANK")); err == nil {
			code, err := strconv.Atoi(string(b))
			if err != nil {
				continue
			}
			if code != 0 {
				fmt.Fprintf(os.Stderr, "Traceback\nrank gives up with %d\n", code)
			}
			return code
		}
	}
}

// agentMain is an agent in a process of its own, on the bus of the test.
func agentMain() {
	ctx := context.Background()
	conn, err := bus.Dial(ctx, bus.Options{
		URL: os.Getenv("TEST_URL"), User: os.Getenv("TEST_USER"), Password: os.Getenv("TEST_PASSWORD"), Name: "agent",
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sim, err := device.NewSim("a100x8", 1)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cfg := testConfig(os.Getenv("TEST_AGENT_DIR"))
	cfg.CgroupRoot = os.Getenv("TEST_CGROUP")
	a := New(cfg, Connect(ctx, cfg.Node, conn, sim))
	fmt.Fprintln(os.Stderr, a.Run(ctx))
	os.Exit(1)
}

func testConfig(dir string) Config {
	cfg := DefaultConfig()
	cfg.Node, cfg.Dir, cfg.Address = "n1", dir, "127.0.0.1"
	cfg.Beat = 50 * time.Millisecond
	return cfg
}

// fabric is the rest of the world, as an agent sees it.
type fabric struct {
	t       testing.TB
	dir     string // the agent's
	ctl     string // prefix of the files that ranks obey
	out     bus.Outbox
	bundles bus.Objects
	in      bus.Inbox
	seq     uint64 // of the last assignment
	stored  uint64

	mu      sync.Mutex
	reports []*weftv1.Report
	silent  bool // answers no beats
	caller  bus.Caller
}

func newFabric(t testing.TB, out bus.Outbox, reports bus.Inbox, bundles bus.Objects, caller bus.Caller) *fabric {
	t.Helper()
	f := &fabric{t: t, dir: filepath.Join(t.TempDir(), "node"), ctl: filepath.Join(t.TempDir(), "exit"), out: out, in: reports, bundles: bundles, caller: caller}
	s, err := caller.Serve("weft.beat.*", "scheduler")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait(); s.Close() })
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.Wake():
			}
			for _, r := range s.Next(10) {
				f.mu.Lock()
				silent := f.silent
				f.mu.Unlock()
				if !silent {
					b, _ := proto.Marshal(weftv1.BeatAnswer_builder{Term: new(uint64(1))}.Build())
					r.Respond(b, nil)
				}
			}
		}
	})
	// Whatever a test left running dies with it.
	t.Cleanup(func() { f.killRuns() })
	return f
}

func (f *fabric) killRuns() {
	dirs, _ := filepath.Glob(filepath.Join(f.dir, "runs", "*"))
	for _, d := range dirs {
		g := cgroup.Group{Marker: "WEFT_RUN=" + d}
		testkit.Eventually(f.t, waitLong, func() bool {
			_ = g.Kill()
			ok, _ := g.Empty()
			return ok
		})
	}
	if m := cgroup.Open("", cgroupName(testConfig(f.dir))); m.Works() {
		testkit.Eventually(f.t, waitLong, func() bool {
			_ = m.Sweep(func(string) bool { return false })
			return m.Remove() == nil
		})
	}
}

// memory runs agents in this process, on a bus in memory.
type memory struct {
	*fabric
	bus  *membus.Bus
	cfg  Config
	sim  *device.Sim
	stop func()
}

func inMemory(t testing.TB, change func(*Config)) *memory {
	t.Helper()
	b := membus.New()
	f := newFabric(t, b.Outbox(bus.StreamAssignments), b.Inbox(bus.StreamReports, ""), b.Objects(bus.BucketBundles), b.Caller())
	m := &memory{fabric: f, bus: b, cfg: testConfig(f.dir)}
	if change != nil {
		change(&m.cfg)
	}
	sim, err := device.NewSim("a100x8", 1)
	if err != nil {
		t.Fatal(err)
	}
	m.sim = sim
	t.Cleanup(func() { m.stop() })
	m.start()
	return m
}

func (m *memory) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	a := New(m.cfg, Deps{
		Device: m.sim, Assignments: m.bus.Inbox(bus.StreamAssignments, bus.SubjectAssign(m.cfg.Node)),
		Reports: m.bus.Outbox(bus.StreamReports), Saves: m.bus.Outbox(bus.StreamSaves), Logs: m.bus.Outbox(bus.StreamLogs), Metrics: m.bus.Outbox(bus.StreamMetrics),
		Caller: m.bus.Caller(), Bundles: m.bus.Objects(bus.BucketBundles),
	})
	go func() { done <- a.Run(ctx) }()
	m.stop = func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Errorf("agent: %v", err)
		}
		m.stop = func() {}
	}
}

// restart ends the agent and starts another; ranks are not told.
func (m *memory) restart() { m.stop(); m.start() }

// overNATS runs agents as processes of their own, on a real bus, so that they can be killed.
type overNATS struct {
	*fabric
	env []string
	cmd *exec.Cmd
}

func onNATS(t testing.TB, cgroupRoot string) *overNATS {
	t.Helper()
	b := testkit.Bus(t, "n1")
	f := newFabric(t, busnats.NewOutbox(b.Nodes, bus.StreamAssignments), busnats.NewInbox(t.Context(), b.Nodes, bus.StreamReports, ""),
		busnats.NewObjects(b.Nodes, bus.BucketBundles), busnats.NewCaller(b.Nodes))
	user, password, err := b.Server.Credentials(bus.NodeRole("n1"))
	if err != nil {
		t.Fatal(err)
	}
	n := &overNATS{fabric: f, env: append(os.Environ(), "TEST_AGENT_DIR="+f.dir, "TEST_URL="+b.Server.URL(), "TEST_USER="+user, "TEST_PASSWORD="+password, "TEST_CGROUP="+cgroupRoot)}
	t.Cleanup(n.kill)
	n.start()
	return n
}

func (n *overNATS) start() {
	n.t.Helper()
	n.cmd = exec.Command(os.Args[0])
	n.cmd.Env = n.env
	var log bytes.Buffer
	n.cmd.Stderr = &log
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("agent:\n%s", log.String())
		}
	})
}

// kill is SIGKILL: nothing is said, closed or removed.
func (n *overNATS) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Kill()
		_ = n.cmd.Wait()
		n.cmd = nil
	}
}

// spec makes a job's spec and stores it; more changes it first.
func (f *fabric) spec(command []string, more func(*weftv1.JobSpec)) string {
	f.t.Helper()
	s := weftv1.JobSpec_builder{
		Name: new("test"), Queue: new("demo"), Framework: new(weftv1.Framework_FRAMEWORK_PYTORCH),
		Groups: []*weftv1.Group{weftv1.Group_builder{
			Name: new("worker"), Min: new(uint32(2)), Max: new(uint32(2)), GpuMilli: new(int64(1000)), CpuMilli: new(int64(1000)), Command: command,
		}.Build()},
		Checkpoint: weftv1.CheckpointPolicy_builder{GraceNs: new(int64(2 * time.Second))}.Build(),
	}.Build()
	if more != nil {
		more(s)
	}
	b, err := jobspec.SpecBytes(s)
	if err != nil {
		f.t.Fatal(err)
	}
	key := jobspec.SpecKey(s)
	if err := f.bundles.Put(f.t.Context(), key, bytes.NewReader(b)); err != nil {
		f.t.Fatal(err)
	}
	return key
}

// ranks is the command of a rank that this binary plays.
func (f *fabric) ranks(more ...string) []string {
	return append([]string{os.Args[0], "rank", f.ctl}, more...)
}

// exit lets a rank end.
func (f *fabric) exit(rank, code int) {
	f.t.Helper()
	name := f.ctl + "-" + strconv.Itoa(rank)
	if err := os.WriteFile(name+".tmp", []byte(strconv.Itoa(code)), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		f.t.Fatal(err)
	}
}

// attempt is this node's part of an attempt of two ranks.
func attempt(job string, n uint32, spec string) *weftv1.AssignedAttempt {
	return weftv1.AssignedAttempt_builder{
		Job: &job, Attempt: &n, Spec: &spec, Size: new(uint32(2)), Tenant: new("demo"), Name: new("test"), Queue: new("demo"),
		MasterAddress: new("127.0.0.1"), MasterPort: new(uint32(20001)),
		Placements: []*weftv1.Placement{weftv1.Placement_builder{
			Node: new("n1"), Count: new(uint32(2)), Devices: []uint32{3, 5}, Milli: new(int64(1000)), Address: new("127.0.0.1"), PortBase: new(uint32(20001)), PortCount: new(uint32(2)),
		}.Build()},
		Peers: []*weftv1.RankRange{weftv1.RankRange_builder{Count: new(uint32(2)), Address: new("127.0.0.1"), PortBase: new(uint32(20001))}.Build()},
	}.Build()
}

// stopping is the same, to be ended within a time.
func stopping(a *weftv1.AssignedAttempt, within time.Duration) *weftv1.AssignedAttempt {
	a = proto.CloneOf(a)
	a.SetStop(weftv1.Cause_builder{Kind: new(weftv1.CauseKind_CAUSE_KIND_CANCELLED)}.Build())
	a.SetKillAtNs(time.Now().Add(within).UnixNano())
	return a
}

// assign is the scheduler's next word.
func (f *fabric) assign(attempts ...*weftv1.AssignedAttempt) {
	f.t.Helper()
	f.seq++
	f.assignAt(f.seq, attempts...)
}

func (f *fabric) assignAt(seq uint64, attempts ...*weftv1.AssignedAttempt) {
	f.t.Helper()
	data, err := proto.Marshal(weftv1.Assignment_builder{Node: new("n1"), LedgerSeq: &seq, Attempts: attempts}.Build())
	if err != nil {
		f.t.Fatal(err)
	}
	f.stored, err = f.out.Put(f.t.Context(), f.stored, bus.Message{Subject: bus.SubjectAssign("n1"), Data: data})
	if err != nil {
		f.t.Fatal(err)
	}
}

// said returns the first report after the from-th that pick accepts, and where to go on.
func (f *fabric) said(from int, what string, pick func(*weftv1.Report) bool) (*weftv1.Report, int) {
	f.t.Helper()
	var found *weftv1.Report
	at := from
	ok := func() bool {
		in, err := f.in.Next(f.t.Context(), 100)
		if err != nil {
			return false
		}
		for _, i := range in {
			r := &weftv1.Report{}
			if err := proto.Unmarshal(i.Data, r); err != nil {
				f.t.Error(err)
			}
			f.reports = append(f.reports, r)
		}
		for ; at < len(f.reports); at++ {
			if pick(f.reports[at]) {
				found = f.reports[at]
				at++
				return true
			}
		}
		return false
	}
	deadline := time.Now().Add(waitLong)
	for !ok() {
		if time.Now().After(deadline) {
			f.t.Fatalf("never said: %s; said:\n%s", what, f.transcript())
		}
		select {
		case <-f.in.Wake():
		case <-time.After(5 * time.Millisecond):
		}
	}
	return found, at
}

func (f *fabric) transcript() string {
	var b strings.Builder
	for _, r := range f.reports {
		if r.HasHello() {
			fmt.Fprintf(&b, "%d hello, held %v\n", r.GetSeq(), r.GetHello().GetHeld())
			continue
		}
		fmt.Fprintf(&b, "%d %v\n", r.GetSeq(), r)
	}
	return b.String()
}

func (f *fabric) started(from int) int {
	f.t.Helper()
	_, at := f.said(from, "started", func(r *weftv1.Report) bool { return r.HasRanksStarted() })
	return at
}

func (f *fabric) released(from int) (*weftv1.AttemptReleased, int) {
	f.t.Helper()
	r, at := f.said(from, "released", func(r *weftv1.Report) bool { return r.HasAttemptReleased() })
	return r.GetAttemptReleased(), at
}

func (f *fabric) exited(from int) (*weftv1.RanksExited, int) {
	f.t.Helper()
	r, at := f.said(from, "exited", func(r *weftv1.Report) bool { return r.HasRanksExited() })
	return r.GetRanksExited(), at
}

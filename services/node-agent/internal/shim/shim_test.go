package shim

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Arg {
		os.Exit(Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func noCgroup() (*os.File, error) { return nil, nil }

// launched is one run of shell scripts, a rank each.
type launched struct {
	t   *testing.T
	dir string
	l   *Launch
	id  proc.ID
}

func prepare(t *testing.T, scripts ...string) *launched {
	t.Helper()
	dir := t.TempDir()
	l := &Launch{Token: "t1", Job: "job", Attempt: 1, Group: cgroup.Group{Marker: "WEFT_RUN=" + dir}, GraceNS: int64(time.Second)}
	for i, s := range scripts {
		base := filepath.Join(dir, strconv.Itoa(i))
		l.Ranks = append(l.Ranks, Rank{
			Rank: uint32(i), Argv: []string{"sh", "-c", s}, Env: []string{l.Group.Marker, "PATH=" + os.Getenv("PATH"), "D=" + dir}, Dir: dir,
			Stdout: base + ".out", Stderr: base + ".err",
		})
	}
	if err := WriteFile(dir, FileLaunch, l, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		within(t, "nothing left", func() bool {
			_ = l.Group.Kill()
			ok, _ := l.Group.Empty()
			return ok
		})
	})
	return &launched{t: t, dir: dir, l: l}
}

func (r *launched) start(p *Pool) *launched {
	r.t.Helper()
	var err error
	if r.id, err = p.Start(r.dir, r.l); err != nil {
		r.t.Fatal(err)
	}
	return r
}

func run(t *testing.T, scripts ...string) *launched {
	t.Helper()
	return prepare(t, scripts...).start(NewPool("/proc/self/exe", noCgroup))
}

func (r *launched) exit() Exit {
	r.t.Helper()
	var x Exit
	within(r.t, FileExit, func() bool { ok, err := ReadFile(r.dir, FileExit, &x); return ok && err == nil })
	within(r.t, "the shim's end", func() bool { return !r.id.Alive() })
	return x
}

func (r *launched) has(name string) {
	r.t.Helper()
	within(r.t, name, func() bool { _, err := os.Stat(filepath.Join(r.dir, name)); return err == nil })
}

func within(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestExitsAreRecorded(t *testing.T) {
	r := run(t, "echo out; echo err >&2; exit 0", "exit 3", "kill -9 $$")
	x := r.exit()
	if len(x.Ranks) != 3 || x.Failure != "" || x.Completed(*r.l) {
		t.Fatalf("got %+v", x)
	}
	for _, e := range x.Ranks {
		want := []RankExit{{Rank: 0}, {Rank: 1, Code: 3}, {Rank: 2, Signal: 9}}[e.Rank]
		if e.TimeNS == 0 || e.Code != want.Code || e.Signal != want.Signal || e.Asked || e.Bad() != (e.Rank > 0) {
			t.Errorf("got %+v, want %+v", e, want)
		}
	}
	out, _ := os.ReadFile(filepath.Join(r.dir, "0.out"))
	err, _ := os.ReadFile(filepath.Join(r.dir, "0.err"))
	if string(out) != "out\n" || string(err) != "err\n" {
		t.Errorf("output %q, errors %q", out, err)
	}
}

func TestACommandThatIsNotThereStartsNothing(t *testing.T) {
	r := prepare(t, "touch $D/ran; sleep 60", "true")
	r.l.Ranks[1].Argv = []string{"no-such-command"}
	if err := WriteFile(r.dir, FileLaunch, r.l, false); err != nil {
		t.Fatal(err)
	}
	r.start(NewPool("/proc/self/exe", noCgroup))
	x := r.exit()
	if !strings.Contains(x.Failure, "rank 1") || !strings.Contains(x.Failure, "no-such-command") || len(x.Ranks) != 0 {
		t.Fatalf("got %+v", x)
	}
	if _, err := os.Stat(filepath.Join(r.dir, FileStarted)); err == nil {
		t.Error("it says that all ranks started")
	}
}

func TestStopGivesGraceToWhatAShellRuns(t *testing.T) {
	// The outer shells die of SIGTERM at once; what they run saves first.
	r := run(t, `sh -c "trap 'sleep 0.2; touch $D/saved; exit 0' TERM; touch $D/ready; while :; do sleep 0.01; done"; true`)
	r.has("ready")
	began := time.Now()
	if err := Stop(r.dir, time.Now().Add(20*time.Second).UnixNano()); err != nil {
		t.Fatal(err)
	}
	x := r.exit()
	if time.Since(began) > 10*time.Second {
		t.Error("it waited for the deadline")
	}
	if _, err := os.Stat(filepath.Join(r.dir, "saved")); err != nil {
		t.Errorf("no grace: %v", err)
	}
	if len(x.Ranks) != 1 || !x.Ranks[0].Asked || x.Ranks[0].Bad() {
		t.Errorf("got %+v", x)
	}
}

func TestAScriptThatLoopsStopsAtOnce(t *testing.T) {
	r := run(t, "touch $D/ready; while :; do sleep 0.01; done")
	r.has("ready")
	began := time.Now()
	if err := Stop(r.dir, time.Now().Add(20*time.Second).UnixNano()); err != nil {
		t.Fatal(err)
	}
	r.exit()
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestTheDeadlineKillsWhatIgnoresIt(t *testing.T) {
	r := run(t, "trap '' TERM; touch $D/ready; while :; do sleep 0.01; done", "(setsid sh -c 'trap \"\" TERM; touch $D/orphan; while :; do sleep 0.01; done' &); sleep 60")
	r.has("ready")
	r.has("orphan")
	began := time.Now()
	if err := Stop(r.dir, began.Add(300*time.Millisecond).UnixNano()); err != nil {
		t.Fatal(err)
	}
	x := r.exit()
	if d := time.Since(began); d < 300*time.Millisecond {
		t.Errorf("dead after %v, within the grace", d)
	}
	if ok, err := r.l.Group.Empty(); !ok || err != nil {
		t.Errorf("something is left: %v", err)
	}
	for _, e := range x.Ranks {
		if e.Bad() {
			t.Errorf("counts as a failure: %+v", e)
		}
	}
}

func TestSignalsThatStopAgentsDoNotStopRanks(t *testing.T) {
	r := run(t, "touch $D/ready; while [ ! -e $D/go ]; do sleep 0.01; done")
	r.has("ready")
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT} {
		if err := r.id.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x := r.exit(); !x.Completed(*r.l) {
		t.Fatalf("got %+v", x)
	}
}

func TestOneStartedAheadIsUsedAndOneWithoutAgentEnds(t *testing.T) {
	p := NewPool("/proc/self/exe", noCgroup)
	if err := p.Fill(); err != nil {
		t.Fatal(err)
	}
	ahead := p.spare.id
	r := prepare(t, "true").start(p)
	if r.id != ahead || p.Full() {
		t.Fatalf("started %v, not the one ahead, %v", r.id, ahead)
	}
	if x := r.exit(); !x.Completed(*r.l) {
		t.Fatalf("got %+v", x)
	}
	if err := p.Fill(); err != nil {
		t.Fatal(err)
	}
	ahead = p.spare.id
	p.Close()
	within(t, "its end", func() bool { return !ahead.Alive() })
}

func TestADeadSpareIsNoLoss(t *testing.T) {
	p := NewPool("/proc/self/exe", noCgroup)
	if err := p.Fill(); err != nil {
		t.Fatal(err)
	}
	if err := p.spare.id.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	dead := p.spare.id
	within(t, "its death", func() bool { return !dead.Alive() })
	r := prepare(t, "true").start(p)
	if x := r.exit(); !x.Completed(*r.l) {
		t.Fatalf("got %+v", x)
	}
}

func TestAShimOfAnotherPreparationStartsNothing(t *testing.T) {
	r := prepare(t, "touch $D/ran")
	other := *r.l
	other.Token = "t0"
	id, err := NewPool("/proc/self/exe", noCgroup).Start(r.dir, &other)
	if err != nil {
		t.Fatal(err)
	}
	within(t, "its end", func() bool { return !id.Alive() })
	if _, err := os.Stat(filepath.Join(r.dir, "ran")); err == nil {
		t.Fatal("it ran")
	}
	if err := Kill(r.dir); !errors.Is(err, proc.ErrGone) {
		t.Errorf("orders without a shim: %v", err)
	}
}

func TestWithoutContactTheShimKeepsTheFence(t *testing.T) {
	r := prepare(t, "trap '' TERM; while :; do sleep 0.01; done")
	r.l.FenceNS, r.l.GraceNS, r.l.Contact = int64(1500*time.Millisecond), int64(time.Second), filepath.Join(r.dir, "contact")
	if err := WriteFile(r.dir, FileLaunch, r.l, false); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	r.start(NewPool("/proc/self/exe", noCgroup))
	x := r.exit()
	if d := time.Since(began); d < 1300*time.Millisecond || d > 10*time.Second {
		t.Errorf("dead after %v, the fence is at 1.5 s", d)
	}
	if len(x.Ranks) != 1 || !x.Ranks[0].Asked {
		t.Errorf("got %+v", x)
	}
}

func TestContactExtendsTheFence(t *testing.T) {
	r := prepare(t, "while [ ! -e $D/go ]; do sleep 0.01; done")
	r.l.FenceNS, r.l.GraceNS, r.l.Contact = int64(1500*time.Millisecond), 0, filepath.Join(r.dir, "contact")
	if err := WriteFile(r.dir, FileLaunch, r.l, false); err != nil {
		t.Fatal(err)
	}
	r.start(NewPool("/proc/self/exe", noCgroup))
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err := WriteContact(r.l.Contact, proc.SinceBoot()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x := r.exit(); !x.Completed(*r.l) {
		t.Fatalf("killed with contact: %+v", x)
	}
}

package python_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/manifest"
	"github.com/weft-fabric/weft/libs/python"
)

// patience ends a Python that hangs; nothing is asserted of how long one takes.
const patience = 3 * time.Minute

// job runs the driver as ranks of one job see it.
type job struct {
	t    *testing.T
	lib  string
	root string // of the tier
}

const tenant, id = "acme", "j1"

func newJob(t *testing.T) *job {
	t.Helper()
	if _, err := os.Stat(interpreter); err != nil {
		t.Skipf("weft.py cannot be tested here: there is no %s", interpreter)
	}
	j := &job{t: t, lib: t.TempDir(), root: t.TempDir()}
	if err := python.Write(j.lib); err != nil {
		t.Fatal(err)
	}
	return j
}

const interpreter = "/usr/bin/python3"

func (j *job) saves() string { return filepath.Join(j.root, tenant, id) }

// run returns what a command of the driver printed, and how it ended.
func (j *job) run(env []string, command ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, append([]string{"testdata/driver.py"}, command...)...)
	cmd.Env = append([]string{
		"PATH=/usr/bin:/bin", "HOME=" + j.lib, "PYTHONPATH=" + j.lib, "PYTHONDONTWRITEBYTECODE=1", "WEFT_TENANT=" + tenant,
		"WEFT_JOB=" + id, "WEFT_NODE=n1", "WEFT_ATTEMPT=1", "WEFT_CHECKPOINT_DIR=" + j.saves(),
	}, env...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, log.Bytes())
	}
	return out.Bytes(), err
}

func (j *job) must(into any, env []string, command ...string) {
	j.t.Helper()
	out, err := j.run(env, command...)
	if err != nil {
		j.t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(out, into); err != nil {
			j.t.Fatalf("%s printed %q: %v", command, out, err)
		}
	}
}

// verified checks every published part as the agent would, and returns their places.
func (j *job) verified() []string {
	j.t.Helper()
	paths, err := manifest.ListParts(j.root)
	if err != nil {
		j.t.Fatal(err)
	}
	for _, p := range paths {
		if _, err := manifest.Verify(j.t.Context(), filepath.Join(j.root, p)); err != nil {
			j.t.Errorf("a published part is not whole: %v", err)
		}
	}
	return paths
}

// TestKilledAtEveryStep kills a save before every line of weft.py and around every system call that it makes.
func TestKilledAtEveryStep(t *testing.T) {
	for _, c := range []struct{ name, nfs, first string }{{"local", "", ""}, {"nfs", "nfs", ""}, {"first save", "", "first"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			var got struct{ Points, Lost, Kept int }
			j.must(&got, nil, "kill", c.nfs, c.first)
			t.Logf("%+v", got)
			if got.Points < 40 || got.Lost < 30 || got.Kept < 3 {
				t.Errorf("the kills did not cover the protocol: %+v", got)
			}
			want := got.Kept + 1
			if c.first != "" {
				want = 1
			}
			if n := len(j.verified()); n != want {
				t.Errorf("%d parts are published, want %d: those of kills after the rename, and the last save's", n, want)
			}
			staged, err := os.ReadDir(filepath.Join(j.saves(), ".staging"))
			if err != nil || len(staged) > 0 {
				t.Errorf("killed writers left %d directories in staging that the next ones did not sweep (%v)", len(staged), err)
			}
		})
	}
}

func TestFullDiskAtEveryStep(t *testing.T) {
	for _, fs := range []string{"", "nfs"} {
		t.Run("fs="+fs, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			var got struct{ Points int }
			j.must(&got, nil, "fail", fs)
			if got.Points < 20 {
				t.Errorf("only %d calls failed", got.Points)
			}
			j.verified()
		})
	}
}

// TestRanks: what torchrun says counts only where torchrun runs.
func TestRanks(t *testing.T) {
	j := newJob(t)
	weft := []string{"WEFT_RANK=1", "WEFT_WORLD_SIZE=2", "RANK=1", "WORLD_SIZE=2"}
	for _, c := range []struct {
		name string
		env  []string
		want [2]int
	}{
		{"alone", nil, [2]int{0, 1}},
		{"weft", weft, [2]int{1, 2}},
		{"plain torchrun", []string{"TORCHELASTIC_RUN_ID=x", "RANK=3", "WORLD_SIZE=4"}, [2]int{3, 4}},
		{"torchrun from a script", append(slices.Clone(weft), "TORCHELASTIC_RUN_ID=x", "RANK=5", "WORLD_SIZE=8"), [2]int{5, 8}},
		{"a script that sets RANK for something else", []string{"WEFT_RANK=1", "WEFT_WORLD_SIZE=2", "RANK=9", "WORLD_SIZE=10"}, [2]int{1, 2}},
	} {
		var got [2]int
		if j.must(&got, c.env, "who"); got != c.want {
			t.Errorf("%s: rank and world size %v, want %v", c.name, got, c.want)
		}
	}
}

func rankEnv(attempt, rank, world int) []string {
	return []string{
		fmt.Sprintf("WEFT_ATTEMPT=%d", attempt), fmt.Sprintf("WEFT_RANK=%d", rank), fmt.Sprintf("WEFT_WORLD_SIZE=%d", world),
		fmt.Sprintf("WEFT_NODE=n%d", rank/2),
	}
}

// saveAll saves a step on all ranks at once; those in die are killed before they publish.
func (j *job) saveAll(attempt, world, step int, ranks string, die ...int) {
	j.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, world)
	for r := range world {
		wg.Go(func() {
			how := "live"
			if slices.Contains(die, r) {
				how = "die"
			}
			_, errs[r] = j.run(rankEnv(attempt, r, world), "save", fmt.Sprint(step), ranks, how)
		})
	}
	wg.Wait()
	for r, err := range errs {
		if (err != nil) != slices.Contains(die, r) {
			j.t.Fatalf("rank %d: %v", r, err)
		}
	}
}

type resumed struct {
	Step  int
	Path  string
	Ranks []int
}

func TestManyRanks(t *testing.T) {
	j := newJob(t)
	var none *resumed
	if j.must(&none, rankEnv(1, 0, 4), "resume"); none != nil {
		t.Fatalf("resumed from %+v before any save", none)
	}
	j.saveAll(1, 4, 10, "all")
	j.saveAll(1, 4, 20, "all", 2) // its part never comes: the save is none
	for r := range 4 {
		var got resumed
		j.must(&got, rankEnv(2, r, 4), "resume")
		if got.Step != 10 || !slices.Equal(got.Ranks, []int{0, 1, 2, 3}) || !strings.Contains(got.Path, fmt.Sprintf("/rank-%d/", r)) {
			t.Errorf("rank %d resumed from %+v, want its own part of step 10", r, got)
		}
	}
	// Another world size: ranks beyond those that saved read the lowest one's part, and a smaller world saves on its own.
	var got resumed
	if j.must(&got, rankEnv(2, 5, 6), "resume"); got.Step != 10 || !strings.Contains(got.Path, "/rank-0/") {
		t.Errorf("rank 5 of a larger world resumed from %+v", got)
	}
	j.saveAll(2, 2, 20, "all") // the same step as the one that broke: the attempt keeps them apart
	got = resumed{}
	if j.must(&got, rankEnv(3, 1, 2), "resume"); got.Step != 20 || !slices.Equal(got.Ranks, []int{0, 1}) {
		t.Errorf("after a save of two ranks: %+v", got)
	}
	j.saveAll(3, 4, 30, "1,3")
	got = resumed{}
	if j.must(&got, rankEnv(4, 0, 4), "resume"); got.Step != 30 || !slices.Equal(got.Ranks, []int{1, 3}) || !strings.Contains(got.Path, "/rank-1/") {
		t.Errorf("after a save of ranks 1 and 3: %+v", got)
	}
	if n := len(j.verified()); n != 4+3+2+2 {
		t.Errorf("%d parts are published", n)
	}
}

// TestDamageIsPassedOver: without Weft a rank itself takes the newest save that is whole.
func TestDamageIsPassedOver(t *testing.T) {
	for name, damage := range map[string]func(part string) error{
		"a bit":      func(p string) error { return flip(filepath.Join(p, "optim/0.bin")) },
		"truncated":  func(p string) error { return os.Truncate(filepath.Join(p, "state.bin"), 100) },
		"missing":    func(p string) error { return os.Remove(filepath.Join(p, "state.bin")) },
		"no record":  func(p string) error { return os.Remove(filepath.Join(p, "part.json")) },
		"half of it": func(p string) error { return os.Truncate(filepath.Join(p, "part.json"), 200) },
		"a link": func(p string) error {
			f := filepath.Join(p, "state.bin")
			return errors.Join(os.Rename(f, f+".real"), os.Symlink("state.bin.real", f))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJob(t)
			j.saveAll(1, 1, 1, "all")
			j.saveAll(1, 1, 2, "all")
			if err := damage(filepath.Join(j.saves(), "a1-s000000000002-full/rank-0")); err != nil {
				t.Fatal(err)
			}
			var got resumed
			if j.must(&got, nil, "resume"); got.Step != 1 {
				t.Errorf("resumed from %+v, want step 1", got)
			}
		})
	}
}

func flip(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 1
	return os.WriteFile(file, b, 0o600)
}

func TestSyncedBeforePublished(t *testing.T) { newJob(t).must(nil, nil, "durable") }

func TestRefusals(t *testing.T) { newJob(t).must(nil, nil, "refuse") }

func TestNothingIsReplaced(t *testing.T) {
	j := newJob(t)
	j.must(nil, nil, "twice")
	j.verified()
}

// TestWidestPart: writer and reader agree on what a part may be.
func TestWidestPart(t *testing.T) {
	j := newJob(t)
	j.must(nil, nil, "widest")
	if n := len(j.verified()); n != 1 {
		t.Errorf("%d parts", n)
	}
}

func TestTorch(t *testing.T) {
	j := newJob(t)
	if out, err := exec.Command(interpreter, "-c", "import torch").CombinedOutput(); err != nil {
		t.Skipf("torch.save cannot be tested here: %.200s", out)
	}
	j.must(nil, nil, "torch_save")
	paths := j.verified()
	part, err := manifest.Verify(t.Context(), filepath.Join(j.root, paths[0]))
	if err != nil || part.GetFormat() != manifest.FormatTorch {
		t.Fatalf("format %q, %v", part.GetFormat(), err)
	}
	if err := flip(filepath.Join(j.root, paths[0], "state.pt")); err != nil {
		t.Fatal(err)
	}
	var bad *manifest.Corrupt
	if _, err := manifest.Verify(t.Context(), filepath.Join(j.root, paths[0])); !errors.As(err, &bad) {
		t.Errorf("a flipped bit: %v", err)
	}
}

// TestWrite: scripts that are just starting see the module whole, whoever else writes it.
func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lib", "python")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := python.Write(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	want, err := os.ReadFile("weft.py")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "weft.py")
	for _, old := range [][]byte{want, []byte("an older one"), nil} {
		if err := os.WriteFile(file, old, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := python.Write(dir); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes are there (%v), want %d", len(got), err, len(want))
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d entries are left (%v), want weft.py alone", len(entries), err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := python.Write(filepath.Join(dir, "file")); err == nil {
		t.Error("a file in place of the directory was no error")
	}
}

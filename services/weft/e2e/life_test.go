package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestRunIsLikeRunningTheCommandHere(t *testing.T) {
	f := newFabric(t)
	r := f.weft("", "run", "--", "echo", "hello from the fabric")
	if r.code != 0 || r.stdout != "hello from the fabric\n" {
		t.Fatalf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
	r = f.weft("", "run", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	if r.code != 10 || r.stdout != "out\n" || !strings.Contains(r.stderr, "err\n") || !strings.Contains(r.stderr, "exited with code 7") {
		t.Fatalf("a command that exits 7: exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
	r = f.weft("", "run", "-n", "3", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE")
	for _, want := range []string{"rank 0 of 3", "rank 1 of 3", "rank 2 of 3"} {
		if r.code != 0 || !strings.Contains(r.stdout, want) {
			t.Fatalf("three ranks: exit %d, output %q, errors %q; want %q", r.code, r.stdout, r.stderr, want)
		}
	}
	r = f.weft("", "run", "--env", "GREETING=hi; rm -rf /nowhere", "--", "sh", "-c", `echo "$GREETING"`)
	if r.code != 0 || r.stdout != "hi; rm -rf /nowhere\n" {
		t.Fatalf("environment: exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
}

func TestExitCodesTellProgramsWhatHappened(t *testing.T) {
	f := newFabric(t)
	for _, c := range []struct {
		name string
		code int
		text string
		args []string
	}{
		{"an unknown command", 2, "unknown command", []string{"fly"}},
		{"an unknown flag", 2, "unknown flag", []string{"ps", "--fly"}},
		{"a missing argument", 2, "the job is missing", []string{"get"}},
		{"a missing file", 2, "no such file", []string{"submit", "nowhere.yaml"}},
		{"a wrong output format", 2, "table, json or", []string{"ps", "-o", "xml"}},
		{"an unknown job", 3, "weft ps", []string{"get", "01jzzzzzzzzzzzzzzzzzzzzzzz"}},
		{"cancelling an unknown job", 3, "weft ps", []string{"cancel", "01jzzzzzzzzzzzzzzzzzzzzzzz"}},
		{"explaining an unknown job", 3, "", []string{"explain", "01jzzzzzzzzzzzzzzzzzzzzzzz"}},
		{"logs of an unknown job", 3, "", []string{"logs", "01jzzzzzzzzzzzzzzzzzzzzzzz"}},
		{"no fabric there", 5, "weft up", []string{"--context", "/nonexistent/context.json", "ps"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := f.weft("", c.args...)
			if r.code != c.code || !strings.Contains(r.stderr, c.text) {
				t.Errorf("weft %s: exit %d, want %d; said %q, want %q in it", strings.Join(c.args, " "), r.code, c.code, r.stderr, c.text)
			}
		})
	}
	t.Run("a wrong token", func(t *testing.T) {
		b, err := os.ReadFile(filepath.Join(f.data(), "context.json"))
		if err != nil {
			t.Fatal(err)
		}
		var c map[string]any
		if err := json.Unmarshal(b, &c); err != nil {
			t.Fatal(err)
		}
		c["token"] = "weft-wrong"
		b, _ = json.Marshal(c)
		file := filepath.Join(t.TempDir(), "context.json")
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := f.weft("", "--context", file, "ps"); r.code != 4 {
			t.Errorf("exit %d, want 4: %s", r.code, r.stderr)
		}
	})
}

func TestListingsHaveJSON(t *testing.T) {
	f := newFabric(t)
	id := strings.TrimSpace(f.must("", "run", "-d", "--", "true"))
	f.phase(id, "succeeded")
	for _, args := range [][]string{{"ps", "--all"}, {"get", id}, {"explain", id}, {"nodes"}, {"queues"}, {"ckpt", "ls", id}, {"version"}} {
		out := f.must("", append(args, "-o", "json")...)
		var v any
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Errorf("weft %s -o json: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(f.must("", "events", "-o", "json")), "\n") {
		var e struct{ SpecVersion, Type, ID string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.SpecVersion != "1.0" || e.Type == "" || e.ID == "" {
			t.Errorf("not a CloudEvent: %v\n%s", err, line)
		}
	}
	if out := f.must("", "nodes"); strings.Count(out, "simulated") != 2 {
		t.Errorf("the listing does not say that both nodes are simulated:\n%s", out)
	}
	manifest := f.must("", "get", id, "-o", "yaml")
	if r := f.weft(manifest, "submit", "--dry-run", "-"); r.code != 0 {
		t.Errorf("what get prints, submit refuses: %s\n%s", r.stderr, manifest)
	}
}

func TestCancelEndsAJobInEveryPhase(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	running := f.gang(dir, 0)
	pids := f.pids(dir, 1)
	huge := `{apiVersion: weft/v1, kind: Job, metadata: {name: huge, queue: demo}, spec: {workers: 8, gpus: 8, command: [sleep, "600"]}}`
	waiting := strings.TrimSpace(f.must(huge, "submit", "-"))
	if out := f.must("", "explain", waiting); !strings.Contains(out, "NeverFits") {
		t.Errorf("64 GPUs on a 16-GPU cell: explain says\n%s", out)
	}
	f.must("", "cancel", waiting)
	f.phase(waiting, "cancelled")
	f.must("", "cancel", running)
	f.phase(running, "cancelled")
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("rank %d lives after its job was cancelled", pid)
		}
	}
}

func TestAKilledRankRestartsTheWholeGangOnce(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	id := f.gang(dir, 1)
	first := f.pids(dir, 1)
	if err := syscall.Kill(first[2], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := f.pids(dir, 2)
	for r, pid := range first {
		if alive(pid) {
			t.Errorf("rank %d of attempt 1 lives beside attempt 2", r)
		}
	}
	j := f.job(id)
	if j.Status.Attempt != 2 || j.Status.Restarts != 1 || j.Status.Cause.Kind != "CAUSE_KIND_SIGNAL" || j.Status.Cause.Rank != 2 || j.Status.Cause.Signal != 9 {
		t.Errorf("after a SIGKILL of rank 2: %+v", j.Status)
	}
	if err := syscall.Kill(second[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if j := f.phase(id, "failed"); j.Status.Restarts != 1 {
		t.Errorf("restart.max is 1: %+v", j.Status)
	}
}

package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
)

// A program given on the command line arrives as it was typed, and so it does a second time from weft get.
func TestProgramsOnTheCommandLineArriveWhole(t *testing.T) {
	f := newFabric(t)
	const program = "\nfor i in 1 2; do\n\techo \"  $i: $NOTE\"\ndone\n  "
	const note = " a: b # c\n\t'd'\n\n"
	want := "  1: " + note + "\n  2: " + note + "\n"
	if r := f.weft("", "run", "--env", "NOTE="+note, "--", "sh", "-c", program); r.code != 0 || r.stdout != want {
		t.Fatalf("exit %d, output %q, want %q; errors %q", r.code, r.stdout, want, r.stderr)
	}
	id := strings.TrimSpace(f.must("", "run", "--detach", "--name", "again", "--env", "NOTE="+note, "--", "sh", "-c", program))
	var job struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       map[string]any `json:"spec"`
	}
	if err := json.Unmarshal([]byte(f.must("", "get", id, "-o", "json")), &job); err != nil {
		t.Fatal(err)
	}
	job.Metadata = map[string]any{"name": "third", "queue": "default"}
	manifest, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	if r := f.weft(string(manifest), "submit", "--follow", "-"); r.code != 0 || r.stdout != want {
		t.Fatalf("exit %d, output %q, want %q; errors %q", r.code, r.stdout, want, r.stderr)
	}
	yaml := strings.NewReplacer("name: again", "name: fourth", id, "").Replace(f.must("", "get", id, "-o", "yaml"))
	yaml = strings.Replace(yaml, "    id: \n", "", 1)
	if r := f.weft(yaml, "submit", "--follow", "-"); r.code != 0 || r.stdout != want {
		t.Fatalf("exit %d, output %q, want %q; errors %q\n%s", r.code, r.stdout, want, r.stderr, yaml)
	}
}

// One wrong name among several does not keep the other jobs alive.
func TestCancelGoesOnAfterAWrongName(t *testing.T) {
	f := newFabric(t)
	a := strings.TrimSpace(f.must("", "run", "--detach", "--", "sleep", "600"))
	b := strings.TrimSpace(f.must("", "run", "--detach", "--", "sleep", "600"))
	r := f.weft("", "cancel", a, "nobody", b)
	if r.code != 3 || !strings.Contains(r.stdout, a) || !strings.Contains(r.stdout, b) || !strings.Contains(r.stderr, "nobody") || !strings.Contains(r.stderr, "1 of 3") {
		t.Errorf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
}

// What is said of a change of queues is what became of it.
func TestQueuesChangeAsIsSaid(t *testing.T) {
	f := newFabric(t)
	const tree = "queues: [{name: a}, {name: a/b}, {name: a/b/c, weight: 2}]"
	const gone = "queues: [{name: a, removed: true}, {name: a/b, removed: true}, {name: a/b/c, removed: true}]"
	if out := f.must(tree, "queues", "apply", "--dry-run", "-"); !strings.Contains(out, "queue a/b/c would be set") || strings.Contains(f.must("", "queues"), "a/b") {
		t.Errorf("a dry run: %s", out)
	}
	f.must(tree, "queues", "apply", "-")
	job := strings.TrimSpace(f.must("", "run", "--detach", "--queue", "a/b", "--", "sleep", "600"))
	for range 3 { // within a second: the scheduler tells of the first refusal only
		if r := f.weft("queues: [{name: a/b/c, removed: true}, {name: a/b, removed: true}]", "queues", "apply", "-"); r.code != 2 || !strings.Contains(r.stderr, "a/b") {
			t.Fatalf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
		}
	}
	f.must("", "cancel", job)
	f.phase(job, "cancelled")
	if out := f.must(gone, "queues", "apply", "-"); !strings.Contains(out, "queue a/b/c removed") || strings.Contains(f.must("", "queues"), "a/b") {
		t.Errorf("removed: %s", out)
	}
}

// Events are read to their end, one CloudEvent a line, and go on after any of them.
func TestEventsAreReadToTheirEndAndGoOn(t *testing.T) {
	f := newFabric(t)
	f.must("", "run", "--", "true")
	lines := strings.Split(strings.TrimSpace(f.must("", "events", "-o", "json")), "\n")
	var third struct {
		Cursor string `json:"weftcursor"`
	}
	if err := json.Unmarshal([]byte(lines[2]), &third); err != nil {
		t.Fatal(err)
	}
	rest := strings.Split(strings.TrimSpace(f.must("", "events", "-o", "json", "--after", third.Cursor)), "\n")
	if len(rest) != len(lines)-3 || rest[0] != lines[3] {
		t.Errorf("after event 3 of %d come %d, the first %s", len(lines), len(rest), rest[0])
	}
	if r := f.weft("", "events", "--job", "01jd0000000000000000000000"); r.code != 0 || !strings.Contains(r.stderr, "no events of job") {
		t.Errorf("exit %d, errors %q", r.code, r.stderr)
	}
}

// What is refused before anything is asked of the fabric.
func TestWrongArgumentsAreRefused(t *testing.T) {
	f := newFabric(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "--limit", "-1s", "--", "true"}, "write a duration such as 2h"},
		{[]string{"run", "--limit", "0s", "--", "true"}, "no limit"},
		{[]string{"queues", "apply", filepath.Join(t.TempDir(), "none.yaml")}, "weft queues apply --help"},
	} {
		if r := f.weft("", c.args...); r.code != 2 || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%v: exit %d, errors %q; want %q", c.args, r.code, r.stderr, c.says)
		}
	}
}

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var errAlive = errors.New("it lives")

// Every wrong manifest of the parser's collection is refused by the whole chain with exit code 2 and one line.
func TestWrongManifestsAreRefusedInOneLine(t *testing.T) {
	f := newFabric(t)
	files, err := filepath.Glob("../../../libs/jobspec/testdata/wrong/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d wrong manifests (%v); at least 30 are expected", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r := f.weft("", "submit", file)
			lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
			if r.code != 2 || r.stdout != "" || len(lines) != 2 || !strings.HasPrefix(lines[1], "  see: weft submit --help") {
				t.Errorf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
			}
		})
	}
	if out := f.must("", "ps", "--all", "-o", "json"); strings.Contains(out, `"id"`) {
		t.Errorf("a refused manifest left a job:\n%s", out)
	}
}

// What only the fabric can know is refused by it, naming field and cure.
func TestRefusalsThatNeedState(t *testing.T) {
	f := newFabric(t)
	const id = "01jd0000000000000000000000"
	ok := "{apiVersion: weft/v1, kind: Job, metadata: {name: one, queue: demo, id: " + id + "}, spec: {command: [sleep, \"600\"]}}"
	if got := strings.TrimSpace(f.must(ok, "submit", "-")); got != id {
		t.Fatalf("submitted %s, got %s", id, got)
	}
	if got := strings.TrimSpace(f.must(ok, "submit", "-")); got != id {
		t.Fatalf("the same id and spec again is the same job; got %s", got)
	}
	limits := "queues:\n  - {name: demo/small, limit: {gpu: 2}}\n"
	f.must(limits, "queues", "apply", "-")
	for _, c := range []struct{ name, manifest, field, cure string }{
		{"same id, other spec", strings.Replace(ok, "600", "700", 1), "id", "new"},
		{"same name in the queue", "{apiVersion: weft/v1, kind: Job, metadata: {name: one, queue: demo}, spec: {command: [\"true\"]}}", "name", "one"},
		{"unknown queue", "{apiVersion: weft/v1, kind: Job, metadata: {name: x, queue: nowhere}, spec: {command: [\"true\"]}}", "queue", "weft queues apply"},
		{"over the queue's limit", "{apiVersion: weft/v1, kind: Job, metadata: {name: big, queue: demo/small}, spec: {workers: 4, gpus: 1, command: [\"true\"]}}", "limit", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := f.weft(c.manifest, "submit", "-")
			if r.code != 2 || !strings.Contains(r.stderr, c.field) || !strings.Contains(r.stderr, c.cure) {
				t.Errorf("exit %d: %s; want %q and %q in it", r.code, r.stderr, c.field, c.cure)
			}
		})
	}
}

// Files travel with the job, and what a job leaves in its output directory survives its attempts.
func TestFilesTravelWithTheJob(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"job.yaml":    "{apiVersion: weft/v1, kind: Job, metadata: {name: files, queue: demo}, spec: {command: [sh, sub/go.sh], files: .}}",
		"sub/go.sh":   "cat data.txt",
		"data.txt":    "what travelled\n",
		".weftignore": "*.secret\n",
		"x.secret":    "stays at home\n",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := f.weft("", "submit", "--follow", filepath.Join(dir, "job.yaml"))
	if r.code != 0 || !strings.Contains(r.stdout, "what travelled") {
		t.Fatalf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
}

package jobspec

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var rewrite = flag.Bool("rewrite", false, "write the errors that come into testdata/wrong")

const fence = 10 * time.Minute

// parse is what submit does before it asks the state.
func parse(b []byte) (*Manifest, error) {
	m, err := Parse(b)
	if err != nil {
		return nil, err
	}
	return m, m.CheckGrace(fence)
}

// Each wrong manifest begins with the one line that it is refused with.
func TestWrong(t *testing.T) {
	files, _ := filepath.Glob("testdata/wrong/*.yaml")
	if len(files) < 60 {
		t.Fatalf("%d wrong manifests; at least 60 are expected", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			first, rest, _ := strings.Cut(string(b), "\n")
			_, err = parse(b)
			if err == nil {
				t.Fatal("accepted")
			}
			got := err.Error()
			if strings.ContainsAny(got, "\n\r") || len(got) > 300 {
				t.Errorf("not one readable line: %q", got)
			}
			if !strings.Contains(got, ";") && !strings.Contains(got, "write") && !strings.Contains(got, "did you mean") && !strings.Contains(got, "it is ") {
				t.Errorf("names no cure: %s", got)
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte("# want: "+got+"\n"+rest), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := strings.TrimPrefix(first, "# want: "); got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		})
	}
}

func TestRight(t *testing.T) {
	files, _ := filepath.Glob("testdata/right/*.yaml")
	if len(files) < 5 {
		t.Fatalf("%d right manifests; at least 5 are expected", len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			m, err := parse(b)
			if err != nil {
				t.Fatal(err)
			}
			again, err := parse([]byte(Format(m.Spec, m.ID)))
			if err != nil {
				t.Fatalf("what Format wrote is refused: %v\n%s", err, Format(m.Spec, m.ID))
			}
			if d := cmp.Diff(m.Spec, again.Spec, protocmp.Transform()); d != "" || again.ID != m.ID || again.Hash != m.Hash {
				t.Errorf("changed by Format and Parse:\n%s", d)
			}
		})
	}
}

func TestFullManifest(t *testing.T) {
	b, err := os.ReadFile("testdata/right/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	kv := func(k, v string) *weftv1.KeyValue { return weftv1.KeyValue_builder{Key: &k, Value: &v}.Build() }
	want := weftv1.JobSpec_builder{
		Name: new("digits"), Queue: new("demo/vision"),
		Labels:    []*weftv1.KeyValue{kv("cost-center", "42"), kv("note", ""), kv("team", "cv")},
		Framework: new(weftv1.Framework_FRAMEWORK_PYTORCH), Resize: new(weftv1.Resize_RESIZE_RESTART),
		Groups: []*weftv1.Group{weftv1.Group_builder{
			Name: new("worker"), Min: new(uint32(2)), Max: new(uint32(8)), GpuMilli: new(int64(1000)), CpuMilli: new(int64(4000)), MemoryBytes: new(int64(16 << 30)),
			Command: []string{"python3", "train.py", "--epochs", "10", "--lr", "1e-3", "--flag", "true"},
			Env:     []*weftv1.KeyValue{kv("EMPTY", ""), kv("KEY", "value"), kv("NUMBER", "010")},
		}.Build()},
		Models: []string{"A100-80G", "H100-80G"},
		Topology: weftv1.TopologyConstraint_builder{
			Required: new(weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK), Preferred: new(weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE),
		}.Build(),
		Checkpoint: weftv1.CheckpointPolicy_builder{
			LightNs: new(int64(10 * time.Minute)), FullNs: new(int64(time.Hour)), DisasterNs: new(int64(24 * time.Hour)), GraceNs: new(int64(time.Minute)),
			ResumeFromLight: new(false),
		}.Build(),
		Restart:     weftv1.RestartPolicy_builder{Max: new(uint32(3)), BackoffNs: new(int64(10 * time.Second))}.Build(),
		HangAfterNs: new(int64(10 * time.Minute)), LimitNs: new(int64(12 * time.Hour)), EstimateNs: new(int64(9 * time.Hour)),
		Priority: new(int32(-5)), Preemptible: new(true), Spot: new(false),
	}.Build()
	if d := cmp.Diff(want, m.Spec, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	if m.ID != "01jd0000000000000000000000" || m.Files != "." || m.Tenant != "demo" {
		t.Errorf("id %q, files %q, tenant %q", m.ID, m.Files, m.Tenant)
	}
}

// The hash says what the manifest means: not how it is written, and not whether its defaults are.
func TestHash(t *testing.T) {
	base := mustParse(t, "spec: {command: [a, b]}")
	for _, same := range []string{
		"spec: {command: [a, 'b'], gpus: 0, workers: 1, cpu: 1000m, memory: 1024Mi, restart: {max: 3}}",
		"spec:\n  workers: {max: 1}\n  command:\n  - a\n  - b\n  preemptible: true\n  framework: none",
		"spec: {checkpoint: {}, command: [a, b], restart: {backoff: 10000ms}, priority: 0}",
	} {
		if m := mustParse(t, same); m.Hash != base.Hash {
			t.Errorf("%s\nhas another hash than the same job", same)
		}
	}
	seen := map[string]string{base.Hash: "base"}
	for _, other := range []string{
		"spec: {command: [ab]}", "spec: {command: [a b]}", "spec: {command: [a, b], gpus: 1}", "spec: {command: [a, b], workers: 2}",
		"spec: {command: [a, b], workers: {max: 2}}", "spec: {command: [a, b], env: {A: b}}", "spec: {command: [a, b], env: {Ab: ''}}",
		"spec: {command: [a, b], cpu: 2}", "spec: {command: [a, b], restart: {max: 0}}", "spec: {command: [a, b], preemptible: false}",
		"spec: {command: [a, b], models: [X]}", "spec: {groups: [{name: other, command: [a, b]}]}",
		"spec: {groups: [{name: worker, command: [a]}, {name: other, command: [b]}]}",
	} {
		m := mustParse(t, other)
		if was, ok := seen[m.Hash]; ok {
			t.Errorf("%s\nhas the hash of\n%s", other, was)
		}
		seen[m.Hash] = other
	}
	m := mustParse(t, "spec: {command: [a, b]}")
	m.SetBundle("b3-" + strings.Repeat("0", 64))
	if m.Hash == base.Hash || m.Hash != Hash(m.Spec) {
		t.Error("other files are another job")
	}
}

// Hashes are kept in ledgers for years: they must not change with the program.
func TestHashIsStable(t *testing.T) {
	b, err := os.ReadFile("testdata/right/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	const want = "b3-e71bca6f6744e58b853b5a33f1164c7527d77fc64017a7add4004be53f234c69"
	if m.Hash != want {
		t.Errorf("hash %s, was %s", m.Hash, want)
	}
}

func TestTooLarge(t *testing.T) {
	text := header + "spec: {command: [a], env: {A: " + strings.Repeat("x", MaxManifest) + "}}"
	if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), "65536") || !strings.Contains(err.Error(), "spec.files") {
		t.Errorf("got %v", err)
	}
}

func TestDefaultsAreCompleteAndIdempotent(t *testing.T) {
	m := mustParse(t, "spec: {command: [a]}")
	once := WithDefaults(m.Spec)
	if m.Spec.HasRestart() {
		t.Error("WithDefaults changed its argument")
	}
	twice := proto.CloneOf(once)
	Defaults(twice)
	if !proto.Equal(once, twice) {
		t.Error("defaults of defaults differ")
	}
	g := once.GetGroups()[0]
	if g.GetMin() != 1 || g.GetMax() != 1 || g.GetCpuMilli() != 1000 || g.GetMemoryBytes() != 1<<30 || once.GetRestart().GetMax() != 3 ||
		time.Duration(once.GetCheckpoint().GetGraceNs()) != 30*time.Second || !once.GetPreemptible() {
		t.Errorf("got %v", once)
	}
	if SpecKey(once) != SpecKey(twice) || SpecKey(once) == SpecKey(m.Spec) || !strings.HasPrefix(SpecKey(once), "spec-") {
		t.Error("a spec's key names its bytes")
	}
}

func TestGraceFollowsTheFence(t *testing.T) {
	m := mustParse(t, "spec: {command: [a], checkpoint: {grace: 2m}}")
	if err := m.CheckGrace(4 * time.Minute); err != nil {
		t.Error(err)
	}
	err := m.CheckGrace(3 * time.Minute)
	if err == nil || err.Error() != "spec.checkpoint.grace (line 4): 2m is longer than half the fence of this fabric; write at most 1m30s" {
		t.Errorf("got %v", err)
	}
	if err := m.CheckGrace(0); err != nil {
		t.Errorf("without a fence: %v", err)
	}
}

const header = "apiVersion: weft/v1\nkind: Job\nmetadata: {name: a, queue: demo}\n"

func mustParse(t *testing.T, spec string) *Manifest {
	t.Helper()
	m, err := Parse([]byte(header + spec))
	if err != nil {
		t.Fatalf("%s: %v", spec, err)
	}
	return m
}

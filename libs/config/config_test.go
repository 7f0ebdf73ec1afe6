package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type settings struct {
	NATS   string            `koanf:"nats"`
	Nodes  []string          `koanf:"nodes"`
	Labels map[string]string `koanf:"labels"`
	Policy struct {
		Silent time.Duration `koanf:"silent"`
		MaxRun int           `koanf:"max_run"`
	} `koanf:"policy"`
}

func defaults() *settings {
	s := &settings{NATS: "nats://127.0.0.1:4222"}
	s.Policy.Silent, s.Policy.MaxRun = 15*time.Second, 3
	return s
}

func TestLayers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weft.yaml")
	yaml := "nats: nats://bus:1\nlabels: {rack: r1}\npolicy:\n  silent: 20s\n  max_run: 4\n"
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func() []string {
		return []string{"WEFT_POLICY_MAX_RUN=7", "WEFT_NODES=n1,n2", "WEFT_JOB=not-ours", "HOME=/"}
	}
	got := defaults()
	if err := read(got, path, env); err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.NATS, want.Nodes, want.Labels = "nats://bus:1", []string{"n1", "n2"}, map[string]string{"rack": "r1"}
	want.Policy.Silent, want.Policy.MaxRun = 20*time.Second, 7
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	bare := defaults()
	if err := read(bare, "", func() []string { return nil }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(defaults(), bare); d != "" {
		t.Fatal(d)
	}
}

func TestFlagsWinAndNothingIsValidatedYet(t *testing.T) {
	t.Setenv("WEFT_POLICY_MAX_RUN", "7")
	t.Setenv("WEFT_NATS", "nats://env:1")
	got := defaults()
	if err := Read(got, "", map[string]string{"policy.max_run": "9", "policy.silent": "0s", "nodes": "a,b"}); err != nil {
		t.Fatal(err)
	}
	want := defaults()
	want.NATS, want.Nodes, want.Policy.MaxRun, want.Policy.Silent = "nats://env:1", []string{"a", "b"}, 9, 0
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
	var keys []string
	for _, f := range Fields(got) {
		keys = append(keys, f.Key)
	}
	if d := cmp.Diff([]string{"nats", "nodes", "labels", "policy.silent", "policy.max_run"}, keys); d != "" {
		t.Fatal(d)
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ name, yaml, env, want string }{
		{"unknown key", "policy: {silnet: 3s}", "", "unknown key policy.silnet; there are labels, nats, nodes, policy.max_run, policy.silent"},
		{"bad yaml", "policy: [", "", "settings file"},
		{"bad duration", "policy: {silent: soon}", "", "policy.silent"},
		{"bad number in the environment", "", "WEFT_POLICY_MAX_RUN=many", "policy.max_run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(dir, "weft.yaml")
			if err := os.WriteFile(path, []byte(c.yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			err := read(defaults(), path, func() []string { return []string{c.env} })
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
		})
	}
	if err := Read(defaults(), filepath.Join(dir, "none.yaml"), nil); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Fatalf("missing file: %v", err)
	}
}

package launch

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata")

func node(simulated bool) Node {
	var ds []*weftv1.Device
	for _, u := range []string{"GPU-a", "GPU-b", "GPU-c", "GPU-d"} {
		ds = append(ds, weftv1.Device_builder{Uuid: &u}.Build())
	}
	// TEST-NET: on no machine's interface, so the result is the same everywhere.
	return Node{Name: "n1", Address: "192.0.2.1", Devices: ds, Simulated: simulated, SavesDir: "/saves", OutputDir: "/output", PythonDir: "/weft/python"}
}

func group(name string, command ...string) *weftv1.Group {
	return weftv1.Group_builder{Name: &name, CpuMilli: new(int64(4000)), Command: command}.Build()
}

func assigned(ps ...*weftv1.Placement) *weftv1.AssignedAttempt {
	return weftv1.AssignedAttempt_builder{
		Job: new("job-a"), Attempt: new(uint32(3)), Restarts: new(uint32(1)), Size: new(uint32(4)), Tenant: new("acme"), Name: new("digits"), Queue: new("acme/vision"),
		MasterAddress: new("192.0.2.9"), MasterPort: new(uint32(20000)), Placements: ps,
		Peers: []*weftv1.RankRange{
			weftv1.RankRange_builder{First: new(uint32(2)), Count: new(uint32(2)), Address: new("192.0.2.1"), PortBase: new(uint32(21000)), Group: new(ps[0].GetGroup() % 2)}.Build(),
			weftv1.RankRange_builder{First: new(uint32(0)), Count: new(uint32(2)), Address: new("192.0.2.9"), PortBase: new(uint32(20000)), Group: new(uint32(0))}.Build(),
		},
	}.Build()
}

func placement(group, first, count uint32, devices ...uint32) *weftv1.Placement {
	return weftv1.Placement_builder{Node: new("n1"), Group: &group, FirstRank: &first, Count: &count, Devices: devices, PortBase: new(uint32(21000)), PortCount: &count}.Build()
}

func spec(f weftv1.Framework, gs ...*weftv1.Group) *weftv1.JobSpec {
	return weftv1.JobSpec_builder{Framework: &f, Groups: gs, Checkpoint: weftv1.CheckpointPolicy_builder{
		LightNs: new(int64(600e9)), FullNs: new(int64(3600e9)), GraceNs: new(int64(30e9)),
	}.Build()}.Build()
}

var hostVars = []string{"PATH=/usr/bin", "HOME=/home/u", "PYTHONPATH=/mine", "LC_ALL=C", "WEFT_CREDENTIALS=/secret", "AWS_SECRET_ACCESS_KEY=s3cret", "RANK=77"}

// TestEnvironments compares every rank's whole environment with testdata/env-<case>.txt (-rewrite writes them).
func TestEnvironments(t *testing.T) {
	torchrun := group("worker", "torchrun", "train.py")
	user := group("worker", "python3", "train.py")
	user.SetEnv([]*weftv1.KeyValue{
		weftv1.KeyValue_builder{Key: new("OMP_NUM_THREADS"), Value: new("2")}.Build(),
		weftv1.KeyValue_builder{Key: new("RANK"), Value: new("9")}.Build(),
		weftv1.KeyValue_builder{Key: new("PYTHONPATH"), Value: new("/theirs")}.Build(),
	})
	for name, c := range map[string]struct {
		n Node
		s *weftv1.JobSpec
		a *weftv1.AssignedAttempt
	}{
		"pytorch":    {node(false), spec(weftv1.Framework_FRAMEWORK_PYTORCH, group("worker", "python3", "train.py")), assigned(placement(0, 2, 2, 3, 1))},
		"simulated":  {node(true), spec(weftv1.Framework_FRAMEWORK_PYTORCH, user), assigned(placement(0, 2, 2, 3, 1))},
		"torchrun":   {node(false), spec(weftv1.Framework_FRAMEWORK_PYTORCH, torchrun), assigned(placement(0, 3, 1, 0, 2))},
		"tensorflow": {node(false), spec(weftv1.Framework_FRAMEWORK_TENSORFLOW, group("ps", "ps"), group("worker", "work")), assigned(placement(1, 2, 2, 0, 1))},
		"mpi":        {node(false), spec(weftv1.Framework_FRAMEWORK_MPI, group("worker", "solve")), assigned(placement(0, 2, 1))},
		"none":       {node(false), spec(weftv1.Framework_FRAMEWORK_NONE, group("worker", "echo", "hi")), assigned(placement(0, 0, 1, 0, 1))},
	} {
		t.Run(name, func(t *testing.T) {
			ranks, err := Ranks(c.n, c.a, c.s, Dirs{Work: "/run/work", Logs: "/logs"}, hostVars, "/saves/acme/job-a/a2-s000000000007-full", "WEFT_RUN=/run")
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, r := range ranks {
				b.WriteString("rank " + filepath.Base(r.Stdout) + " in " + r.Dir + "\n" + strings.Join(r.Env, "\n") + "\n\n")
			}
			file := filepath.Join("testdata", "env-"+name+".txt")
			if *rewrite {
				if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), b.String()); d != "" {
				t.Error(d)
			}
			if strings.Contains(b.String(), "cret") {
				t.Error("a credential of the agent reached a rank")
			}
		})
	}
}

func TestTFConfigSaysWhatTensorFlowReads(t *testing.T) {
	s := spec(weftv1.Framework_FRAMEWORK_TENSORFLOW, group("ps", "ps"), group("worker", "work"))
	ranks, err := Ranks(node(true), assigned(placement(1, 2, 2)), s, Dirs{}, nil, "", "WEFT_RUN=x")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Cluster map[string][]string
		Task    struct {
			Type  string
			Index int
		}
	}
	if err := json.Unmarshal([]byte(value(ranks[1], "TF_CONFIG")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Task.Type != "worker" || got.Task.Index != 1 || cmp.Diff(map[string][]string{"ps": {"192.0.2.9:20000", "192.0.2.9:20001"}, "worker": {"192.0.2.1:21000", "192.0.2.1:21001"}}, got.Cluster) != "" {
		t.Fatalf("got %+v", got)
	}
}

func TestNonsenseIsAnErrorNotAPanic(t *testing.T) {
	s := spec(weftv1.Framework_FRAMEWORK_PYTORCH, group("worker", "python3"))
	for name, p := range map[string]*weftv1.Placement{
		"group": placement(7, 0, 1), "device": placement(0, 0, 1, 9), "uneven": placement(0, 0, 2, 1), "empty": placement(0, 0, 0),
	} {
		if _, err := Ranks(node(false), assigned(p), s, Dirs{}, nil, "", "WEFT_RUN=x"); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func value(r shim.Rank, name string) string {
	for _, e := range r.Env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

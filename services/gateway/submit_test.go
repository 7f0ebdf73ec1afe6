package gateway

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/jobspec"
	"github.com/weft-fabric/weft/libs/testkit"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestSubmit(t *testing.T) {
	h := newHarness(t)
	r, err := h.submit("ann", manifest("acme/vision", "train", testID(1), ", workers: 4, gpus: 1"))
	if err != nil {
		t.Fatal(err)
	}
	job := r.GetJob()
	if job.GetId() != testID(1) || job.GetPhase() != "queued" || job.GetTenant() != "acme" || job.GetRanks() != 4 || r.GetUndecided() {
		t.Errorf("got %v", r)
	}
	if w := r.GetWarnings(); len(w) != 1 || !strings.Contains(w[0], "until machines join") {
		t.Errorf("warnings %q; no machine is here", w)
	}
	reqs := h.sched.requests()
	last := reqs[len(reqs)-1]
	if last.GetTenant() != "acme" || last.GetBy() != "ann" || last.GetSubmit().GetSpec().GetRestart().GetMax() != 3 {
		t.Errorf("request %v", last)
	}
	// What agents fetch is the spec with its defaults, by the key that assignments name.
	spec := last.GetSubmit().GetSpec()
	rd, err := h.bus.Objects(bus.BucketBundles).Get(context.Background(), jobspec.SpecKey(spec))
	if err != nil {
		t.Fatal(err)
	}
	data, _ := io.ReadAll(rd)
	var stored weftv1.JobSpec
	if err := proto.Unmarshal(data, &stored); err != nil || !proto.Equal(&stored, spec) {
		t.Errorf("stored %v (%v)", &stored, err)
	}
	// The manifest that get shows is the same job to submit.
	again := h.mustSubmit("ann", job.GetManifest())
	if again.GetId() != testID(1) || len(h.sched.requests()) != len(reqs) {
		t.Errorf("the same job again asked the scheduler, or became %s", again.GetId())
	}
}

func TestSubmitMakesAnID(t *testing.T) {
	h := newHarness(t)
	a := h.mustSubmit("ann", manifest("acme", "a", "", ""))
	b := h.mustSubmit("ann", manifest("acme", "b", "", ""))
	if !jobspec.IsID(a.GetId()) || a.GetId() == b.GetId() {
		t.Errorf("ids %q, %q", a.GetId(), b.GetId())
	}
}

// What needs the state of the cell is refused in one line that names field and cure, before anything is written.
func TestRefusals(t *testing.T) {
	h := newHarness(t)
	h.applyQueues("queues: [{name: acme/small, limit: {gpu: 2, memory: 4Gi}}]")
	h.mustSubmit("ann", manifest("acme", "one", testID(1), ""))
	before := len(h.sched.requests())
	for _, c := range []struct {
		name, who, text string
		code            codes.Code
		parts           []string
	}{
		{"same id, other spec", "ann", manifest("acme", "one", testID(1), ", gpus: 1"), codes.InvalidArgument, []string{"metadata.id (line 3)", testID(1), "without an id"}},
		{"id of another tenant", "bob", manifest("beta", "one", testID(1), ""), codes.InvalidArgument, []string{"metadata.id", "without an id"}},
		{"name taken", "ann", manifest("acme", "one", testID(2), ""), codes.InvalidArgument, []string{"metadata.name (line 3)", "one", "another name"}},
		{"unknown queue", "ann", manifest("acme/nowhere", "x", "", ""), codes.InvalidArgument, []string{"metadata.queue (line 3)", "acme/nowhere", "weft queues apply"}},
		{"wrong tenant", "bob", manifest("acme", "x", "", ""), codes.PermissionDenied, []string{"metadata.queue (line 3)", "acme", "under beta"}},
		{"over the limit of GPUs", "ann", manifest("acme/small", "x", "", ", workers: 3, gpus: 1"), codes.InvalidArgument, []string{"spec.", "acme/small", "2", "weft queues apply"}},
		{"over the limit of memory", "ann", manifest("acme/small", "x", "", ", workers: 2, memory: 3Gi"), codes.InvalidArgument, []string{"memory", "acme/small"}},
		{"grace over half the fence", "ann", manifest("acme", "x", "", ", checkpoint: {grace: 6m}"), codes.InvalidArgument, []string{"spec.checkpoint.grace (line 4)", "at most 5m"}},
		{"unknown field", "ann", manifest("acme", "x", "", ", gpu: 1"), codes.InvalidArgument, []string{"spec.gpu (line 4)", "did you mean gpus?"}},
		{"files not uploaded", "ann", manifest("acme", "x", "", ", files: ."), codes.InvalidArgument, []string{"spec.files (line 4)", "/v1/bundles/"}},
		{"bundle not stored", "ann", manifest("acme", "x", "", ", bundle: b3-"+strings.Repeat("0", 64)), codes.InvalidArgument, []string{"spec.bundle", "not stored"}},
		{"viewer", "vera", manifest("acme", "x", "", ""), codes.PermissionDenied, []string{"vera", "role user"}},
		{"too large", "ann", manifest("acme", "x", "", "") + "#" + strings.Repeat("x", 70000), codes.InvalidArgument, []string{"65536"}},
		{"far too large", "ann", strings.Repeat("x", 2<<20), codes.ResourceExhausted, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := h.submit(c.who, c.text)
			wantError(t, err, c.code, c.parts...)
		})
	}
	if n := len(h.sched.requests()); n != before {
		t.Errorf("%d refused manifests reached the scheduler", n-before)
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	h := newHarness(t)
	before := len(h.sched.requests())
	text := manifest("acme", "x", "", ", framework: pytorch")
	r, err := h.jobs().Submit(h.as("ann"), apiv1.SubmitRequest_builder{Manifest: &text, DryRun: new(true)}.Build())
	if err != nil || r.GetJob().GetPhase() != "" || r.GetJob().GetSpec().GetRestart().GetMax() != 3 {
		t.Fatalf("%v, %v", r, err)
	}
	if w := strings.Join(r.GetWarnings(), "\n"); !strings.Contains(w, "spec.gpus") {
		t.Errorf("warnings %q do not say that no GPU was asked for", w)
	}
	names, _ := h.bus.Objects(bus.BucketBundles).List(context.Background(), "")
	if len(h.sched.requests()) != before || len(names) != 0 {
		t.Errorf("a dry run wrote %v, or asked the scheduler", names)
	}
}

// A request that nobody decides in time is kept, and said to be undecided; asking again with the same id is harmless.
func TestUndecided(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.DecideWait = 30 * time.Millisecond })
	h.sched.set(true, false)
	text := manifest("acme", "slow", testID(7), "")
	for range 2 {
		r, err := h.submit("ann", text)
		if err != nil || !r.GetUndecided() || r.GetJob().GetId() != testID(7) || r.GetJob().GetPhase() != "" {
			t.Fatalf("%v, %v", r, err)
		}
	}
	_, err := h.jobs().GetJob(h.as("ann"), apiv1.GetJobRequest_builder{Job: new(testID(7))}.Build())
	wantError(t, err, codes.NotFound, testID(7))
	_, err = h.cell().ApplyQueues(h.as("root"), apiv1.ApplyQueuesRequest_builder{Manifest: new("queues: [{name: new}]")}.Build())
	wantError(t, err, codes.Unavailable, "stored", "weft queues")
	h.sched.set(false, false)
	testkit.Eventually(t, patience, func() error {
		_, err := h.jobs().GetJob(h.as("ann"), apiv1.GetJobRequest_builder{Job: new(testID(7))}.Build())
		return err
	})
	if job := h.mustSubmit("ann", text); job.GetPhase() != "queued" {
		t.Errorf("got %v", job)
	}
}

// Two submits pass the gateway's own check at once; the ledger lets one in, and the other one's caller hears why, also
// when the scheduler kept no word of it.
func TestRefusedByTheScheduler(t *testing.T) {
	for _, mute := range []bool{false, true} {
		h := newHarness(t)
		h.sched.set(true, mute)
		errs := make(chan error, 2)
		for i := range 2 {
			go func() {
				_, err := h.submit("ann", manifest("acme", "same", testID(i+1), ""))
				errs <- err
			}()
		}
		out := h.bus.Outbox(bus.StreamRequests)
		testkit.Eventually(t, patience, func() bool {
			_, seq, _, _ := out.Last(context.Background())
			return seq == 3 // the queues, and both submits
		})
		h.sched.set(false, mute)
		first, second := <-errs, <-errs
		if first == nil {
			first, second = second, first
		}
		if second != nil {
			t.Fatalf("mute %v: both refused: %v, %v", mute, first, second)
		}
		wantError(t, first, codes.InvalidArgument, "metadata.name (line 3)", "same")
	}
}

func TestBusTrouble(t *testing.T) {
	h := newHarness(t)
	h.bus.Limit(bus.StreamRequests, 1)
	_, err := h.submit("ann", manifest("acme", "x", "", ""))
	wantError(t, err, codes.Unavailable, "try again")
	h.bus.Limit(bus.StreamRequests, 0)
	h.bus.SetDown(true)
	_, err = h.submit("ann", manifest("acme", "x", "", ""))
	wantError(t, err, codes.Unavailable, "repeated")
	h.bus.SetDown(false)
	h.mustSubmit("ann", manifest("acme", "x", "", ""))
}

func TestRateLimit(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Rate, c.Burst = 0.001, 9 })
	for range 2 { // 4 units each
		h.mustSubmit("ann", manifest("acme", "x", testID(1), ""))
	}
	_, err := h.submit("ann", manifest("acme", "x", testID(1), ""))
	wantError(t, err, codes.ResourceExhausted, "acme", "try again")
	if _, err := h.submit("bob", manifest("beta", "x", testID(2), "")); err != nil {
		t.Errorf("another tenant is held back too: %v", err)
	}
	for range 20 {
		if _, err := h.cell().GetStatus(h.as("root"), &apiv1.GetStatusRequest{}); err != nil {
			t.Fatalf("an administrator is held back: %v", err)
		}
	}
}

// Of several refusals within a second only the first is written down; the others are refusals all the same.
func TestQueuesThatAreNotAsAskedAreNoSuccess(t *testing.T) {
	h := newHarness(t)
	h.mustSubmit("ann", manifest("acme", "holds", testID(8), ""))
	h.sched.set(false, true)
	_, err := h.cell().ApplyQueues(h.as("root"), apiv1.ApplyQueuesRequest_builder{Manifest: new("queues: [{name: acme, removed: true}]")}.Build())
	wantError(t, err, codes.InvalidArgument, "acme", "repeat")
	_, err = h.cell().ApplyQueues(h.as("root"), apiv1.ApplyQueuesRequest_builder{Manifest: new("queues: [{name: other, weight: 3}, {name: gone, removed: true}]")}.Build())
	if err != nil {
		t.Errorf("changed as asked: %v", err)
	}
}

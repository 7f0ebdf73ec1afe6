package telemetry_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/libs/metric"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/libs/testkit"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/telemetry"
)

// rig is the service on memory adapters, with a ledger to write and a stream to publish to.
type rig struct {
	t      *testing.T
	writer *ledger.Writer[*cell.State]
	out    bus.Outbox
	addr   string
	sim    *device.Sim
	start  time.Time
	at     time.Time // ledger time of the next commit
}

func newRig(t *testing.T) *rig {
	t.Helper()
	b := membus.New()
	log := memledger.New()
	proj := ledger.NewProjection(log, cellfold.Fold(), nil)
	sim, err := device.NewSim("h100x2", 1)
	if err != nil {
		t.Fatal(err)
	}
	cfg := telemetry.DefaultConfig()
	cfg.Metrics = "127.0.0.1:0"
	cfg.Settle = 0
	s, err := telemetry.New(cfg, telemetry.Deps{Metrics: b.Inbox(bus.StreamMetrics, bus.SubjectMetric("*")), Proj: proj})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.Run(ctx) }()
	go func() { done <- run.Loop(ctx, nil, proj) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("ended with %v", err)
			}
		}
		_ = sim.Close()
	})
	r := &rig{t: t, writer: ledger.NewWriter(log, proj, "scheduler", "test"), out: b.Outbox(bus.StreamMetrics), addr: s.Addr(), sim: sim, start: time.Now().Add(-5 * time.Second).Truncate(time.Second)}
	r.at = r.start
	if err := r.writer.Lead(ctx, r.at); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) commit(facts ...*weftv1.Fact) {
	r.t.Helper()
	r.at = r.at.Add(time.Millisecond)
	if _, err := r.writer.Commit(r.t.Context(), r.at, ledger.FactEntries(facts), nil); err != nil {
		r.t.Fatal(err)
	}
}

// batch publishes second i of the node's samples, as an agent does.
func (r *rig) batch(seq uint64) {
	r.t.Helper()
	list, _, err := r.sim.Inventory(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	t0 := r.start.Add(time.Duration(seq) * time.Second)
	b := &metric.Batch{Node: "n1", Epoch: "e", Seq: seq, T0: t0.UnixNano(), DT: 1e8, Samples: 10, Simulated: true}
	for i := range 10 {
		samples, err := r.sim.Sample(r.t.Context(), t0.Add(time.Duration(i)*100*time.Millisecond))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, s := range samples {
			for dev := range list {
				if list[dev].GetUuid() != s.UUID {
					continue
				}
				for _, id := range []metric.ID{metric.Power, metric.TensorActive} {
					if v, ok := s.Values.Get(id); ok {
						c := metric.NewSeries(id, int32(dev), 10)
						c.Set(i, v)
						b.Series = append(b.Series, c)
					}
				}
			}
		}
	}
	host := metric.NewSeries(metric.HostLoad1, -1, 10)
	host.Set(9, 1.5)
	b.Series = append(b.Series, host)
	data, err := proto.Marshal(metric.Encode(b))
	if err != nil {
		r.t.Fatal(err)
	}
	r.publish(data)
}

func (r *rig) publish(data []byte) {
	r.t.Helper()
	if _, err := r.out.Publish(r.t.Context(), bus.Message{Subject: bus.SubjectMetric("n1"), Data: data}); err != nil {
		r.t.Fatal(err)
	}
}

// scrape returns the lines of /metrics.
func (r *rig) scrape() string {
	r.t.Helper()
	resp, err := http.Get("http://" + r.addr + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("status %d, %v: %s", resp.StatusCode, err, b)
	}
	return string(b)
}

// shows waits until each of the lines (or beginnings of lines) is on /metrics, and returns the page.
func (r *rig) shows(lines ...string) string {
	r.t.Helper()
	var page string
	testkit.Eventually(r.t, 10*time.Second, func() error {
		page = "\n" + r.scrape()
		for _, l := range lines {
			if !strings.Contains(page, "\n"+l) {
				return missing(l)
			}
		}
		return nil
	})
	return page
}

type missing string

func (m missing) Error() string { return "not shown: " + string(m) }

func (r *rig) inventory(gen uint64) *weftv1.Fact {
	list, _, _ := r.sim.Inventory(r.t.Context())
	return weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{Node: new("n1"), Generation: new(gen),
		Inventory: weftv1.Inventory_builder{Devices: list, Simulated: new(true), CpuMilli: new(int64(8000)), MemoryBytes: new(int64(64 << 30))}.Build()}.Build()}.Build()
}

func (r *rig) place() {
	r.commit(
		weftv1.Fact_builder{QueueSet: weftv1.QueueSet_builder{Queue: new("demo/vision"), Weight: new(int64(1)), Quota: weftv1.Amounts_builder{GpuMilli: new(int64(4000))}.Build()}.Build()}.Build(),
		weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: new("n1"), BootId: new("b")}.Build()}.Build(),
		r.inventory(1),
		weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{Job: new("01jj"), Tenant: new("demo"),
			Spec: weftv1.JobSpec_builder{Name: new("digits"), Queue: new("demo/vision"),
				Groups: []*weftv1.Group{weftv1.Group_builder{Min: new(uint32(1)), Max: new(uint32(1)), GpuMilli: new(int64(1000))}.Build()}}.Build()}.Build()}.Build(),
		weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{Job: new("01jj"), Attempt: new(uint32(1)), Size: new(uint32(1)),
			Placements: []*weftv1.Placement{weftv1.Placement_builder{Node: new("n1"), Generation: new(uint64(1)), Count: new(uint32(1)), Devices: []uint32{1}, Milli: new(int64(1000))}.Build()}}.Build()}.Build(),
	)
}

func TestMetricsShowSamplesJoinedToTheJob(t *testing.T) {
	r := newRig(t)
	r.place()
	r.batch(1)
	page := r.shows(
		`weft_gpu_power_watts{gpu="0",node="n1"} `,
		`weft_gpu_power_watts{gpu="1",node="n1"} `,
		`weft_gpu_tensor_active_ratio{gpu="1",node="n1"} `,
		`weft_host_load1{node="n1"} 1.5`,
		`weft_gpu_allocation_info{attempt="1",gpu="1",job="01jj",name="digits",node="n1",queue="demo/vision",tenant="demo"} 1`,
		`weft_job_gpu_power_watts{job="01jj",name="digits",queue="demo/vision"} `,
		`weft_job_gpu_tensor_active_ratio{job="01jj",name="digits",queue="demo/vision"} `,
		`weft_gpu_healthy{gpu="0",node="n1"} 1`,
		`weft_node_ready{node="n1"} 1`,
		`weft_node_gpus{node="n1"} 2`,
		`weft_node_gpus_free{node="n1"} 1`,
		`weft_queue_jobs{phase="starting",queue="demo/vision"} 1`,
		`weft_queue_jobs{phase="running",queue="demo/vision"} 0`,
		`weft_queue_gpus_used{queue="demo/vision"} 1`,
		`weft_queue_gpus_quota{queue="demo/vision"} 4`,
		`weft_job_gpus{job="01jj",name="digits",queue="demo/vision"} 1`,
		`weft_job_running{job="01jj",name="digits",queue="demo/vision"} 0`,
		`weft_metric_batches_received_total{node="n1"} 1`,
		`weft_metric_batches_lost_total{node="n1"} 0`,
		`weft_telemetry_ledger_position 2`,
	)
	for _, absent := range []string{"weft_gpu_nvlink_active_links{", "weft_host_cpus{", "weft_queue_gpus_limit{", `weft_gpu_allocation_info{attempt="1",gpu="0"`} {
		if strings.Contains(page, "\n"+absent) {
			t.Errorf("%s is shown, though it was not measured or does not exist", absent)
		}
	}
	if strings.Contains(page, `simulated="false"`) || !strings.Contains(page, `simulated="true"`) {
		t.Error("simulated devices are not labelled as such")
	}
}

func TestLossesAreCounted(t *testing.T) {
	r := newRig(t)
	r.batch(1)
	r.batch(4)
	r.batch(4)
	r.publish([]byte("garbage"))
	r.shows(`weft_metric_batches_lost_total{node="n1"} 2`, `weft_metric_batches_received_total{node="n1"} 2`,
		`weft_metric_batches_duplicate_total{node="n1"} 1`, `weft_metric_batches_rejected_total 1`)
}

func TestReleaseEndsTheAllocation(t *testing.T) {
	r := newRig(t)
	r.place()
	r.shows(`weft_gpu_allocation_info{attempt="1",gpu="1"`)
	r.commit(weftv1.Fact_builder{Released: weftv1.Released_builder{Job: new("01jj"), Attempt: new(uint32(1)), Node: new("n1")}.Build()}.Build())
	testkit.Eventually(t, 10*time.Second, func() bool {
		return !strings.Contains(r.scrape(), "\nweft_gpu_allocation_info{")
	})
	r.shows(`weft_node_gpus_free{node="n1"} 2`)
}

func TestAddressesOfOthersAreRefused(t *testing.T) {
	cfg := telemetry.DefaultConfig()
	for _, bad := range []string{"0.0.0.0:7403", "nowhere", "10.0.0.1:1"} {
		cfg.Metrics = bad
		if _, err := telemetry.New(cfg, telemetry.Deps{}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestHealthz(t *testing.T) {
	r := newRig(t)
	resp, err := http.Get("http://" + r.addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}

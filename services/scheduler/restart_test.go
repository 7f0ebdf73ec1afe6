package scheduler

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/run"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// machine is a node whose agent starts what it is told to, and never ends it by itself.
type machine struct {
	w       *world
	started map[string]bool
	told    string // the newest assignment: attempts, and which of them are to stop
	mu      sync.Mutex
}

func (m *machine) say(b weftv1.Report_builder) {
	b.Node, b.BootId, b.TimeNs = new("n1"), new("boot-1"), new(time.Now().UnixNano())
	data, err := proto.Marshal(b.Build())
	if err != nil {
		m.w.t.Error(err)
	}
	if _, err := m.w.bus.Outbox(bus.StreamReports).Publish(context.Background(), bus.Message{Subject: bus.SubjectReport("n1"), Data: data}); err != nil {
		m.w.t.Error(err)
	}
}

// serve beats every two seconds, and obeys.
func (m *machine) serve(ctx context.Context) {
	assigned := m.w.bus.Inbox(bus.StreamAssignments, bus.SubjectAssign("n1"))
	beat := time.NewTicker(2 * time.Second)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			data, err := proto.Marshal(weftv1.Beat_builder{Node: new("n1"), BootId: new("boot-1")}.Build())
			if err != nil {
				m.w.t.Error(err)
			}
			m.w.bus.Caller().Call(bus.SubjectBeat("n1"), data, 2*time.Second)
		case <-assigned.Wake():
			in, err := assigned.Next(ctx, 10)
			if err != nil || len(in) == 0 {
				continue
			}
			m.obey(in[len(in)-1].Data)
		}
	}
}

func (m *machine) obey(data []byte) {
	var want weftv1.Assignment
	if err := proto.Unmarshal(data, &want); err != nil {
		m.w.t.Error(err)
	}
	var told []string
	for _, x := range want.GetAttempts() {
		key := fmt.Sprintf("%s/%d stop=%t", x.GetName(), x.GetAttempt(), x.HasStop())
		told = append(told, key)
		if !m.started[key] && !x.HasStop() {
			m.started[key] = true
			m.say(weftv1.Report_builder{RanksStarted: weftv1.RanksStarted_builder{Job: new(x.GetJob()), Attempt: new(x.GetAttempt())}.Build()})
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = strings.Join(told, ", ")
}

func (m *machine) desired() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told
}

// allocator places each queued job on n1, from a projection of its own.
func (w *world) allocator(ctx context.Context, wg *sync.WaitGroup) {
	w.t.Helper()
	proj := ledger.NewProjection(w.log, cellfold.Fold(), nil)
	asks, err := w.bus.Caller().Serve(bus.SubjectRPC("allocator", "plan"), "allocator")
	if err != nil {
		w.t.Fatal(err)
	}
	wg.Go(func() { _ = run.Loop(ctx, nil, proj) })
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-asks.Wake():
			}
			for _, q := range asks.Next(10) {
				var r weftv1.PlanRequest
				if err := proto.Unmarshal(q.Data, &r); err != nil || proj.WaitFor(ctx, r.GetAt()) != nil {
					continue
				}
				data, err := proto.Marshal(weftv1.Plan_builder{Id: new("p"), Steps: place(proj)}.Build())
				if err != nil {
					w.t.Error(err)
				}
				q.Respond(data, nil)
			}
		}
	})
}

func place(proj *ledger.Projection[*cell.State]) (out []*weftv1.PlanStep) {
	proj.View(func(s *cell.State, _ ledger.Position) {
		n := s.Node("n1")
		for j := range s.WaitingJobs() {
			if n == nil || j.Phase != cell.Queued {
				continue
			}
			out = append(out, weftv1.PlanStep_builder{Start: weftv1.Start_builder{Job: &j.ID, Placements: []*weftv1.Placement{weftv1.Placement_builder{
				Node: &n.Name, Generation: &n.Generation, Group: new(uint32(0)), FirstRank: new(uint32(0)), Count: new(uint32(1)),
				Devices: []uint32{0}, Milli: new(int64(1000)),
			}.Build()}}.Build()}.Build())
			return
		}
	})
	return out
}

func (w *world) submit(id, name string) {
	w.t.Helper()
	spec := weftv1.JobSpec_builder{Name: &name, Queue: new("demo"), Groups: []*weftv1.Group{weftv1.Group_builder{
		Name: new("worker"), Min: new(uint32(1)), Max: new(uint32(1)), GpuMilli: new(int64(1000)), CpuMilli: new(int64(1000)),
		MemoryBytes: new(int64(1 << 30)), Command: []string{"true"},
	}.Build()}}.Build()
	w.request("submit", weftv1.Request_builder{Submit: weftv1.SubmitJob_builder{Job: &id, Spec: spec, SpecHash: new("b3-" + id)}.Build()})
}

func phase(r *running, id string) (out string) {
	r.proj.View(func(s *cell.State, _ ledger.Position) {
		if j := s.Job(id); j != nil {
			out = fmt.Sprintf("%s in attempt %d", j.Phase, j.Attempts)
		}
	})
	return out
}

// A running job does not notice that schedulers come and go, nor that there is none for less than the fence.
func TestRunningJobsOutliveEveryScheduler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer func() { cancel(); wg.Wait() }()
		w.allocator(ctx, &wg)
		m := &machine{w: w, started: map[string]bool{}}
		wg.Go(func() { m.serve(ctx) })
		m.say(weftv1.Report_builder{Hello: weftv1.Hello_builder{Inventory: weftv1.Inventory_builder{
			Host: new("n1"), Address: new("127.0.0.1"), CpuMilli: new(int64(8000)), MemoryBytes: new(int64(8 << 30)),
			PortBase: new(uint32(30000)), PortCount: new(uint32(64)),
			Devices: []*weftv1.Device{weftv1.Device_builder{Uuid: new("g0"), Model: new("A100-80G"), Health: new(weftv1.DeviceHealth_DEVICE_HEALTH_OK)}.Build()},
		}.Build()}.Build()})
		const train, next = "01j00000000000000000000001", "01j00000000000000000000002"
		w.queue("demo")
		w.submit(train, "train")
		var last *running
		for i, away := range []time.Duration{0, 3 * time.Second, 20 * time.Second, 9 * time.Minute} {
			pass(away) // nobody leads
			last = w.start(fmt.Sprintf("s%d", i), nil)
			pass(time.Minute)
			if got := phase(last, train); got != "running in attempt 1" {
				t.Fatalf("after %s without a scheduler the job is %s", away, got)
			}
			if got := m.desired(); got != "train/1 stop=false" {
				t.Fatalf("the node is told %s", got)
			}
			if i < 3 {
				last.stop()
			}
		}
		defer last.stop()
		w.submit(next, "next") // waits for the one device
		pass(time.Second)
		m.say(weftv1.Report_builder{AttemptReleased: weftv1.AttemptReleased_builder{Job: new(train), Attempt: new(uint32(1)), Completed: new(true)}.Build()})
		pass(10 * time.Second)
		if a, b := phase(last, train), phase(last, next); a != "succeeded in attempt 1" || b != "running in attempt 1" {
			t.Fatalf("%s; %s", a, b)
		}
		if strings.Contains(w.out.String(), "level=WARN") || strings.Contains(w.out.String(), "level=ERROR") {
			t.Errorf("all went well, and the log says:\n%s", w.out)
		}
	})
}

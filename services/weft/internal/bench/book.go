package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/jobspec"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
	"github.com/weft-fabric/weft/services/weft/allinone"
)

// book writes a ledger as the scheduler would, by its own rules, without anybody asking.
type book struct {
	proj  *ledger.Projection[*cell.State]
	w     *ledger.Writer[*cell.State]
	batch int         // facts a commit
	state *cell.State // after what is collected
	facts []*weftv1.Fact
}

// openBook leads an empty ledger; done ends its reader.
func openBook(ctx context.Context, core *bus.Conn, batch int) (b *book, done func(), err error) {
	log, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		return nil, nil, err
	}
	proj := ledger.NewProjection(log, cellfold.Fold(), nil)
	b = &book{proj: proj, w: ledger.NewWriter(log, proj, "scheduler", "bench"), batch: batch}
	if err := b.w.Lead(ctx, time.Now()); err != nil {
		log.Close()
		return nil, nil, err
	}
	return b, log.Close, nil
}

// furnish commits the queues and nodes of eight A100 each, and reads the spec that all jobs have.
func (b *book) furnish(ctx context.Context, nodes []string, spec string) (*jobSpec, error) {
	var queues []*weftv1.QueueSet
	for _, q := range []string{"default", "demo", "demo/vision"} { // those that a new fabric has
		queues = append(queues, weftv1.QueueSet_builder{Queue: &q, Weight: new(int64(1))}.Build())
	}
	if _, err := b.decide(ctx, lifecycle.ApplyQueues{Queues: queues, By: "bench"}); err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if _, err := b.decide(ctx, lifecycle.Report{Report: hello(n)}); err != nil {
			return nil, err
		}
	}
	m, err := jobspec.Parse([]byte("apiVersion: weft/v1\nkind: Job\nmetadata: {name: bench, queue: default}\n" + spec + "\n"))
	if err != nil {
		return nil, err
	}
	return &jobSpec{m}, nil
}

// decide collects what a command makes true, and says how many facts that is.
func (b *book) decide(ctx context.Context, c lifecycle.Command) (int, error) {
	if b.state == nil {
		b.proj.View(func(s *cell.State, _ ledger.Position) { b.state = s.Overlay() })
	}
	now := max(time.Now().UnixNano(), b.state.TimeNS())
	facts, err := lifecycle.Decide(b.state, c, now, lifecycle.DefaultPolicy())
	if err != nil {
		return 0, err
	}
	for _, f := range facts {
		cell.Evolve(b.state, f, now)
	}
	if b.facts = append(b.facts, facts...); len(b.facts) >= b.batch {
		return len(facts), b.commit(ctx)
	}
	return len(facts), nil
}

func (b *book) commit(ctx context.Context) error {
	if len(b.facts) == 0 {
		return nil
	}
	_, err := b.w.Commit(ctx, time.Now(), ledger.FactEntries(b.facts), nil)
	b.facts, b.state = nil, nil
	return err
}

// jobSpec makes jobs that differ by name and id only.
type jobSpec struct{ m *jobspec.Manifest }

func (s *jobSpec) submit(i int) lifecycle.Submit {
	spec := proto.CloneOf(jobspec.WithDefaults(s.m.Spec))
	spec.SetName("bench-" + strconv.Itoa(i))
	return lifecycle.Submit{Tenant: s.m.Tenant, Job: fmt.Sprintf("01k%023d", i), Spec: spec, SpecHash: s.m.Hash, By: "bench"}
}

// bootID of the nodes that nobody runs.
const bootID = "bench"

func report(node string, what func(*weftv1.Report)) *weftv1.Report {
	r := weftv1.Report_builder{Node: &node, BootId: new(bootID)}.Build()
	what(r)
	return r
}

func hello(node string) *weftv1.Report {
	inv := weftv1.Inventory_builder{
		Simulated: new(true), CpuMilli: new(int64(96_000)), MemoryBytes: new(int64(1 << 40)), Address: new("127.0.0.1"),
		PortBase: new(uint32(21000)), PortCount: new(uint32(allinone.PortsPerNode)),
	}
	for i := range 8 {
		inv.Devices = append(inv.Devices, weftv1.Device_builder{
			Uuid: new(fmt.Sprintf("GPU-%s-%d", node, i)), Model: new("A100-80G"), MemoryBytes: new(int64(80 << 30)), Clique: new(uint32(1)),
		}.Build())
	}
	return report(node, func(r *weftv1.Report) { r.SetHello(weftv1.Hello_builder{Inventory: inv.Build()}.Build()) })
}

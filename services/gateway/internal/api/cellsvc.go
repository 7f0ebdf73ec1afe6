package api

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// ListNodes shows the machines to everybody, and on them only the jobs that the caller may know.
func (s *Server) ListNodes(ctx context.Context, _ *apiv1.ListNodesRequest) (*apiv1.ListNodesResponse, error) {
	who := auth.From(ctx)
	b := apiv1.ListNodesResponse_builder{}
	st, _ := s.cell()
	for n := range st.Nodes() {
		b.Nodes = append(b.Nodes, nodeView(st, n, who))
	}
	return b.Build(), nil
}

func nodeView(st *cell.State, n *cell.Node, who auth.Identity) *apiv1.Node {
	b := apiv1.Node_builder{
		Name: &n.Name, Condition: new(string(n.Condition)), Cordoned: &n.Cordoned, Inventory: n.Inventory,
		Simulated: new(n.Inventory.GetSimulated()), UsedMilli: make([]int64, len(n.Inventory.GetDevices())),
	}
	var cpu, memory int64
	for j := range st.OnNode(n.Name) {
		if who.Sees(j.Tenant) {
			b.Jobs = append(b.Jobs, j.ID)
		}
		for _, p := range j.Attempt.Placements {
			if p.GetNode() != n.Name {
				continue
			}
			used := cell.PlacementAmounts(j.Spec, p)
			cpu += used.CPUMilli
			memory += used.MemoryBytes
			if p.GetGeneration() != n.Generation {
				continue // its indices name the devices of another inventory
			}
			for _, d := range p.GetDevices() {
				if int(d) < len(b.UsedMilli) {
					b.UsedMilli[d] += p.GetMilli()
				}
			}
		}
	}
	b.UsedCpuMilli, b.UsedMemoryBytes = &cpu, &memory
	return b.Build()
}

// ListQueues shows the queues of the caller's tenant; administrators see all.
func (s *Server) ListQueues(ctx context.Context, _ *apiv1.ListQueuesRequest) (*apiv1.ListQueuesResponse, error) {
	who := auth.From(ctx)
	b := apiv1.ListQueuesResponse_builder{}
	st, _ := s.cell()
	whole := cell.Whole(st)
	for q := range st.Queues() {
		if !who.Sees(jobspec.Tenant(q.Path)) {
			continue
		}
		t := cell.QueueTotals(st, q.Path)
		b.Queues = append(b.Queues, apiv1.Queue_builder{
			Set: q.Set, Waiting: new(uint32(t.Waiting)), Running: new(uint32(t.Active)), SharePpm: new(cell.Share(t.Used, whole)),
			Used: weftv1.Amounts_builder{GpuMilli: &t.Used.GPUMilli, CpuMilli: &t.Used.CPUMilli, MemoryBytes: &t.Used.MemoryBytes}.Build(),
		}.Build())
	}
	return b.Build(), nil
}

// ApplyQueues creates and changes queues.
func (s *Server) ApplyQueues(ctx context.Context, req *apiv1.ApplyQueuesRequest) (*apiv1.ApplyQueuesResponse, error) {
	if err := mayAdminister(auth.From(ctx), "changing queues"); err != nil {
		return nil, err
	}
	sets, err := jobspec.ParseQueues([]byte(req.GetManifest()))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	resp := apiv1.ApplyQueuesResponse_builder{Queues: sets}.Build()
	if req.GetDryRun() {
		return resp, nil
	}
	r := weftv1.Request_builder{ApplyQueues: weftv1.ApplyQueues_builder{Queues: sets}.Build()}
	if err := s.cellRequest(ctx, "queues", r, "weft queues"); err != nil {
		return nil, err
	}
	return resp, s.queuesAre(sets)
}

// ShutDown puts running jobs back into their queues before the fabric goes down.
func (s *Server) ShutDown(ctx context.Context, _ *apiv1.ShutDownRequest) (*apiv1.ShutDownResponse, error) {
	if err := mayAdminister(auth.From(ctx), "shutting the fabric down"); err != nil {
		return nil, err
	}
	r := weftv1.Request_builder{ShutDown: &weftv1.ShutDown{}}
	return &apiv1.ShutDownResponse{}, s.cellRequest(ctx, "shutdown", r, "weft ps")
}

// cellRequest sends a request that belongs to no tenant and waits for its decision.
// queuesAre checks that the state is what was asked for. A refusal within a second of another has no fact of its own.
func (s *Server) queuesAre(sets []*weftv1.QueueSet) error {
	st, _ := s.cell()
	for _, q := range sets {
		have := st.Queue(q.GetQueue())
		if q.GetRemoved() && have == nil || !q.GetRemoved() && have != nil && proto.Equal(have.Set, q) {
			continue
		}
		return status.Errorf(codes.InvalidArgument, "queue %s is not as asked: the change was refused, as one just before it, or it was changed again since; repeat it to learn why", q.GetQueue())
	}
	return nil
}

func (s *Server) cellRequest(ctx context.Context, verb string, r weftv1.Request_builder, ask string) error {
	seq, err := s.publish(ctx, jobspec.CellTenant, verb, r)
	if err != nil {
		return err
	}
	reason, refused, err := s.decided(ctx, seq)
	switch {
	case err != nil:
		return undecided(ask)
	case refused:
		return status.Error(codes.InvalidArgument, oneLine(reason))
	}
	return nil
}

// GetStatus says where the fabric stands and who the caller is.
func (s *Server) GetStatus(ctx context.Context, _ *apiv1.GetStatusRequest) (*apiv1.GetStatusResponse, error) {
	who := auth.From(ctx)
	leader, term := s.Proj.Leader()
	b := apiv1.GetStatusResponse_builder{
		Version: &s.Version, Term: &term, Leader: &leader, Tenant: &who.Tenant, Role: new(string(who.Role)),
	}
	st, at := s.cell()
	b.LedgerSeq = &at.Seq
	var nodes, devices uint32
	for n := range st.Nodes() {
		if n.Condition == cell.Lost {
			continue
		}
		nodes++
		devices += uint32(len(n.Inventory.GetDevices()))
		if n.Inventory.GetSimulated() {
			b.Simulated = new(true)
		}
	}
	b.Nodes, b.Devices = &nodes, &devices
	return b.Build(), nil
}

package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestSignIn(t *testing.T) {
	h := newHarness(t)
	ctx := h.as("nobody") // an empty token
	_, err := h.jobs().ListJobs(ctx, &apiv1.ListJobsRequest{})
	wantError(t, err, codes.Unauthenticated, "Authorization: Bearer")
	h.tokens["guess"] = "weft_guess"
	_, err = h.jobs().ListJobs(h.as("guess"), &apiv1.ListJobsRequest{})
	wantError(t, err, codes.Unauthenticated, "not known")
	st, err := h.jobs().WatchEvents(h.as("guess"), &apiv1.WatchEventsRequest{})
	if err == nil {
		_, err = st.Recv()
	}
	wantError(t, err, codes.Unauthenticated, "not known")
	// A second Authorization header does not get past the first.
	ctx = metadata.AppendToOutgoingContext(h.as("guess"), "authorization", "Bearer "+h.tokens["root"])
	_, err = h.jobs().ListJobs(ctx, &apiv1.ListJobsRequest{})
	wantError(t, err, codes.Unauthenticated)
	r, err := h.cell().GetStatus(h.as("vera"), &apiv1.GetStatusRequest{})
	if err != nil || r.GetTenant() != "acme" || r.GetRole() != "viewer" || r.GetLeader() != "scheduler-test" || r.GetTerm() != 1 || r.GetLedgerSeq() == 0 {
		t.Errorf("%v, %v", r, err)
	}
}

// A tenant's jobs do not exist for another tenant, whatever it asks.
func TestTenancy(t *testing.T) {
	h := newHarness(t)
	id := h.mustSubmit("ann", manifest("acme", "secret", testID(1), "")).GetId()
	h.mustSubmit("bob", manifest("beta", "own", testID(2), ""))
	for _, ref := range []string{id, "acme/secret", "secret"} {
		_, err := h.jobs().GetJob(h.as("bob"), apiv1.GetJobRequest_builder{Job: &ref}.Build())
		wantError(t, err, codes.NotFound, "weft ps --all")
		_, err = h.jobs().CancelJob(h.as("bob"), apiv1.CancelJobRequest_builder{Job: &ref}.Build())
		wantError(t, err, codes.NotFound)
		_, err = h.jobs().ExplainJob(h.as("bob"), apiv1.ExplainJobRequest_builder{Job: &ref}.Build())
		wantError(t, err, codes.NotFound)
		_, err = h.jobs().ListSaves(h.as("bob"), apiv1.ListSavesRequest_builder{Job: &ref}.Build())
		wantError(t, err, codes.NotFound)
		st, err := h.jobs().ReadLogs(h.as("bob"), apiv1.ReadLogsRequest_builder{Job: &ref}.Build())
		if err == nil {
			_, err = st.Recv()
		}
		wantError(t, err, codes.NotFound)
		if r, err := h.jobs().GetJob(h.as("vera"), apiv1.GetJobRequest_builder{Job: &ref}.Build()); err != nil || r.GetJob().GetId() != id {
			t.Errorf("its own tenant gets %v, %v for %q", r, err, ref)
		}
	}
	list, err := h.jobs().ListJobs(h.as("bob"), &apiv1.ListJobsRequest{})
	if err != nil || list.GetTotal() != 1 || list.GetJobs()[0].GetId() != testID(2) {
		t.Errorf("%v, %v", list, err)
	}
	if list, _ = h.jobs().ListJobs(h.as("root"), &apiv1.ListJobsRequest{}); list.GetTotal() != 2 {
		t.Errorf("an administrator sees %d jobs", list.GetTotal())
	}
	qs, err := h.cell().ListQueues(h.as("bob"), &apiv1.ListQueuesRequest{})
	if err != nil || len(qs.GetQueues()) != 1 || qs.GetQueues()[0].GetSet().GetQueue() != "beta" || qs.GetQueues()[0].GetWaiting() != 1 {
		t.Errorf("%v, %v", qs, err)
	}
	_, err = h.jobs().CancelJob(h.as("vera"), apiv1.CancelJobRequest_builder{Job: &id}.Build())
	wantError(t, err, codes.PermissionDenied, "may only read")
	_, err = h.cell().ApplyQueues(h.as("ann"), apiv1.ApplyQueuesRequest_builder{Manifest: new("queues: [{name: acme/x}]")}.Build())
	wantError(t, err, codes.PermissionDenied, "administrator")
	_, err = h.cell().ShutDown(h.as("ann"), &apiv1.ShutDownRequest{})
	wantError(t, err, codes.PermissionDenied, "administrator")
}

func TestCancel(t *testing.T) {
	h := newHarness(t)
	id := h.mustSubmit("ann", manifest("acme", "x", testID(1), "")).GetId()
	for _, ref := range []string{"acme/x", id} { // a job that has ended is no error
		r, err := h.jobs().CancelJob(h.as("ann"), apiv1.CancelJobRequest_builder{Job: &ref}.Build())
		if err != nil {
			t.Fatal(err)
		}
		if j := r.GetJob(); j.GetPhase() != "cancelled" || j.GetReason() != "cancelled by ann" || j.GetEndedNs() == 0 {
			t.Errorf("got %v", j)
		}
	}
}

func TestListPages(t *testing.T) {
	h := newHarness(t)
	for i := range 7 {
		queue := "acme"
		if i%2 == 1 {
			queue = "acme/vision"
		}
		h.mustSubmit("ann", manifest(queue, fmt.Sprintf("j%d", i), testID(i+1), ""))
	}
	if _, err := h.jobs().CancelJob(h.as("ann"), apiv1.CancelJobRequest_builder{Job: new(testID(7))}.Build()); err != nil {
		t.Fatal(err)
	}
	list := func(b apiv1.ListJobsRequest_builder) (ids []string, r *apiv1.ListJobsResponse) {
		t.Helper()
		r, err := h.jobs().ListJobs(h.as("ann"), b.Build())
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range r.GetJobs() {
			ids = append(ids, j.GetId()[20:])
		}
		return ids, r
	}
	var all []string
	token, pages := "", 0
	for {
		ids, r := list(apiv1.ListJobsRequest_builder{PageSize: new(uint32(2)), PageToken: &token})
		if r.GetTotal() != 6 {
			t.Errorf("total %d", r.GetTotal())
		}
		all = append(all, ids...)
		pages++
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	if got := strings.Join(all, " "); got != "000006 000005 000004 000003 000002 000001" || pages != 3 {
		t.Errorf("%d pages: %s", pages, got)
	}
	for _, c := range []struct {
		req  apiv1.ListJobsRequest_builder
		want string
	}{
		{apiv1.ListJobsRequest_builder{All: new(true)}, "000007 000006 000005 000004 000003 000002 000001"},
		{apiv1.ListJobsRequest_builder{Queue: new("acme/vision")}, "000006 000004 000002"},
		{apiv1.ListJobsRequest_builder{Phase: new("cancelled")}, "000007"},
		{apiv1.ListJobsRequest_builder{Phase: new("running")}, ""},
		{apiv1.ListJobsRequest_builder{Queue: new("acme/vis")}, ""},
	} {
		if ids, r := list(c.req); strings.Join(ids, " ") != c.want || int(r.GetTotal()) != len(ids) {
			t.Errorf("%v: %v, want %s", c.req.Build(), ids, c.want)
		}
	}
	_, r := list(apiv1.ListJobsRequest_builder{All: new(true)})
	if cs := r.GetCounts(); len(cs) != 2 || cs[0].GetPhase() != "queued" || cs[0].GetJobs() != 6 || cs[1].GetJobs() != 1 {
		t.Errorf("counts %v", cs)
	}
	for field, b := range map[string]apiv1.ListJobsRequest_builder{
		"phase": {Phase: new("asleep")}, "queue": {Queue: new("A")}, "page_token": {PageToken: new("x")},
	} {
		_, err := h.jobs().ListJobs(h.as("ann"), b.Build())
		wantError(t, err, codes.InvalidArgument, field)
	}
}

func TestFindByName(t *testing.T) {
	h := newHarness(t)
	h.mustSubmit("ann", manifest("acme", "twin", testID(1), ""))
	h.mustSubmit("ann", manifest("acme/vision", "twin", testID(2), ""))
	get := func(ref string) (*apiv1.GetJobResponse, error) {
		return h.jobs().GetJob(h.as("ann"), apiv1.GetJobRequest_builder{Job: &ref}.Build())
	}
	if r, err := get("acme/vision/twin"); err != nil || r.GetJob().GetId() != testID(2) {
		t.Errorf("%v, %v", r, err)
	}
	_, err := get("twin")
	wantError(t, err, codes.InvalidArgument, "several", "acme")
	_, err = get("")
	wantError(t, err, codes.InvalidArgument, "job", "weft ps")
}

// place puts a job on the machine n1.
func (h *harness) place(id string, devices ...uint32) {
	h.t.Helper()
	var dev []*weftv1.Device
	for i := range 4 {
		dev = append(dev, weftv1.Device_builder{Uuid: new(fmt.Sprint("gpu-", i)), Model: new("A100-80G")}.Build())
	}
	h.commit(
		weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: new("n1"), BootId: new("b")}.Build()}.Build(),
		weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{Node: new("n1"), Generation: new(uint64(1)), Inventory: weftv1.Inventory_builder{
			Host: new("n1"), CpuMilli: new(int64(8000)), MemoryBytes: new(int64(64 << 30)), Devices: dev, Simulated: new(true), PortBase: new(uint32(20000)), PortCount: new(uint32(100)),
		}.Build()}.Build()}.Build(),
		weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{
			Job: &id, Attempt: new(uint32(1)), Size: new(uint32(len(devices))), Placements: []*weftv1.Placement{weftv1.Placement_builder{
				Node: new("n1"), Generation: new(uint64(1)), Count: new(uint32(len(devices))), Devices: devices, Milli: new(int64(1000)),
			}.Build()},
		}.Build()}.Build(),
	)
}

func TestNodesQueuesAndPlacedJobs(t *testing.T) {
	h := newHarness(t)
	id := h.mustSubmit("ann", manifest("acme/vision", "x", testID(1), ", workers: 2, gpus: 1, cpu: 1500m")).GetId()
	h.place(id, 1, 3)
	nodes, err := h.cell().ListNodes(h.as("vera"), &apiv1.ListNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 1 {
		t.Fatalf("%v, %v", nodes, err)
	}
	n := nodes.GetNodes()[0]
	if !slices.Equal(n.GetUsedMilli(), []int64{0, 1000, 0, 1000}) || n.GetUsedCpuMilli() != 3000 || n.GetUsedMemoryBytes() != 2<<30 ||
		!n.GetSimulated() || n.GetCondition() != "ready" || !slices.Equal(n.GetJobs(), []string{id}) {
		t.Errorf("got %v", n)
	}
	if nodes, _ = h.cell().ListNodes(h.as("bob"), &apiv1.ListNodesRequest{}); len(nodes.GetNodes()[0].GetJobs()) != 0 {
		t.Error("another tenant sees whose job is on a node")
	}
	qs, err := h.cell().ListQueues(h.as("ann"), &apiv1.ListQueuesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range qs.GetQueues() { // acme and acme/vision
		if q.GetRunning() != 1 || q.GetWaiting() != 0 || q.GetUsed().GetGpuMilli() != 2000 || q.GetSharePpm() != 500_000 {
			t.Errorf("got %v", q)
		}
	}
	r, err := h.jobs().GetJob(h.as("ann"), apiv1.GetJobRequest_builder{Job: &id}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if j := r.GetJob(); j.GetPhase() != "starting" || j.GetReason() != "0 of 1 nodes have started their ranks" || !j.GetSimulated() || j.GetAttempt() != 1 || j.GetRanks() != 2 {
		t.Errorf("got %v", j)
	}
	st, err := h.cell().GetStatus(h.as("ann"), &apiv1.GetStatusRequest{})
	if err != nil || st.GetNodes() != 1 || st.GetDevices() != 4 || !st.GetSimulated() {
		t.Errorf("%v, %v", st, err)
	}
	_, err = h.cell().ApplyQueues(h.as("root"), apiv1.ApplyQueuesRequest_builder{Manifest: new("queues: [{name: acme, wieght: 2}]")}.Build())
	wantError(t, err, codes.InvalidArgument, "queues[0].wieght", "weight")
}

func TestExplain(t *testing.T) {
	h := newHarness(t)
	id := h.mustSubmit("ann", manifest("acme", "x", testID(1), "")).GetId()
	explain := func(who string) (*apiv1.ExplainJobResponse, error) {
		return h.jobs().ExplainJob(h.as(who), apiv1.ExplainJobRequest_builder{Job: new("acme/x")}.Build())
	}
	_, err := explain("ann")
	wantError(t, err, codes.Unavailable, "allocator")

	behind := 2
	h.serve(bus.SubjectRPC("allocator", "explain"), func(data []byte) ([]byte, *bus.Refusal) {
		var req weftv1.ExplainRequest
		if err := proto.Unmarshal(data, &req); err != nil || req.GetJob() != id {
			return nil, &bus.Refusal{Code: bus.CodeInvalid, Message: "what?"}
		}
		if behind--; behind >= 0 {
			return nil, &bus.Refusal{Code: bus.CodeBehind, Message: "not read yet"}
		}
		holder := func(job, queue string) *weftv1.Holder {
			return weftv1.Holder_builder{Job: &job, Queue: &queue, GpuMilli: new(int64(1000))}.Build()
		}
		out, _ := proto.Marshal(weftv1.Explanation_builder{
			Job: &id, Token: new("NoFreeDevices"), Holders: []*weftv1.Holder{holder(testID(8), "beta"), holder(testID(9), "acme/vision"), holder(testID(10), "beta/x")},
		}.Build())
		return out, nil
	})
	r, err := explain("ann")
	if err != nil {
		t.Fatal(err)
	}
	hs := r.GetExplanation().GetHolders()
	if r.GetExplanation().GetToken() != "NoFreeDevices" || len(hs) != 2 || hs[0].GetJob() != testID(9) || hs[1].GetGpuMilli() != 2000 || strings.Contains(fmt.Sprint(hs), "beta") {
		t.Errorf("got %v", r)
	}
	if r, err = explain("root"); err != nil || len(r.GetExplanation().GetHolders()) != 3 {
		t.Errorf("an administrator sees all: %v, %v", r, err)
	}
}

func TestSaves(t *testing.T) {
	h := newHarness(t)
	id := h.mustSubmit("ann", manifest("acme", "x", testID(1), "")).GetId()
	for step := range uint64(2) {
		h.commit(weftv1.Fact_builder{JobCheckpointed: weftv1.JobCheckpointed_builder{Job: &id, Save: weftv1.SaveRef_builder{
			Save: new(fmt.Sprint("s", step)), Attempt: new(uint32(1)), Step: &step, Class: new(weftv1.SaveClass_SAVE_CLASS_FULL),
		}.Build()}.Build()}.Build())
	}
	list := func() *apiv1.ListSavesResponse {
		t.Helper()
		r, err := h.jobs().ListSaves(h.as("ann"), apiv1.ListSavesRequest_builder{Job: &id}.Build())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := list(); len(r.GetSaves()) != 2 || r.GetSaves()[0].GetRef().GetSave() != "s1" || r.GetSaves()[0].GetState() != "committed" || !strings.Contains(r.GetSaves()[0].GetReason(), "does not answer") {
		t.Errorf("got %v", r)
	}
	h.serve(bus.SubjectRPC("checkpoint", "list"), func(data []byte) ([]byte, *bus.Refusal) {
		var req weftv1.SavesRequest
		if err := proto.Unmarshal(data, &req); err != nil || req.GetJob() != id {
			return nil, &bus.Refusal{Code: bus.CodeInvalid, Message: "what?"}
		}
		out, _ := proto.Marshal(weftv1.SavesReply_builder{Saves: []*weftv1.SaveState{
			weftv1.SaveState_builder{Save: weftv1.SaveRef_builder{Save: new("s2")}.Build(), State: new("partial"), Declared: new(uint32(4)), Verified: new(uint32(3))}.Build(),
		}}.Build())
		return out, nil
	})
	if r := list(); len(r.GetSaves()) != 1 || r.GetSaves()[0].GetReason() != "3 of 4 ranks are there" {
		t.Errorf("got %v", r)
	}
	g, err := h.jobs().GetJob(h.as("ann"), apiv1.GetJobRequest_builder{Job: &id}.Build())
	if err != nil || g.GetJob().GetNewestSave().GetSave() != "s1" {
		t.Errorf("%v, %v", g, err)
	}
}

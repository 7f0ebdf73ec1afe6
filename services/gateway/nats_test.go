package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// onNATS is a gateway on an embedded server with the real accounts, permissions and streams.
type onNATS struct {
	srv         *bus.Embedded
	core, nodes *bus.Conn
	jobs        apiv1.JobServiceClient
	cell        apiv1.CellServiceClient
	ctx         context.Context
}

func newOnNATS(t testing.TB) *onNATS {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*patience)
	t.Cleanup(cancel)
	srv, err := bus.StartServer(bus.ServerConfig{Dir: t.TempDir(), Tenants: []string{"acme"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	dial := func(r bus.Role) *bus.Conn {
		c, err := srv.Conn(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	if err := bus.Apply(ctx, dial(bus.RoleCoreInit), dial(bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	n := &onNATS{srv: srv, core: dial(bus.RoleCore), nodes: dial(bus.RoleNodes)}
	log, err := natsledger.Open(ctx, n.core, bus.StreamLedger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(log.Close)
	proj := ledger.NewProjection(log, cellfold.Fold(), nil)
	cfg := DefaultConfig()
	cfg.GRPC, cfg.REST, cfg.Tokens = "127.0.0.1:0", "127.0.0.1:0", filepath.Join(t.TempDir(), "tokens.json")
	token, err := CreateToken(cfg.Tokens, Grant{Name: "root", Role: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	gw, err := New(cfg, Connect(proj, n.core, n.nodes, dial(bus.RoleDoor)))
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	sched := newScheduler(t, running, log, proj, busnats.NewInbox(running, n.core, bus.StreamRequests, ""))
	sched.set(false, false) // begins to read
	done := make(chan error, 1)
	go func() { done <- gw.Run(running) }()
	conn, err := grpc.NewClient("passthrough:///"+gw.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
		<-sched.done
	})
	n.ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	n.jobs, n.cell = apiv1.NewJobServiceClient(conn), apiv1.NewCellServiceClient(conn)
	if _, err := n.cell.ApplyQueues(n.ctx, apiv1.ApplyQueuesRequest_builder{Manifest: new("queues: [{name: acme}]")}.Build()); err != nil {
		t.Fatal(err)
	}
	return n
}

// The same gateway on the real bus: submit with files, output, events, and a pipeline with its tenant's own rights.
func TestOnNATS(t *testing.T) {
	n := newOnNATS(t)
	data := []byte(strings.Repeat("archive ", 100_000))
	put, err := n.cell.PutBundle(n.ctx)
	if err != nil {
		t.Fatal(err)
	}
	d := digest(data)
	if err := put.Send(apiv1.PutBundleRequest_builder{Digest: &d, Chunk: data}.Build()); err != nil {
		t.Fatal(err)
	}
	if _, err := put.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	text, id := manifest("acme", "x", testID(1), ", files: ."), testID(1)
	r, err := n.jobs.Submit(n.ctx, apiv1.SubmitRequest_builder{Manifest: &text, Bundle: &d}.Build())
	if err != nil || r.GetJob().GetPhase() != "queued" {
		t.Fatalf("%v, %v", r, err)
	}
	logs := busnats.NewOutbox(n.nodes, bus.StreamLogs)
	chunk, _ := proto.Marshal(weftv1.LogChunk_builder{Job: &id, Attempt: new(uint32(1)), Fd: new(uint32(1)), Data: []byte("hello\n")}.Build())
	if _, err := logs.Publish(n.ctx, bus.Message{Subject: bus.SubjectLog("n1"), Data: chunk}); err != nil {
		t.Fatal(err)
	}
	out, err := n.jobs.ReadLogs(n.ctx, apiv1.ReadLogsRequest_builder{Job: &id}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := out.Recv(); err != nil || string(m.GetData()) != "hello\n" {
		t.Errorf("%v, %v", m, err)
	}
	if m, err := out.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, %v", m, err)
	}

	tenant, err := n.srv.Conn(n.ctx, bus.TenantRole("acme"))
	if err != nil {
		t.Fatal(err)
	}
	defer tenant.Close()
	feed, err := tenant.NC().SubscribeSync("weft.event.acme.>")
	if err != nil {
		t.Fatal(err)
	}
	m, err := tenant.NC().RequestWithContext(n.ctx, "weft.request.acme.submit", []byte(`{"manifest": `+quote(manifest("acme", "y", testID(2), ""))+`}`))
	if err != nil || !strings.Contains(string(m.Data), testID(2)) || !strings.Contains(string(m.Data), "queued") {
		t.Fatalf("%v, %v", m, err)
	}
	events := busnats.NewOutbox(n.core, bus.StreamEvents)
	ev := fmt.Sprintf(`{"specversion":"1.0","id":"7/0","type":"weft.job-succeeded","subject":%q,"data":{"job":%q}}`, id, id)
	if _, err := events.Publish(n.ctx, bus.Message{Subject: bus.SubjectEvent("acme", "job-succeeded"), Data: []byte(ev)}); err != nil {
		t.Fatal(err)
	}
	m, err = feed.NextMsgWithContext(n.ctx)
	if err != nil || m.Subject != "weft.event.acme."+id+".job-succeeded" || !strings.Contains(string(m.Data), `"weftcursor":"1"`) {
		t.Fatalf("%v, %v", m, err)
	}
	m, err = tenant.NC().RequestWithContext(n.ctx, "weft.api.acme.events", []byte(`{}`))
	var page struct {
		Events []map[string]any `json:"events"`
	}
	if err != nil || json.Unmarshal(m.Data, &page) != nil || len(page.Events) != 1 || page.Events[0]["id"] != "7/0" {
		t.Errorf("%v, %v", m, err)
	}
	saves, err := n.jobs.ListSaves(n.ctx, apiv1.ListSavesRequest_builder{Job: &id}.Build())
	if err != nil || len(saves.GetSaves()) != 0 {
		t.Errorf("%v, %v", saves, err)
	}
}

// BenchmarkSubmit is a submit through gRPC, two synced writes of the spec, the request, the decision and the commit.
func BenchmarkSubmit(b *testing.B) {
	n := newOnNATS(b)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		text := manifest("acme", fmt.Sprint("j", i), testID(i), "")
		start := time.Now()
		if r, err := n.jobs.Submit(n.ctx, apiv1.SubmitRequest_builder{Manifest: &text}.Build()); err != nil || r.GetUndecided() {
			b.Fatal(r, err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

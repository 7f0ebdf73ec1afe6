package gateway

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// patience bounds every wait for something that should happen at once.
const patience = 10 * time.Second

// harness is a gateway behind its real doors, on memory adapters, with a scheduler that decides what it must.
type harness struct {
	t      *testing.T
	bus    *membus.Bus
	proj   *Projection
	gw     *Service
	sched  *scheduler
	tokens map[string]string // by name
	conn   *grpc.ClientConn
}

func newHarness(t *testing.T, change ...func(*Config)) *harness {
	t.Helper()
	h := &harness{t: t, bus: membus.New(), tokens: map[string]string{}}
	log := memledger.New()
	h.proj = ledger.NewProjection(log, cellfold.Fold(), nil)
	cfg := DefaultConfig()
	cfg.GRPC, cfg.REST, cfg.Tokens = "127.0.0.1:0", "127.0.0.1:0", filepath.Join(t.TempDir(), "tokens.json")
	for _, f := range change {
		f(&cfg)
	}
	for _, g := range []Grant{
		{"root", "", "admin"}, {"ann", "acme", "user"}, {"vera", "acme", "viewer"}, {"bob", "beta", "user"},
	} {
		token, err := CreateToken(cfg.Tokens, g)
		if err != nil {
			t.Fatal(err)
		}
		h.tokens[g.Name] = token
	}
	var err error
	h.gw, err = New(cfg, Deps{
		Proj: h.proj, Core: h.bus.Caller(), Requests: h.bus.Outbox(bus.StreamRequests), Events: h.stream(bus.StreamEvents),
		Logs: h.stream(bus.StreamLogs), Bundles: h.bus.Objects(bus.BucketBundles), Door: h.bus.Caller(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.sched = newScheduler(t, ctx, log, h.proj, h.bus.Inbox(bus.StreamRequests, ""))
	done := make(chan error, 1)
	go func() { done <- h.gw.Run(ctx) }()
	h.conn, err = grpc.NewClient("passthrough:///"+h.gw.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("gateway: %v", err)
		}
		_ = h.conn.Close()
		<-h.sched.done
	})
	h.queues("acme", "acme/vision", "beta", "default")
	return h
}

func (h *harness) stream(name string) Stream {
	out := h.bus.Outbox(name)
	return Stream{
		Open: func(context.Context) bus.Inbox { return h.bus.Inbox(name, "") },
		Last: func(ctx context.Context) (uint64, error) {
			_, seq, _, err := out.Last(ctx)
			return seq, err
		},
	}
}

// as is a context that carries somebody's token.
func (h *harness) as(name string) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+h.tokens[name])
}

func (h *harness) jobs() apiv1.JobServiceClient  { return apiv1.NewJobServiceClient(h.conn) }
func (h *harness) cell() apiv1.CellServiceClient { return apiv1.NewCellServiceClient(h.conn) }

func (h *harness) queues(paths ...string) {
	h.t.Helper()
	var b strings.Builder
	b.WriteString("queues:\n")
	for _, p := range paths {
		fmt.Fprintf(&b, "  - {name: %s}\n", p)
	}
	h.applyQueues(b.String())
}

func (h *harness) applyQueues(text string) {
	h.t.Helper()
	if _, err := h.cell().ApplyQueues(h.as("root"), apiv1.ApplyQueuesRequest_builder{Manifest: &text}.Build()); err != nil {
		h.t.Fatal(err)
	}
}

func manifest(queue, name, id, spec string) string {
	if id != "" {
		id = ", id: " + id
	}
	return fmt.Sprintf("apiVersion: weft/v1\nkind: Job\nmetadata: {name: %s, queue: %s%s}\nspec: {command: [python3, train.py]%s}\n", name, queue, id, spec)
}

func (h *harness) submit(who, text string) (*apiv1.SubmitResponse, error) {
	return h.jobs().Submit(h.as(who), apiv1.SubmitRequest_builder{Manifest: &text}.Build())
}

func (h *harness) mustSubmit(who, text string) *apiv1.Job {
	h.t.Helper()
	r, err := h.submit(who, text)
	if err != nil {
		h.t.Fatal(err)
	}
	if r.GetUndecided() {
		h.t.Fatal("undecided")
	}
	return r.GetJob()
}

// wantError checks code and text of a refusal: one line that holds every part.
func wantError(t *testing.T, err error, code codes.Code, parts ...string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code {
		t.Errorf("code %v, want %v: %v", st.Code(), code, err)
	}
	if strings.ContainsAny(st.Message(), "\n\r") {
		t.Errorf("not one line: %q", st.Message())
	}
	for _, p := range parts {
		if !strings.Contains(st.Message(), p) {
			t.Errorf("%q does not say %q", st.Message(), p)
		}
	}
}

func testID(n int) string { return fmt.Sprintf("01jd0000000000000000%06d", n) }

// scheduler consumes REQUESTS and commits, as far as the gateway sees of it.
type scheduler struct {
	t     testing.TB
	w     *ledger.Writer[*cell.State]
	proj  *Projection
	inbox bus.Inbox
	done  chan struct{}
	wake  chan struct{}

	mu     sync.Mutex
	paused bool
	mute   bool // refusals leave no fact, as when too many come
	seen   []*weftv1.Request
}

func newScheduler(t testing.TB, ctx context.Context, log ledger.Log, proj *Projection, inbox bus.Inbox) *scheduler {
	t.Helper()
	s := &scheduler{
		t: t, w: ledger.NewWriter(log, proj, "scheduler", "scheduler-test"), proj: proj, inbox: inbox,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	if err := s.w.Lead(ctx, time.Now()); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.inbox.Wake():
			case <-s.wake:
			}
			s.drain(ctx)
		}
	}()
	return s
}

func (s *scheduler) set(paused, mute bool) {
	s.mu.Lock()
	s.paused, s.mute = paused, mute
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// requests are what arrived so far.
func (s *scheduler) requests() []*weftv1.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*weftv1.Request(nil), s.seen...)
}

func (s *scheduler) drain(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.paused && ctx.Err() == nil {
		ins, err := s.inbox.Next(ctx, 1)
		if err != nil || len(ins) == 0 {
			return
		}
		in := ins[0]
		var r weftv1.Request
		if err := proto.Unmarshal(in.Data, &r); err != nil {
			s.t.Errorf("request %d: %v", in.Seq, err)
			return
		}
		if len(in.Header) != 0 {
			s.t.Errorf("request %d carries foreign headers %v", in.Seq, in.Header)
		}
		s.seen = append(s.seen, &r)
		cur := weftv1.Cursor_builder{Stream: &in.Stream, CreatedNs: &in.CreatedNS, Seq: &in.Seq}.Build()
		if _, err := s.w.Commit(ctx, time.Now(), ledger.FactEntries(s.decide(&r, in.Seq)), []*weftv1.Cursor{cur}); err != nil && ctx.Err() == nil {
			s.t.Errorf("commit: %v", err)
		}
	}
}

func (s *scheduler) decide(r *weftv1.Request, seq uint64) (facts []*weftv1.Fact) {
	reject := func(why string) {
		if !s.mute {
			facts = append(facts, weftv1.Fact_builder{InputRejected: weftv1.InputRejected_builder{
				Stream: new(bus.StreamRequests), Seq: &seq, Reason: &why, Suppressed: new(uint64(0)),
			}.Build()}.Build())
		}
	}
	s.proj.View(func(st *cell.State, _ ledger.Position) {
		switch r.WhichKind() {
		case weftv1.Request_Submit_case:
			sub := r.GetSubmit()
			switch old, no := cell.CheckSubmit(st, r.GetTenant(), sub.GetJob(), sub.GetSpec(), sub.GetSpecHash()); {
			case no != nil:
				reject(no.Message)
			case old == nil:
				facts = append(facts, weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{
					Job: new(sub.GetJob()), Tenant: new(r.GetTenant()), Spec: sub.GetSpec(), SpecHash: new(sub.GetSpecHash()), By: new(r.GetBy()),
				}.Build()}.Build())
			}
		case weftv1.Request_Cancel_case:
			facts = append(facts, weftv1.Fact_builder{JobCancelled: weftv1.JobCancelled_builder{Job: new(r.GetCancel().GetJob()), By: new(r.GetBy())}.Build()}.Build())
		case weftv1.Request_ApplyQueues_case:
			for _, q := range r.GetApplyQueues().GetQueues() {
				if q.GetRemoved() && cell.QueueTotals(st, q.GetQueue()).Waiting > 0 {
					reject("queue " + q.GetQueue() + " holds live jobs; cancel them first")
					return
				}
				facts = append(facts, weftv1.Fact_builder{QueueSet: q}.Build())
			}
		}
	})
	return facts
}

// commit writes facts of the test's choice.
func (h *harness) commit(facts ...*weftv1.Fact) {
	h.t.Helper()
	if _, err := h.sched.w.Commit(context.Background(), time.Now(), ledger.FactEntries(facts), nil); err != nil {
		h.t.Fatal(err)
	}
}

// serve answers calls to another service until the test ends.
func (h *harness) serve(subject string, answer func(data []byte) ([]byte, *bus.Refusal)) {
	h.t.Helper()
	srv, err := h.bus.Caller().Serve(subject, "test")
	if err != nil {
		h.t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	h.t.Cleanup(func() { close(stop); <-done; srv.Close() })
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-srv.Wake():
			}
			for _, r := range srv.Next(10) {
				r.Respond(answer(r.Data))
			}
		}
	}()
}

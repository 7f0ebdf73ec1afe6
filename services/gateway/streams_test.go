package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/jobspec"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// event stores a CloudEvent as the scheduler writes them.
func (h *harness) event(tenant, typ, job, name string, fact proto.Message) {
	h.t.Helper()
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(fact)
	if err != nil {
		h.t.Fatal(err)
	}
	ev, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": "1/0", "source": "/weft/ledger", "type": "weft." + typ, "subject": job, "time": "2026-01-02T03:04:05.000000006Z",
		"wefttenant": tenant, "weftqueue": tenant, "weftname": name, "data": json.RawMessage(data),
	})
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.bus.Outbox(bus.StreamEvents).Publish(context.Background(), bus.Message{Subject: bus.SubjectEvent(tenant, typ), Data: ev}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) watch(who string, b apiv1.WatchEventsRequest_builder) func() (*apiv1.WatchEventsResponse, error) {
	h.t.Helper()
	st, err := h.jobs().WatchEvents(h.as(who), b.Build())
	if err != nil {
		h.t.Fatal(err)
	}
	return st.Recv
}

func drain(t *testing.T, recv func() (*apiv1.WatchEventsResponse, error)) (lines []string) {
	t.Helper()
	for {
		ev, err := recv()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%d %s", ev.GetCursor(), ev.GetLine()))
	}
}

func TestEvents(t *testing.T) {
	h := newHarness(t)
	if got := drain(t, h.watch("ann", apiv1.WatchEventsRequest_builder{})); len(got) != 0 {
		t.Errorf("an empty stream gives %q", got)
	}
	a, b := testID(1), testID(2)
	submitted := func(id string) proto.Message {
		return weftv1.JobSubmitted_builder{Job: &id, By: new("ann")}.Build()
	}
	h.event("acme", "job-submitted", a, "train", submitted(a))
	h.event("beta", "job-submitted", b, "other", submitted(b))
	h.event("cell", "node-silent", "n1", "", weftv1.NodeSilent_builder{Node: new("n1")}.Build())
	h.event("acme", "job-placed", a, "train", weftv1.JobPlaced_builder{
		Job: &a, Attempt: new(uint32(2)), ResumeFrom: weftv1.SaveRef_builder{Save: new("s7"), Step: new(uint64(7))}.Build(),
		Placements: []*weftv1.Placement{weftv1.Placement_builder{Node: new("n1"), Count: new(uint32(4))}.Build()},
	}.Build())
	h.event("acme", "job-failed", a, "train", weftv1.JobFailed_builder{Job: &a, Reason: new("out of\nrestarts")}.Build())

	for _, c := range []struct {
		who  string
		req  apiv1.WatchEventsRequest_builder
		want string
	}{
		{"ann", apiv1.WatchEventsRequest_builder{}, "1 acme/train submitted by ann|4 acme/train attempt 2 placed on n1×4, to resume from s7 (step 7)|5 acme/train failed: out of restarts"},
		{"bob", apiv1.WatchEventsRequest_builder{}, "2 beta/other submitted by ann"},
		{"bob", apiv1.WatchEventsRequest_builder{Job: &a}, ""},
		{"root", apiv1.WatchEventsRequest_builder{After: new(uint64(2))}, "3 n1 node silent|4 acme/train attempt 2 placed on n1×4, to resume from s7 (step 7)|5 acme/train failed: out of restarts"},
		{"root", apiv1.WatchEventsRequest_builder{Job: &b}, "2 beta/other submitted by ann"},
	} {
		if got := strings.Join(drain(t, h.watch(c.who, c.req)), "|"); got != c.want {
			t.Errorf("%s, %v:\n got %s\nwant %s", c.who, c.req.Build(), got, c.want)
		}
	}
	ev, err := h.watch("ann", apiv1.WatchEventsRequest_builder{Job: &a})()
	if err != nil {
		t.Fatal(err)
	}
	var cloud map[string]any
	if err := json.Unmarshal([]byte(ev.GetEvent()), &cloud); err != nil || cloud["weftcursor"] != "1" || cloud["type"] != "weft.job-submitted" {
		t.Errorf("event %s (%v)", ev.GetEvent(), err)
	}
	if ev.GetType() != "weft.job-submitted" || ev.GetJob() != a || ev.GetTimeNs() != 1767323045000000006 {
		t.Errorf("got %v", ev)
	}

	_, err = h.watch("ann", apiv1.WatchEventsRequest_builder{After: new(uint64(99))})()
	wantError(t, err, codes.InvalidArgument, "after", "99")
	_, err = h.watch("ann", apiv1.WatchEventsRequest_builder{Live: new(true)})()
	wantError(t, err, codes.InvalidArgument, "follow")
	_, err = h.watch("ann", apiv1.WatchEventsRequest_builder{Job: new("no-such")})()
	wantError(t, err, codes.NotFound)
}

func TestFollowEvents(t *testing.T) {
	h := newHarness(t)
	a := testID(1)
	started := func(n uint32) proto.Message {
		return weftv1.AttemptRunning_builder{Job: &a, Attempt: &n}.Build()
	}
	h.event("acme", "attempt-running", a, "x", started(1))
	recv := h.watch("ann", apiv1.WatchEventsRequest_builder{Follow: new(true)})
	if ev, err := recv(); err != nil || ev.GetCursor() != 1 {
		t.Fatalf("%v, %v", ev, err)
	}
	live := h.watch("ann", apiv1.WatchEventsRequest_builder{Follow: new(true), Live: new(true), After: new(uint64(0))})
	got := make(chan uint64, 1)
	go func() {
		ev, err := live()
		if err != nil {
			t.Error(err)
		}
		got <- ev.GetCursor()
	}()
	// Whether live begins before the second or the third event, it never shows the first.
	for n := range uint32(2) {
		h.event("beta", "attempt-running", a, "x", started(9))
		h.event("acme", "attempt-running", a, "x", started(n+2))
		if ev, err := recv(); err != nil || ev.GetCursor() != uint64(2*n+3) {
			t.Fatalf("%v, %v", ev, err)
		}
	}
	for n := uint32(4); ; n++ {
		select {
		case cursor := <-got:
			if cursor < 2 {
				t.Errorf("live showed event %d", cursor)
			}
		default:
			if n < 1000 {
				h.event("acme", "attempt-running", a, "x", started(n))
				if _, err := recv(); err != nil {
					t.Fatal(err)
				}
				continue
			}
			t.Error("live showed nothing")
		}
		break
	}
	// The end of the gateway ends the stream with a reason.
	h.gw.api.Close()
	for {
		if _, err := recv(); err != nil {
			wantError(t, err, codes.Unavailable, "going down")
			break
		}
	}
}

func (h *harness) log(job string, attempt, rank, fd uint32, text string) {
	h.t.Helper()
	data, err := proto.Marshal(weftv1.LogChunk_builder{Job: &job, Attempt: &attempt, Rank: &rank, Fd: &fd, Data: []byte(text), TimeNs: new(int64(5))}.Build())
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.bus.Outbox(bus.StreamLogs).Publish(context.Background(), bus.Message{Subject: bus.SubjectLog("n1"), Data: data}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) logs(b apiv1.ReadLogsRequest_builder) func() (string, error) {
	h.t.Helper()
	b.Job = new(testID(1))
	st, err := h.jobs().ReadLogs(h.as("ann"), b.Build())
	if err != nil {
		h.t.Fatal(err)
	}
	return func() (string, error) {
		m, err := st.Recv()
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%d/%d/%d:%s", m.GetAttempt(), m.GetRank(), m.GetFd(), m.GetData()), nil
	}
}

func allLogs(t *testing.T, recv func() (string, error)) string {
	t.Helper()
	var out []string
	for {
		s, err := recv()
		if errors.Is(err, io.EOF) {
			return strings.ReplaceAll(strings.Join(out, "|"), "\n", "$")
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
}

func TestLogs(t *testing.T) {
	h := newHarness(t)
	id := h.mustSubmit("ann", manifest("acme", "x", testID(1), ", workers: 2, gpus: 1")).GetId()
	if got := allLogs(t, h.logs(apiv1.ReadLogsRequest_builder{})); got != "" {
		t.Errorf("logs before the first attempt: %q", got)
	}
	h.place(id, 0, 1)
	h.log(testID(2), 1, 0, 1, "another job's\n")
	h.log(id, 1, 0, 1, "one\ntwo\nthr")
	h.log(id, 1, 1, 2, "err\n")
	h.log(id, 1, 0, 1, "ee\nfour\n")
	if _, err := h.bus.Outbox(bus.StreamLogs).Publish(context.Background(), bus.Message{Subject: bus.SubjectLog("n1"), Data: []byte("\xff\xff")}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		req  apiv1.ReadLogsRequest_builder
		want string
	}{
		{apiv1.ReadLogsRequest_builder{}, "1/0/1:one$two$thr|1/1/2:err$|1/0/1:ee$four$"},
		{apiv1.ReadLogsRequest_builder{Ranks: []uint32{1}}, "1/1/2:err$"},
		{apiv1.ReadLogsRequest_builder{Tail: new(uint32(2))}, "1/0/1:three$four$|1/1/2:err$"},
		{apiv1.ReadLogsRequest_builder{Tail: new(uint32(1)), Ranks: []uint32{0}}, "1/0/1:four$"},
		{apiv1.ReadLogsRequest_builder{Tail: new(uint32(50))}, "1/0/1:one$two$three$four$|1/1/2:err$"},
	} {
		if got := allLogs(t, h.logs(c.req)); got != c.want {
			t.Errorf("%v: %q, want %q", c.req.Build(), got, c.want)
		}
	}
	for want, req := range map[string]apiv1.ReadLogsRequest_builder{
		"ranks 0 to 1":           {Ranks: []uint32{1, 7}},
		"attempt 2 has not been": {Attempt: new(uint32(2))},
	} {
		if _, err := h.logs(req)(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", req.Build(), err, want)
		}
	}
}

// Following ends with the job, and not before what its agents sent until then was shown.
func TestFollowLogs(t *testing.T) {
	h := newHarness(t)
	id := h.mustSubmit("ann", manifest("acme", "x", testID(1), ", gpus: 1")).GetId()
	recv := h.logs(apiv1.ReadLogsRequest_builder{Follow: new(true)})
	next := func(want string) {
		t.Helper()
		if got, err := recv(); err != nil || got != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	h.place(id, 0)
	h.log(id, 1, 0, 1, "a")
	next("1/0/1:a")
	cause := weftv1.Cause_builder{Kind: new(weftv1.CauseKind_CAUSE_KIND_SIGNAL), Signal: new(int32(9)), Message: new("killed")}.Build()
	ended := func(n uint32) []*weftv1.Fact {
		return []*weftv1.Fact{
			weftv1.Fact_builder{AttemptStopping: weftv1.AttemptStopping_builder{Job: &id, Attempt: &n, Cause: cause}.Build()}.Build(),
			weftv1.Fact_builder{Released: weftv1.Released_builder{Job: &id, Attempt: &n, Node: new("n1")}.Build()}.Build(),
			weftv1.Fact_builder{AttemptEnded: weftv1.AttemptEnded_builder{Job: &id, Attempt: &n, Cause: cause}.Build()}.Build(),
		}
	}
	only := h.logs(apiv1.ReadLogsRequest_builder{Follow: new(true), Attempt: new(uint32(1))})
	h.commit(append(ended(1), weftv1.Fact_builder{JobRequeued: weftv1.JobRequeued_builder{Job: &id, Cause: cause, Charged: new(true)}.Build()}.Build())...)
	if got := allLogs(t, only); got != "1/0/1:a" {
		t.Errorf("following attempt 1 alone gave %q", got)
	}
	h.commit(weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{Job: &id, Attempt: new(uint32(2)), Size: new(uint32(1)), Placements: []*weftv1.Placement{
		weftv1.Placement_builder{Node: new("n1"), Generation: new(uint64(1)), Count: new(uint32(1)), Devices: []uint32{0}, Milli: new(int64(1000))}.Build(),
	}}.Build()}.Build())
	h.log(id, 2, 0, 1, "b")
	next("2/0/1:b")
	h.log(id, 2, 0, 1, "last words")
	h.commit(append(ended(2), weftv1.Fact_builder{JobFailed: weftv1.JobFailed_builder{Job: &id, Cause: cause}.Build()}.Build())...)
	next("2/0/1:last words")
	if got, err := recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %q, %v", got, err)
	}
}

func digest(data []byte) string {
	d := jobspec.NewDigester()
	_, _ = d.Write(data)
	return d.Digest()
}

func (h *harness) put(who, digest string, chunks ...[]byte) (*apiv1.PutBundleResponse, error) {
	h.t.Helper()
	st, err := h.cell().PutBundle(h.as(who))
	if err != nil {
		h.t.Fatal(err)
	}
	for i, c := range chunks {
		b := apiv1.PutBundleRequest_builder{Chunk: c}
		if i == 0 {
			b.Digest = &digest
		}
		if st.Send(b.Build()) != nil {
			break // the answer says why
		}
	}
	return st.CloseAndRecv()
}

func TestBundles(t *testing.T) {
	h := newHarness(t)
	data := []byte(strings.Repeat("what travels", 100000))
	d := digest(data)
	if r, err := h.put("ann", d, data[:500000], data[500000:]); err != nil || r.GetExisted() {
		t.Fatalf("%v, %v", r, err)
	}
	rd, err := h.bus.Objects(bus.BucketBundles).Get(context.Background(), d)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(rd); string(got) != string(data) {
		t.Errorf("stored %d bytes", len(got))
	}
	if r, err := h.put("ann", d, nil); err != nil || !r.GetExisted() {
		t.Errorf("again: %v, %v", r, err)
	}
	text := manifest("acme", "files", testID(1), ", files: .")
	r, err := h.jobs().Submit(h.as("ann"), apiv1.SubmitRequest_builder{Manifest: &text, Bundle: &d}.Build())
	if err != nil || r.GetJob().GetSpec().GetBundle() != d {
		t.Errorf("%v, %v", r, err)
	}
	// The manifest that get prints names the bundle, and is the same job.
	if again := h.mustSubmit("ann", r.GetJob().GetManifest()); again.GetId() != testID(1) {
		t.Errorf("became %s", again.GetId())
	}
	other := "b3-" + strings.Repeat("0", 64)
	_, err = h.put("ann", other, data[:500000])
	wantError(t, err, codes.InvalidArgument, "digest", d[:3])
	if ok, _ := h.bus.Objects(bus.BucketBundles).Has(context.Background(), other); ok {
		t.Error("bytes with another digest were stored")
	}
	_, err = h.put("ann", "../etc/passwd", data[:5])
	wantError(t, err, codes.InvalidArgument, "digest")
	_, err = h.put("vera", d, data[:5])
	wantError(t, err, codes.PermissionDenied)
	for _, bad := range []struct{ bundle, part string }{{"nonsense", "bundle"}, {other, "not stored"}} {
		_, err = h.jobs().Submit(h.as("ann"), apiv1.SubmitRequest_builder{Manifest: new(manifest("acme", "f2", "", ", files: .")), Bundle: &bad.bundle}.Build())
		wantError(t, err, codes.InvalidArgument, bad.part)
	}
}

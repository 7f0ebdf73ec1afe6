package api

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

const (
	defaultPage = 500
	largestPage = 5000
)

// find returns the job that ref names, if the caller may know of it: an id, queue/name of a live job, or the name alone
// where it is the only one.
func find(st *cell.State, who auth.Identity, ref string) (*cell.Job, error) {
	if ref == "" {
		return nil, status.Error(codes.InvalidArgument, "job: is empty; name a job by its id or by queue/name (see: weft ps)")
	}
	// In a REST path queue/name comes with its slashes escaped, and they stay so: unescaped they would divide the path.
	ref = strings.NewReplacer("%2F", "/", "%2f", "/").Replace(ref)
	if j := st.Job(ref); j != nil && who.Sees(j.Tenant) {
		return j, nil
	}
	if i := strings.LastIndexByte(ref, '/'); i > 0 {
		if j := st.JobByName(ref[:i], ref[i+1:]); j != nil && who.Sees(j.Tenant) {
			return j, nil
		}
	} else if !jobspec.IsID(ref) {
		var found *cell.Job
		for j := range st.LiveJobs() {
			if j.Spec.GetName() != ref || !who.Sees(j.Tenant) {
				continue
			}
			if found != nil {
				return nil, status.Errorf(codes.InvalidArgument, "job: several live jobs are named %q; write the queue too, such as %s/%s", ref, j.Queue(), ref)
			}
			found = j
		}
		if found != nil {
			return found, nil
		}
	}
	if a, ok := st.Archived(ref); ok && who.Sees(a.Tenant) {
		return nil, status.Errorf(codes.NotFound, "job %s %s at %s and has left the ledger's state; its events are kept for 30 days: weft events --job %s",
			ref, a.Phase, time.Unix(0, a.Ended).UTC().Format(time.RFC3339), ref)
	}
	return nil, notFound(ref)
}

func notFound(ref string) error {
	if !jobspec.IsID(ref) {
		return status.Errorf(codes.NotFound, "no live job is named %q; one that has ended goes by its id; see: weft ps --all", ref)
	}
	return status.Errorf(codes.NotFound, "job %s is not known; see: weft ps --all", ref)
}

// GetJob returns one job.
func (s *Server) GetJob(ctx context.Context, req *apiv1.GetJobRequest) (*apiv1.GetJobResponse, error) {
	st, _ := s.cell()
	j, err := find(st, auth.From(ctx), req.GetJob())
	if err != nil {
		return nil, err
	}
	return apiv1.GetJobResponse_builder{Job: jobView(st, j, s.Now().UnixNano())}.Build(), nil
}

// ListJobs lists newest first, a page at a time, with totals over all pages.
func (s *Server) ListJobs(ctx context.Context, req *apiv1.ListJobsRequest) (*apiv1.ListJobsResponse, error) {
	who := auth.From(ctx)
	phase := cell.Phase(req.GetPhase())
	if phase != "" && !slices.Contains(cell.Phases, phase) {
		return nil, status.Errorf(codes.InvalidArgument, "phase: %q is not known; use one of %s", req.GetPhase(), joinPhases())
	}
	if q := req.GetQueue(); q != "" {
		if why := jobspec.CheckQueue(q); why != "" {
			return nil, status.Error(codes.InvalidArgument, "queue: "+why)
		}
	}
	if tok := req.GetPageToken(); tok != "" && !jobspec.IsID(tok) {
		return nil, status.Error(codes.InvalidArgument, "page_token: is not one that a page before returned; leave it out to begin anew")
	}
	size := int(min(req.GetPageSize(), largestPage))
	if size == 0 {
		size = defaultPage
	}
	st, _ := s.cell()
	jobs := st.LiveJobs()
	if req.GetAll() || phase.Ended() {
		jobs = st.Jobs()
	}
	var match []*cell.Job
	counts := map[cell.Phase]uint32{}
	for j := range jobs {
		if !who.Sees(j.Tenant) || !inQueue(j.Queue(), req.GetQueue()) {
			continue
		}
		counts[j.Phase]++
		if phase == "" || phase == j.Phase {
			match = append(match, j)
		}
	}
	b := apiv1.ListJobsResponse_builder{Total: new(uint32(len(match)))}
	now := s.Now().UnixNano()
	for _, j := range slices.Backward(match) {
		if tok := req.GetPageToken(); tok != "" && j.ID >= tok {
			continue
		}
		if len(b.Jobs) == size {
			b.NextPageToken = new(b.Jobs[size-1].GetId())
			break
		}
		b.Jobs = append(b.Jobs, jobRow(st, j, now).Build())
	}
	for _, p := range cell.Phases {
		if counts[p] > 0 {
			b.Counts = append(b.Counts, apiv1.PhaseCount_builder{Phase: new(string(p)), Jobs: new(counts[p])}.Build())
		}
	}
	return b.Build(), nil
}

func joinPhases() string {
	var words []string
	for _, p := range cell.Phases {
		words = append(words, string(p))
	}
	return strings.Join(words, ", ")
}

// inQueue says whether a queue is root or below it; every queue is below "".
func inQueue(queue, root string) bool {
	return root == "" || queue == root || strings.HasPrefix(queue, root+"/")
}

// CancelJob asks for a job's end; a job that has ended already is no error.
func (s *Server) CancelJob(ctx context.Context, req *apiv1.CancelJobRequest) (*apiv1.CancelJobResponse, error) {
	who := auth.From(ctx)
	if err := mayWrite(who); err != nil {
		return nil, err
	}
	job, err := s.lookup(who, req.GetJob())
	if err != nil {
		return nil, err
	}
	id := job.ID
	if job.Phase.Ended() {
		return apiv1.CancelJobResponse_builder{Job: s.viewJob(id)}.Build(), nil
	}
	seq, err := s.publish(ctx, job.Tenant, "cancel", weftv1.Request_builder{Cancel: weftv1.CancelJob_builder{Job: &id}.Build()})
	if err != nil {
		return nil, err
	}
	reason, refused, err := s.decided(ctx, seq)
	if err != nil {
		return nil, undecided("weft get " + id)
	}
	now := s.viewJob(id)
	switch {
	case now == nil:
		return nil, notFound(id)
	case refused && !cell.Phase(now.GetPhase()).Ended():
		return nil, status.Error(codes.InvalidArgument, "job: "+oneLine(reason))
	}
	return apiv1.CancelJobResponse_builder{Job: now}.Build(), nil
}

func undecided(ask string) error {
	return status.Error(codes.Unavailable, "the request is stored, and not decided yet; see: "+ask)
}

// lookup finds a job that the caller names.
func (s *Server) lookup(who auth.Identity, ref string) (*cell.Job, error) {
	st, _ := s.cell()
	return find(st, who, ref)
}

// explainTimeout bounds one question to the allocator; explainTries how often one that has not read far enough is asked.
const (
	explainTimeout = 2 * time.Second
	explainTries   = 5
	explainPause   = 50 * time.Millisecond
)

// ExplainJob asks the allocator.
func (s *Server) ExplainJob(ctx context.Context, req *apiv1.ExplainJobRequest) (*apiv1.ExplainJobResponse, error) {
	who := auth.From(ctx)
	job, err := s.lookup(who, req.GetJob())
	if err != nil {
		return nil, err
	}
	data, err := proto.Marshal(weftv1.ExplainRequest_builder{Job: &job.ID}.Build())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	var e weftv1.Explanation
	for try := 1; ; try++ {
		r := s.Core.Call(bus.SubjectRPC("allocator", "explain"), data, explainTimeout).Wait(ctx)
		if r.Err == nil {
			if err := proto.Unmarshal(r.Data, &e); err != nil {
				return nil, status.Errorf(codes.Internal, "the allocator's answer cannot be read: %v", err)
			}
			break
		}
		var refusal *bus.Refusal
		behind := errors.As(r.Err, &refusal) && (refusal.Code == bus.CodeBehind || refusal.Code == bus.CodeNotFound)
		if !behind || try == explainTries {
			return nil, callError("allocator", r.Err)
		}
		select {
		case <-time.After(explainPause):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	s.hideOthers(who, &e)
	return apiv1.ExplainJobResponse_builder{Explanation: &e}.Build(), nil
}

// hideOthers merges what other tenants hold: a tenant may know that its job waits for them, not for which jobs.
func (s *Server) hideOthers(who auth.Identity, e *weftv1.Explanation) {
	var own []*weftv1.Holder
	var others int64
	for _, h := range e.GetHolders() {
		if who.Sees(jobspec.Tenant(h.GetQueue())) {
			own = append(own, h)
		} else {
			others += h.GetGpuMilli()
		}
	}
	if others > 0 {
		own = append(own, weftv1.Holder_builder{Job: new("jobs"), Queue: new("of other tenants"), GpuMilli: &others}.Build())
	}
	e.SetHolders(own)
}

package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/oklog/ulid/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	"github.com/weft-fabric/weft/libs/killpoint"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// traceparentRE is W3C trace context, version 00; anything else is dropped.
var traceparentRE = regexp.MustCompile(`^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// Submit validates, stores the spec, asks the scheduler, and waits for its decision.
func (s *Server) Submit(ctx context.Context, req *apiv1.SubmitRequest) (*apiv1.SubmitResponse, error) {
	who := auth.From(ctx)
	if err := mayWrite(who); err != nil {
		return nil, err
	}
	m, err := s.parse(who, req)
	if err != nil {
		return nil, err
	}
	id := m.ID
	if id == "" {
		id = strings.ToLower(ulid.MustNew(ulid.Timestamp(s.Now()), rand.Reader).String())
	}
	spec := jobspec.WithDefaults(m.Spec)
	known, warnings, err := s.preview(id, m, spec)
	if err != nil || known != nil {
		return apiv1.SubmitResponse_builder{Job: known, Warnings: warnings}.Build(), err
	}
	if req.GetDryRun() {
		return apiv1.SubmitResponse_builder{Job: pendingJob(id, spec), Warnings: warnings}.Build(), nil
	}
	if err := s.store(ctx, spec); err != nil {
		return nil, err
	}
	r := weftv1.Request_builder{Submit: weftv1.SubmitJob_builder{Job: &id, Spec: spec, SpecHash: &m.Hash}.Build()}
	seq, err := s.publish(ctx, m.Tenant, "submit", r)
	if err != nil {
		return nil, err
	}
	killpoint.Reach(killpoint.Submit)
	reason, refused, err := s.decided(ctx, seq)
	if refused {
		// The state may say it with field and line, as it did before the request was written.
		if _, _, err := s.preview(id, m, spec); err != nil {
			return nil, err
		}
		return nil, status.Error(codes.InvalidArgument, oneLine(reason))
	}
	if err == nil {
		// Whatever became of it: the job is there, or the state says why not.
		known, _, err := s.preview(id, m, spec)
		if err != nil || known != nil {
			return apiv1.SubmitResponse_builder{Job: known, Warnings: warnings}.Build(), err
		}
	}
	return apiv1.SubmitResponse_builder{Job: pendingJob(id, spec), Undecided: new(true), Warnings: warnings}.Build(), nil
}

// parse reads and checks what needs no state of the cell.
func (s *Server) parse(who auth.Identity, req *apiv1.SubmitRequest) (*jobspec.Manifest, error) {
	m, err := jobspec.Parse([]byte(req.GetManifest()))
	if err == nil {
		err = m.CheckGrace(s.Fence)
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if !who.Sees(m.Tenant) {
		return nil, status.Error(codes.PermissionDenied, m.Errorf("metadata.queue",
			"%q belongs to tenant %s, and token %q to tenant %s; use a queue under %s (see: weft queues)",
			m.Spec.GetQueue(), m.Tenant, who.Name, who.Tenant, who.Tenant).Error())
	}
	b := req.GetBundle()
	switch {
	case b == "" && m.Files != "":
		return nil, status.Error(codes.InvalidArgument, m.Errorf("spec.files",
			"the files are not uploaded; submit by the weft command, or PUT a tar.gz to /v1/bundles/{digest} and name its digest as bundle").Error())
	case b != "" && !jobspec.IsDigest(b):
		return nil, status.Errorf(codes.InvalidArgument, "bundle: %q is not a digest; write b3- and 64 hex digits", b)
	case b != "" && m.Spec.GetBundle() != "" && m.Spec.GetBundle() != b:
		return nil, status.Error(codes.InvalidArgument, m.Errorf("spec.bundle", "differs from the bundle of the call; keep one of them").Error())
	case b != "":
		m.SetBundle(b)
	}
	return m, nil
}

// preview asks the state what the scheduler would say: a job that exists already, or a refusal.
func (s *Server) preview(id string, m *jobspec.Manifest, spec *weftv1.JobSpec) (known *apiv1.Job, warnings []string, err error) {
	st, _ := s.cell()
	j, refusal := cell.CheckSubmit(st, m.Tenant, id, spec, m.Hash)
	switch {
	case refusal != nil:
		return nil, nil, refusalError(m, refusal)
	case j != nil:
		return jobView(st, j, s.Now().UnixNano()), nil, nil
	}
	return nil, warn(st, m, spec), nil
}

// warn says what is allowed and yet probably not meant.
func warn(st *cell.State, m *jobspec.Manifest, spec *weftv1.JobSpec) []string {
	var out []string
	if never, largest := cell.NeverFits(st, spec); never {
		out = append(out, "the job can never start on the fabric as it is, and waits until machines join: "+largest)
	}
	gpus := false
	for _, g := range m.Spec.GetGroups() {
		gpus = gpus || g.HasGpuMilli()
	}
	if !gpus && m.Spec.GetFramework() > weftv1.Framework_FRAMEWORK_NONE {
		out = append(out, "spec.gpus is not set, so the ranks get no accelerator; write gpus: 1, or gpus: 0 to say so")
	}
	return out
}

// store puts the spec where agents fetch it. It comes before the request: a job must never be placed without it.
func (s *Server) store(ctx context.Context, spec *weftv1.JobSpec) error {
	if b := spec.GetBundle(); b != "" {
		ok, err := s.Bundles.Has(ctx, b)
		if err != nil {
			return unavailable("look for the bundle", err)
		}
		if !ok {
			return status.Errorf(codes.InvalidArgument, "spec.bundle: %s is not stored here; submit by the weft command, which uploads it, or PUT it to /v1/bundles/%s", b, b)
		}
	}
	data, err := jobspec.SpecBytes(spec)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "manifest: %v; use UTF-8 text", err)
	}
	if err := s.Bundles.Put(ctx, jobspec.SpecKey(spec), bytes.NewReader(data)); err != nil {
		return unavailable("store the spec", err)
	}
	return nil
}

// publish writes a fresh request.
func (s *Server) publish(ctx context.Context, tenant, verb string, r weftv1.Request_builder) (uint64, error) {
	now := s.Now()
	r.Id = new(strings.ToLower(ulid.MustNew(ulid.Timestamp(now), rand.Reader).String()))
	r.Tenant, r.By, r.TimeNs = &tenant, new(auth.From(ctx).Name), new(now.UnixNano())
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if tp := md.Get("traceparent"); len(tp) == 1 && traceparentRE.MatchString(tp[0]) {
			r.Traceparent = &tp[0]
		}
	}
	data, err := requestBytes(r)
	if err != nil {
		return 0, err
	}
	seq, err := s.Requests.Publish(ctx, bus.Message{Subject: bus.SubjectRequest(tenant, verb), Data: data})
	if errors.Is(err, bus.ErrFull) {
		return 0, status.Error(codes.Unavailable, "too many requests wait for the scheduler; try again in a moment")
	}
	if err != nil {
		return 0, unavailable("hand the request to the scheduler", err)
	}
	return seq, nil
}

// decided waits until the scheduler has consumed the request.
func (s *Server) decided(ctx context.Context, seq uint64) (reason string, refused bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.DecideWait)
	defer cancel()
	return s.track.wait(ctx, seq)
}

// viewJob returns the job as the ledger knows it now, or nil.
func (s *Server) viewJob(id string) *apiv1.Job {
	st, _ := s.cell()
	if j := st.Job(id); j != nil {
		return jobView(st, j, s.Now().UnixNano())
	}
	return nil
}

// oneLine keeps a message of another service on one line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// unavailable says that a part of the fabric did not answer.
func unavailable(what string, err error) error {
	return status.Error(codes.Unavailable, oneLine(fmt.Sprintf("could not %s: %v; the same call may be repeated", what, err)))
}

package api

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/jobspec"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// WatchEvents streams what EVENTS holds for the caller's tenant, and then what comes.
func (s *Server) WatchEvents(req *apiv1.WatchEventsRequest, st grpc.ServerStreamingServer[apiv1.WatchEventsResponse]) error {
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	who := auth.From(ctx)
	job := req.GetJob()
	if job != "" && !jobspec.IsID(job) {
		// Names are of live jobs; an id may be of a job that has left the state, and its events are still there.
		j, err := s.lookup(who, job)
		if err != nil {
			return err
		}
		job = j.ID
	}
	last, err := s.Events.Last(ctx)
	if err != nil {
		return unavailable("read the events", err)
	}
	from := req.GetAfter()
	switch {
	case req.GetLive() && !req.GetFollow():
		return status.Error(codes.InvalidArgument, "live: only new events are asked for, and not to follow them; set follow too")
	case req.GetLive():
		from = last
	case from > last:
		return status.Errorf(codes.InvalidArgument, "after: cursor %d lies beyond the newest event %d; the stream was made anew, begin with 0", from, last)
	}
	r := reading{inbox: s.Events.Open(ctx), from: from, until: last, ends: !req.GetFollow()}
	r.each = func(in bus.Input) error {
		tenant := subjectToken(in.Subject, 2)
		if !who.Sees(tenant) {
			return nil
		}
		if job != "" && !mayConcern(in, job) {
			return nil
		}
		ev := ReadEvent(in)
		if job != "" && ev.GetJob() != job {
			return nil
		}
		return st.Send(ev)
	}
	return r.run(ctx, s.quit)
}

// Page is a part of a tenant's history.
type Page struct {
	Events []*apiv1.WatchEventsResponse
	Cursor uint64 // everything up to it was looked at
	More   bool
}

// maxPage and maxPageBytes bound one page, so that the answer fits into a message.
const (
	maxPage      = 100
	maxPageBytes = 512 << 10
)

// errPageFull ends the reading of a page.
var errPageFull = errors.New("page full")

// History returns up to limit (0 = as many as fit) of the caller's events after a cursor, of one job if it is named.
func (s *Server) History(ctx context.Context, after uint64, job string, limit int) (*Page, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	who := auth.From(ctx)
	last, err := s.Events.Last(ctx)
	if err != nil {
		return nil, unavailable("read the events", err)
	}
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	page, size := &Page{Cursor: max(after, last)}, 0
	r := reading{inbox: s.Events.Open(ctx), from: after, until: last, ends: true}
	r.each = func(in bus.Input) error {
		if !who.Sees(subjectToken(in.Subject, 2)) {
			return nil
		}
		if job != "" && !mayConcern(in, job) {
			return nil
		}
		ev := ReadEvent(in)
		if job != "" && ev.GetJob() != job {
			return nil
		}
		n := len(page.Events)
		if size += len(in.Data); n == limit || n > 0 && size > maxPageBytes {
			page.Cursor, page.More = page.Events[n-1].GetCursor(), true
			return errPageFull
		}
		page.Events = append(page.Events, ev)
		return nil
	}
	if err := r.run(ctx, s.quit); err != nil && !errors.Is(err, errPageFull) {
		return nil, err
	}
	return page, nil
}

// Live calls f for every event of every tenant that comes from now on, until ctx ends or f fails.
func (s *Server) Live(ctx context.Context, f func(tenant string, ev *apiv1.WatchEventsResponse) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	last, err := s.Events.Last(ctx)
	if err != nil {
		return unavailable("read the events", err)
	}
	r := reading{inbox: s.Events.Open(ctx), from: last}
	r.each = func(in bus.Input) error { return f(subjectToken(in.Subject, 2), ReadEvent(in)) }
	return r.run(ctx, s.quit)
}

// mayConcern says, without decoding, that a message may be about a job; one whose writer did not say is decoded.
func mayConcern(in bus.Input, job string) bool {
	h := in.Header[bus.HeaderJob]
	return h == "" || h == job
}

// subjectToken returns the i-th token of a subject, from 0.
func subjectToken(subject string, i int) string {
	parts := strings.Split(subject, ".")
	if i >= len(parts) {
		return ""
	}
	return parts[i]
}

// cloudEvent is what the gateway reads of an event; everything else passes through untouched.
type cloudEvent struct {
	Type    string          `json:"type"`
	Subject string          `json:"subject"`
	Time    string          `json:"time"`
	Queue   string          `json:"weftqueue"`
	Name    string          `json:"weftname"`
	Data    json.RawMessage `json:"data"`
}

// ReadEvent turns a stored CloudEvent into what callers get: the event with its cursor, and one line for a person.
func ReadEvent(in bus.Input) *apiv1.WatchEventsResponse {
	var ev cloudEvent
	var data struct {
		Job string `json:"job"`
	}
	_ = json.Unmarshal(in.Data, &ev) // what is missing stays empty; the event itself passes as it is
	_ = json.Unmarshal(ev.Data, &data)
	var ns int64
	if t, err := time.Parse(time.RFC3339Nano, ev.Time); err == nil {
		ns = t.UnixNano()
	}
	return apiv1.WatchEventsResponse_builder{
		Cursor: &in.Seq, Event: new(withCursor(in.Data, in.Seq)), Type: &ev.Type, TimeNs: &ns, Job: &data.Job, Line: new(line(&ev)),
	}.Build()
}

// withCursor adds the extension attribute weftcursor to a CloudEvent; attributes are text or 32-bit numbers.
func withCursor(event []byte, seq uint64) string {
	text := strings.TrimSpace(string(event))
	body, ok := strings.CutSuffix(text, "}")
	if !ok || !strings.HasPrefix(text, "{") || strings.TrimSpace(body) == "{" {
		return text
	}
	return body + `,"weftcursor":"` + strconv.FormatUint(seq, 10) + `"}`
}

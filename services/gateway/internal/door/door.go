// Package door lets ML pipelines in by any NATS client: calls in the account DOOR, and the live feed of events. It
// translates between their JSON and the api, which checks them like everybody's; it never passes a pipeline's bytes,
// headers or reply subject on to the fabric's own streams.
package door

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/api"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// atOnce bounds the calls under way; a submit may wait seconds for its decision.
const atOnce = 128

// retryEvery is the pause after the feed of events failed.
const retryEvery = time.Second

// Door serves one gateway's pipelines.
type Door struct {
	caller bus.Caller
	api    *api.Server
	guard  *api.Guard
}

// New makes a door; Run opens it.
func New(caller bus.Caller, server *api.Server, guard *api.Guard) *Door {
	return &Door{caller, server, guard}
}

// Run serves calls and repeats events until ctx ends.
func (d *Door) Run(ctx context.Context) error {
	var servers []bus.Server
	for _, subject := range []string{bus.SubjectRequest("*", "*"), bus.SubjectAPI("*", "*")} {
		s, err := d.caller.Serve(subject, "gateway")
		if err != nil {
			return fmt.Errorf("door: %w", err)
		}
		defer s.Close()
		servers = append(servers, s)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, atOnce)
	for _, s := range servers {
		wg.Go(func() { d.serve(ctx, s, slots) })
	}
	wg.Go(func() { d.feed(ctx) })
	<-ctx.Done()
	return nil
}

func (d *Door) serve(ctx context.Context, s bus.Server, slots chan struct{}) {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		reqs := s.Next(16)
		for _, r := range reqs {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			calls.Go(func() {
				defer func() { <-slots }()
				r.Respond(d.answer(ctx, r), nil)
			})
		}
		if len(reqs) > 0 {
			continue
		}
		select {
		case <-s.Wake():
		case <-ctx.Done():
			return
		}
	}
}

// failure is the answer to a call that was refused; a pipeline in any language reads it without our headers.
type failure struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// answer does one call: subject weft.request.<tenant>.<verb> or weft.api.<tenant>.<method>. The server's permissions let
// a pipeline publish under its own tenant only, so the subject says who calls.
func (d *Door) answer(ctx context.Context, r bus.Request) []byte {
	tok := strings.Split(r.Subject, ".")
	if len(tok) != 4 || bus.CheckToken(tok[2]) != nil {
		return failed(status.Error(codes.InvalidArgument, "subject: write weft.request.<tenant>.submit"))
	}
	who := auth.Identity{Name: "pipeline", Tenant: tok[2], Role: auth.User}
	in, err := read(r)
	if err != nil {
		return failed(err)
	}
	cost := float64(api.ReadCost)
	if tok[1] == "request" {
		cost = api.WriteCost
	}
	if err := d.guard.Admit(who, cost); err != nil {
		return failed(err)
	}
	ctx = auth.With(ctx, who)
	if in.traceparent != "" {
		ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", in.traceparent))
	}
	out, err := d.call(ctx, tok[1]+"."+tok[3], in)
	if err != nil {
		return failed(err)
	}
	return out
}

func (d *Door) call(ctx context.Context, what string, in *input) ([]byte, error) {
	switch what {
	case "request.submit":
		return reply(d.api.Submit(ctx, apiv1.SubmitRequest_builder{Manifest: &in.Manifest, Bundle: &in.Bundle, DryRun: &in.DryRun}.Build()))
	case "request.cancel":
		return reply(d.api.CancelJob(ctx, apiv1.CancelJobRequest_builder{Job: &in.Job}.Build()))
	case "api.job":
		return reply(d.api.GetJob(ctx, apiv1.GetJobRequest_builder{Job: &in.Job}.Build()))
	case "api.events":
		return d.history(ctx, in)
	}
	return nil, status.Error(codes.InvalidArgument, "subject: not known; use weft.request.<tenant>.submit or .cancel, weft.api.<tenant>.job or .events")
}

func reply[M proto.Message](m M, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "answer: %v", err)
	}
	return b, nil
}

func failed(err error) []byte {
	var f failure
	st := status.Convert(err)
	f.Error.Code, f.Error.Message = st.Code().String(), st.Message()
	b, _ := json.Marshal(f) // two texts always encode
	return b
}

// history is a page of the tenant's events after a cursor.
func (d *Door) history(ctx context.Context, in *input) ([]byte, error) {
	page, err := d.api.History(ctx, in.After, in.Job, in.Limit)
	if err != nil {
		return nil, err
	}
	doc := struct {
		Events []json.RawMessage `json:"events"`
		Cursor uint64            `json:"cursor"` // ask again after it
		More   bool              `json:"more"`
	}{Events: []json.RawMessage{}, Cursor: page.Cursor, More: page.More}
	for _, ev := range page.Events {
		doc.Events = append(doc.Events, json.RawMessage(ev.GetEvent()))
	}
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "answer: %v", err)
	}
	return b, nil
}

// feed repeats live events in DOOR; they may be lost there, history holds them.
func (d *Door) feed(ctx context.Context) {
	for ctx.Err() == nil {
		err := d.api.Live(ctx, func(tenant string, ev *apiv1.WatchEventsResponse) error {
			typ := strings.TrimPrefix(ev.GetType(), "weft.")
			if bus.CheckToken(typ) != nil || ev.GetJob() != "" && bus.CheckToken(ev.GetJob()) != nil {
				return nil // history shows it; a subject cannot
			}
			return d.caller.Send(bus.Message{Subject: bus.SubjectDoorEvent(tenant, ev.GetJob(), typ), Data: []byte(ev.GetEvent())})
		})
		if ctx.Err() != nil {
			return
		}
		slog.Warn("the live feed of events was interrupted, trying again", "error", err)
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

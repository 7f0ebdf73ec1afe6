package api

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// savesTimeout bounds the question to the checkpoint service.
const savesTimeout = 2 * time.Second

// ListSaves asks the checkpoint service; if that does not answer, it lists the committed saves that the ledger names,
// and says so.
func (s *Server) ListSaves(ctx context.Context, req *apiv1.ListSavesRequest) (*apiv1.ListSavesResponse, error) {
	job, err := s.lookup(auth.From(ctx), req.GetJob())
	if err != nil {
		return nil, err
	}
	data, err := proto.Marshal(weftv1.SavesRequest_builder{Job: &job.ID}.Build())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	var known weftv1.SavesReply
	r := s.Core.Call(bus.SubjectRPC("checkpoint", "list"), data, savesTimeout).Wait(ctx)
	if r.Err != nil || proto.Unmarshal(r.Data, &known) != nil {
		return fromLedger(job), nil
	}
	b := apiv1.ListSavesResponse_builder{}
	for _, v := range known.GetSaves() {
		reason := v.GetReason()
		if reason == "" && v.GetState() == "partial" {
			reason = fmt.Sprintf("%d of %d ranks are there", v.GetVerified(), v.GetDeclared())
		}
		b.Saves = append(b.Saves, apiv1.Save_builder{
			Ref: v.GetSave(), State: new(v.GetState()), Bytes: new(v.GetBytes()), TimeNs: new(v.GetTimeNs()), Copies: v.GetCopies(), Reason: &reason,
		}.Build())
	}
	return b.Build(), nil
}

func fromLedger(job *cell.Job) *apiv1.ListSavesResponse {
	b := apiv1.ListSavesResponse_builder{}
	for _, save := range slices.Backward(job.Saves) {
		b.Saves = append(b.Saves, apiv1.Save_builder{
			Ref: save, State: new("committed"), Reason: new("as the ledger knows it; the checkpoint service does not answer"),
		}.Build())
	}
	return b.Build()
}

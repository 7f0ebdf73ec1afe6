package api

import (
	"context"
	"slices"

	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// ListSaves lists newest first what the ledger knows of a job's saves: the committed ones.
func (s *Server) ListSaves(ctx context.Context, req *apiv1.ListSavesRequest) (*apiv1.ListSavesResponse, error) {
	job, err := s.lookup(auth.From(ctx), req.GetJob())
	if err != nil {
		return nil, err
	}
	b := apiv1.ListSavesResponse_builder{}
	for _, save := range slices.Backward(job.Saves) {
		b.Saves = append(b.Saves, apiv1.Save_builder{Ref: save, State: new("committed")}.Build())
	}
	return b.Build(), nil
}

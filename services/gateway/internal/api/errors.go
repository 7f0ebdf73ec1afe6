package api

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/jobspec"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func requestBytes(r weftv1.Request_builder) ([]byte, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.Build())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "request: %v; use UTF-8 text", err)
	}
	return data, nil
}

// refusalError turns a refusal of the state into one line with the field, where it was written, and the cure.
func refusalError(m *jobspec.Manifest, r *cell.Refusal) error {
	text := oneLine(r.Message)
	if r.Field != "" {
		text = m.Errorf(r.Field, "%s", text).Error()
	}
	return status.Error(codes.InvalidArgument, text)
}

// callError turns the failure of a call to another service into an answer.
func callError(service string, err error) error {
	var r *bus.Refusal
	if !errors.As(err, &r) {
		return status.Errorf(codes.Unavailable, "the %s does not answer; see whether it runs, and try again", service)
	}
	code := codes.Unavailable
	switch r.Code {
	case bus.CodeNotFound:
		code = codes.NotFound
	case bus.CodeInvalid:
		code = codes.InvalidArgument
	}
	return status.Error(code, oneLine(r.Message))
}

package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weft-fabric/weft/proto"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/api"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// handler serves REST: every call goes through the gRPC door, so there is one place that signs in, bounds and answers.
func (s *Service) handler(ctx context.Context) (http.Handler, func(), error) {
	conn, err := grpc.NewClient("passthrough:///"+s.GRPCAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: connect REST to gRPC: %w", err)
	}
	gw := runtime.NewServeMux(
		// Names as in the .proto files, the same words as in manifests and in -o json.
		runtime.WithMarshalerOption(runtime.MIMEWildcard, &runtime.JSONPb{
			MarshalOptions:   protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}, // an empty list is []
			UnmarshalOptions: protojson.UnmarshalOptions{},
		}),
		runtime.WithIncomingHeaderMatcher(func(name string) (string, bool) {
			if strings.EqualFold(name, "traceparent") {
				return "traceparent", true
			}
			return runtime.DefaultHeaderMatcher(name)
		}),
		runtime.WithRoutingErrorHandler(notRouted),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptSlash),
	)
	err = errors.Join(apiv1.RegisterJobServiceHandler(ctx, gw, conn), apiv1.RegisterCellServiceHandler(ctx, gw, conn))
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("gateway: register REST: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(proto.OpenAPI)
	})
	mux.HandleFunc("PUT /v1/bundles/{digest}", func(w http.ResponseWriter, r *http.Request) {
		s.putBundle(gw, w, r)
	})
	mux.Handle("/", http.MaxBytesHandler(gw, maxCall))
	return mux, func() { _ = conn.Close() }, nil
}

// notRouted answers what no call matches. The library would turn a wrong method into "not implemented".
func notRouted(ctx context.Context, gw *runtime.ServeMux, out runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	switch code {
	case http.StatusNotFound:
		runtime.HTTPError(ctx, gw, out, w, r, status.Errorf(codes.NotFound, "%s is no path here; see /openapi.json", r.URL.Path))
	case http.StatusMethodNotAllowed:
		err := status.Errorf(codes.Unimplemented, "%s does not take %s; see /openapi.json", r.URL.Path, r.Method)
		runtime.HTTPError(ctx, gw, out, w, r, &runtime.HTTPStatusError{HTTPStatus: code, Err: err})
	default:
		runtime.DefaultRoutingErrorHandler(ctx, gw, out, w, r, code)
	}
}

// putBundle streams a bundle in; grpc-gateway would hold it in memory.
func (s *Service) putBundle(gw *runtime.ServeMux, w http.ResponseWriter, r *http.Request) {
	fail := func(err error) {
		_, out := runtime.MarshalerForRequest(gw, r)
		runtime.HTTPError(r.Context(), gw, out, w, r, err)
	}
	who, err := s.guard.SignIn(r.Header.Get("Authorization"))
	if err == nil {
		err = s.guard.Admit(who, api.WriteCost)
	}
	if err != nil {
		fail(err)
		return
	}
	body := http.MaxBytesReader(w, r.Body, api.MaxBundle+1)
	existed, err := s.api.StoreBundle(auth.With(r.Context(), who), r.PathValue("digest"), func() ([]byte, error) {
		buf := make([]byte, 256<<10)
		n, err := io.ReadFull(body, buf)
		if n > 0 {
			return buf[:n], nil // the error comes again
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return nil, err
	})
	if err != nil {
		fail(status.Convert(err).Err())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, "{\"existed\":%t}\n", existed)
}

package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"

	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/gateway/internal/api"
	"github.com/weft-fabric/weft/services/gateway/internal/auth"
	"github.com/weft-fabric/weft/services/gateway/internal/door"
)

// maxCall bounds one message of a caller; bundles come in chunks.
const maxCall = 1 << 20

// stopWithin bounds how long calls under way may take once the service ends.
const stopWithin = 3 * time.Second

// Service is the gateway; it implements run.Service.
type Service struct {
	cfg    Config
	deps   Deps
	api    *api.Server
	guard  *api.Guard
	grpc   *grpc.Server
	rest   *http.Server
	onGRPC net.Listener
	onREST net.Listener
}

// New binds both addresses, so that they are known before the first call, and registers its hooks on the projection,
// which must not have been stepped yet. Calls are answered once Run runs.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	tokens, err := auth.Open(cfg.Tokens)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	s := &Service{
		cfg: cfg, deps: deps,
		guard: api.NewGuard(tokens, cfg.Rate, cfg.Burst, time.Now),
		api: api.New(api.Options{
			Proj: deps.Proj, Core: deps.Core, Requests: deps.Requests, Events: deps.Events, Logs: deps.Logs, Bundles: deps.Bundles,
			Fence: cfg.Fence, DecideWait: cfg.DecideWait, Version: cfg.Version,
		}),
	}
	s.grpc = grpc.NewServer(grpc.MaxRecvMsgSize(maxCall), grpc.UnaryInterceptor(s.guard.Unary), grpc.StreamInterceptor(s.guard.Stream),
		grpc.MaxConcurrentStreams(1000), grpc.ConnectionTimeout(10*time.Second))
	apiv1.RegisterJobServiceServer(s.grpc, s.api)
	apiv1.RegisterCellServiceServer(s.grpc, s.api)
	if s.onGRPC, err = net.Listen("tcp", cfg.GRPC); err != nil {
		return nil, fmt.Errorf("gateway: listen for gRPC: %w; stop what uses that address, or choose another by the setting grpc", err)
	}
	if s.onREST, err = net.Listen("tcp", cfg.REST); err != nil {
		_ = s.onGRPC.Close()
		return nil, fmt.Errorf("gateway: listen for REST: %w; stop what uses that address, or choose another by the setting rest", err)
	}
	return s, nil
}

// Name implements run.Service.
func (s *Service) Name() string { return "gateway" }

// GRPCAddr is where the gRPC door listens.
func (s *Service) GRPCAddr() string { return s.onGRPC.Addr().String() }

// RESTAddr is where the REST door listens.
func (s *Service) RESTAddr() string { return s.onREST.Addr().String() }

// Run answers calls until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	handler, done, err := s.handler(ctx)
	if err != nil {
		return errors.Join(err, s.onGRPC.Close(), s.onREST.Close())
	}
	defer done()
	s.rest = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	failed := make(chan error, 3)
	var doors sync.WaitGroup
	if s.deps.Door != nil {
		doors.Go(func() {
			if err := door.New(s.deps.Door, s.api, s.guard).Run(ctx); err != nil {
				failed <- err
			}
		})
	}
	go func() { failed <- s.grpc.Serve(s.onGRPC) }()
	go func() { failed <- s.rest.Serve(s.onREST) }()
	select {
	case err = <-failed:
		err = fmt.Errorf("gateway: %w", err)
	case <-ctx.Done():
		err = nil
	}
	cancel()
	s.stop()
	doors.Wait()
	return err
}

// stop ends the streams, lets calls under way finish, and closes both doors.
func (s *Service) stop() {
	s.api.Close()
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if s.rest.Shutdown(ctx) != nil {
		_ = s.rest.Close()
	}
	stopped := make(chan struct{})
	go func() { s.grpc.GracefulStop(); close(stopped) }()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.grpc.Stop()
		<-stopped
	}
}

package api

import (
	"context"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weft-fabric/weft/services/gateway/internal/auth"
)

// Costs of calls, in units of Config.Rate.
const (
	ReadCost  = 1
	WriteCost = 4
)

// maxStreams bounds the streams that one tenant follows at a time.
const maxStreams = 256

var writes = []string{"Submit", "CancelJob", "ApplyQueues", "ShutDown", "PutBundle"}

// Guard stands before every call: it signs the caller in and bounds what a tenant may ask in a second.
type Guard struct {
	tokens *auth.Store
	limit  *limiter

	mu      sync.Mutex
	streams map[string]int
}

// NewGuard bounds each tenant to rate units a second after a burst.
func NewGuard(tokens *auth.Store, rate, burst float64, now func() time.Time) *Guard {
	return &Guard{tokens: tokens, limit: newLimiter(rate, burst, now), streams: map[string]int{}}
}

// SignIn turns an Authorization header into an identity.
func (g *Guard) SignIn(header string) (auth.Identity, error) {
	token, ok := auth.Bearer(header)
	if !ok {
		return auth.Identity{}, status.Error(codes.Unauthenticated, "no token; send the header 'Authorization: Bearer TOKEN' (weft up writes a token into its context file)")
	}
	who, ok := g.tokens.Check(token)
	if !ok {
		return auth.Identity{}, status.Error(codes.Unauthenticated, "the token is not known here; use the context file of this fabric (--context FILE), or ask an administrator for a token")
	}
	return who, nil
}

// Admit charges a call to its tenant; administrators are not bound.
func (g *Guard) Admit(who auth.Identity, cost float64) error {
	if who.Role != auth.Admin && !g.limit.take(who.Tenant, cost) {
		return status.Errorf(codes.ResourceExhausted, "tenant %s asks too much at once; wait a second and try again, or submit fewer jobs at a time", who.Tenant)
	}
	return nil
}

func (g *Guard) enter(ctx context.Context, method string) (context.Context, auth.Identity, error) {
	header := ""
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if v := md.Get("authorization"); len(v) > 0 {
			header = v[0]
		}
	}
	who, err := g.SignIn(header)
	if err != nil {
		return nil, who, err
	}
	cost := float64(ReadCost)
	if slices.Contains(writes, path.Base(method)) {
		cost = WriteCost
	}
	if err := g.Admit(who, cost); err != nil {
		return nil, who, err
	}
	return auth.With(ctx, who), who, nil
}

// Unary is the interceptor of ordinary calls.
func (g *Guard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, _, err := g.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

// Stream is the interceptor of streams.
func (g *Guard) Stream(srv any, st grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, who, err := g.enter(st.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	if err := g.open(who); err != nil {
		return err
	}
	defer g.close(who)
	return next(srv, &signedStream{st, ctx})
}

func (g *Guard) open(who auth.Identity) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streams[who.Tenant] >= maxStreams {
		return status.Errorf(codes.ResourceExhausted, "%d streams are open; close some of them first", maxStreams)
	}
	g.streams[who.Tenant]++
	return nil
}

func (g *Guard) close(who auth.Identity) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.streams[who.Tenant]--; g.streams[who.Tenant] == 0 {
		delete(g.streams, who.Tenant)
	}
}

// signedStream is a stream whose context knows the caller.
type signedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *signedStream) Context() context.Context { return s.ctx }

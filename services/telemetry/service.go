package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/telemetry/internal/export"
	"github.com/weft-fabric/weft/services/telemetry/internal/shell"
	"github.com/weft-fabric/weft/services/telemetry/window"
)

// Projection is the state of the cell as folded from the ledger. Whoever makes it also steps it.
type Projection = ledger.Projection[*cell.State]

// Deps are what the service works with; it closes none of them.
type Deps struct {
	Metrics bus.Inbox // METRICS of the NODES account, every node
	Proj    *Projection
	Clock   func() time.Time // nil = time.Now
}

// Service is the telemetry service; it implements run.Service.
type Service struct {
	deps     Deps
	store    *shell.Store
	shells   []run.Shell
	server   *http.Server
	listener net.Listener
}

// New binds the address, so that it is known before the first scrape.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Clock == nil {
		deps.Clock = time.Now
	}
	w := window.Default()
	w.Raw, w.Rollup, w.Settle = int64(cfg.Raw), int64(cfg.Rollup), int64(cfg.Settle)
	store := shell.NewStore(w)
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{export.NewCollector(store, deps.Proj, deps.Clock),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
	}
	l, err := net.Listen("tcp", cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("telemetry: listen for /metrics: %w; stop what uses that address, or choose another by the setting metrics", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
		MaxRequestsInFlight: 4, Timeout: 30 * time.Second,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	return &Service{
		deps: deps, store: store, listener: l,
		shells: []run.Shell{shell.NewIngest(deps.Metrics, store), shell.NewFollow(deps.Proj, store, cfg.Rollup)},
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10},
	}, nil
}

// Name implements run.Service.
func (s *Service) Name() string { return "telemetry" }

// Addr is where /metrics is served.
func (s *Service) Addr() string { return s.listener.Addr().String() }

// stopWithin bounds how long a scrape under way may take once the service ends.
const stopWithin = 2 * time.Second

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		err := s.server.Serve(s.listener)
		cancel() // without its door the service is of no use
		served <- err
	}()
	err := run.Loop(ctx, s.deps.Clock, s.shells...)
	stop, done := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer done()
	if s.server.Shutdown(stop) != nil {
		_ = s.server.Close()
	}
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, fmt.Errorf("telemetry: %w", e))
	}
	return err
}

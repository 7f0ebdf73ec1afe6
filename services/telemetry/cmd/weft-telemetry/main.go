// Command weft-telemetry runs the telemetry service against a bus.
package main

import (
	"context"
	"log/slog"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/program"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/telemetry"
)

func main() {
	program.Main(program.Program[telemetry.Config]{
		Name:  "weft-telemetry",
		About: `weft-telemetry keeps the newest measurements of every node and serves them to Prometheus at /metrics.`,
		Examples: `weft bus serve                             # a bus for this machine, in another terminal
weft-telemetry                             # with that bus; curl http://127.0.0.1:7403/metrics
weft-telemetry --nats nats://10.0.0.1:4222 --data /var/lib/weft --metrics 0.0.0.0:7403 --remote`,
		Defaults: telemetry.DefaultConfig(),
		Help: map[string]string{
			"metrics": "address of /metrics; port 0 = any free one",
			"remote":  "allow an address that other machines reach",
			"raw":     "how long raw samples are kept",
			"rollup":  "how long one-second rollups are kept",
			"settle":  "how long a missing batch may be late before it counts as lost",
		},
		Roles: func(telemetry.Config) []bus.Role { return []bus.Role{bus.RoleCore, bus.RoleNodes} },
		Serve: func(ctx context.Context, cfg telemetry.Config, b *program.Bus) error {
			return serve(ctx, cfg, b, func(addr string) { slog.Info("metrics are served", "url", "http://"+addr+"/metrics") })
		},
	})
}

// serve runs the service until ctx ends; listening is told where /metrics is.
func serve(ctx context.Context, cfg telemetry.Config, b *program.Bus, listening func(addr string)) error {
	l, err := program.OpenLedger(ctx, b)
	if err != nil {
		return err
	}
	defer l.Close()
	inbox := busnats.NewInbox(ctx, b.Conn(bus.RoleNodes), bus.StreamMetrics, bus.SubjectMetric("*"))
	s, err := telemetry.New(cfg, telemetry.Deps{Metrics: inbox, Proj: l.Proj})
	if err != nil {
		return err
	}
	follow, err := l.Read(ctx)
	if err != nil {
		return err
	}
	listening(s.Addr())
	return run.NewGroup("telemetry", follow, s).Run(ctx)
}

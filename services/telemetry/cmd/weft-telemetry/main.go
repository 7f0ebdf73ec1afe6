// Command weft-telemetry runs the telemetry service against a bus.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/config"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/run"
	"github.com/weft-fabric/weft/services/telemetry"
)

func main() {
	url := flag.String("nats", "nats://127.0.0.1:7402", "address of the bus")
	credentials := flag.String("credentials", os.Getenv("WEFT_CREDENTIALS"), "file of the bus's users and passwords, such as bus/bus-users.json of a data directory (WEFT_CREDENTIALS)")
	settings := flag.String("config", "", "settings file (YAML)")
	metrics := flag.String("metrics", "", "address of /metrics; overrides the settings")
	flag.Parse()
	run.Main(run.Func("telemetry", func(ctx context.Context) error {
		cfg := telemetry.DefaultConfig()
		if err := config.Load(&cfg, *settings); err != nil {
			return err
		}
		if *metrics != "" {
			cfg.Metrics = *metrics
		}
		return serve(ctx, cfg, *url, *credentials, func(addr string) { slog.Info("metrics are served", "url", "http://"+addr+"/metrics") })
	}))
}

// startWithin bounds the first look at the bus.
const startWithin = 15 * time.Second

// serve runs the service until ctx ends; listening is told where /metrics is.
func serve(ctx context.Context, cfg telemetry.Config, url, credentials string, listening func(addr string)) error {
	starting, started := context.WithTimeout(ctx, startWithin)
	defer started()
	core, err := dial(starting, url, credentials, bus.RoleCore)
	if err != nil {
		return err
	}
	defer core.Close()
	nodes, err := dial(starting, url, credentials, bus.RoleNodes)
	if err != nil {
		return err
	}
	defer nodes.Close()
	if err := bus.Verify(starting, core, nodes); err != nil {
		return err
	}
	log, err := natsledger.Open(starting, core, bus.StreamLedger)
	if err != nil {
		return err
	}
	defer log.Close()
	snaps, err := natsledger.OpenSnapshots(starting, core, bus.StreamLedger)
	if err != nil {
		return err
	}
	proj := ledger.NewProjection(log, cellfold.Fold(), snaps)
	s, err := telemetry.New(cfg, telemetry.Deps{Metrics: busnats.NewInbox(ctx, nodes, bus.StreamMetrics, bus.SubjectMetric("*")), Proj: proj})
	if err != nil {
		return err
	}
	listening(s.Addr())
	return run.NewGroup("telemetry", s, run.Func("ledger", func(ctx context.Context) error {
		return run.Loop(ctx, nil, proj)
	})).Run(ctx)
}

func dial(ctx context.Context, url, credentials string, role bus.Role) (*bus.Conn, error) {
	if credentials == "" {
		return nil, errors.New("no credentials; name the bus's file of users with --credentials or WEFT_CREDENTIALS")
	}
	b, err := os.ReadFile(credentials) // #nosec G304: the operator names it
	if err != nil {
		return nil, err
	}
	passwords := map[bus.Role]string{}
	if err := json.Unmarshal(b, &passwords); err != nil {
		return nil, fmt.Errorf("%s is no file of users: %w", credentials, err)
	}
	return bus.Dial(ctx, bus.Options{URL: url, User: string(role), Password: passwords[role], Name: "weft-telemetry"})
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/services/weft/allinone"
)

func upCmd(a *app) *cobra.Command {
	cfg := allinone.DefaultConfig()
	var verbose bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a whole fabric on this machine: all services in one process",
		Long: `Run a whole fabric on this machine: bus, scheduler, allocator, checkpoint, telemetry, gateway and node agents in one
process. With GPUs that NVML finds this machine is one node; without, simulated nodes stand in, and every listing says so
(their jobs are real processes).

Ctrl-C stops running jobs with their grace and puts them back into their queues, uncharged; they resume at the next
weft up. After SIGTERM, SIGKILL or a crash the ranks run on, and the next weft up adopts them.`,
		Example: `  weft up
  weft up --simulate 4 --profile h100-80gx8
  weft up --data /srv/weft && WEFT_CONTEXT=/srv/weft/context.json weft ps`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return &exitError{ExitUsage, err}
			}
			cfg.Verbose = verbose
			cfg.LogTo = a.errOut
			return a.up(cfg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Dir, "data", cfg.Dir, "data directory; one fabric at a time")
	f.StringVar(&cfg.GRPC, "grpc", cfg.GRPC, "address of the gRPC door (port 0 = any free one)")
	f.StringVar(&cfg.REST, "rest", cfg.REST, "address of the REST door")
	f.StringVar(&cfg.Metrics, "metrics", cfg.Metrics, "address of /metrics")
	f.StringVar(&cfg.NATS, "nats", cfg.NATS, "address of the bus")
	f.IntVar(&cfg.Simulate, "simulate", cfg.Simulate, "simulated nodes (-1 = two if NVML finds no GPU here, else none)")
	f.StringVar(&cfg.Profile, "profile", cfg.Profile, "what a simulated node has: "+allinone.Profiles())
	f.IntVar(&cfg.PortBase, "rank-ports", cfg.PortBase, "first port that ranks may use; each node takes 500 from here on")
	f.BoolVarP(&verbose, "verbose", "v", false, "log what the services do")
	return cmd
}

// up runs until Ctrl-C (requeue, then exit), a second Ctrl-C or SIGTERM (exit at once, ranks stay).
func (a *app) up(cfg allinone.Config) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sig := make(chan os.Signal, 4)
	signal.Notify(sig, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(sig)

	f, err := allinone.Start(ctx, cfg)
	if err != nil {
		var busy *allinone.BusyError
		if errors.As(err, &busy) {
			return usagef("%v; stop the other one, or choose another with %s", err, busy.Flag)
		}
		return err
	}
	lost := watchDisk(slog.Default().Handler())
	fmt.Fprintf(a.out, "fabric up in %s\n", cfg.Dir)
	for _, n := range f.Nodes() {
		fmt.Fprintf(a.out, "  node %s\n", n)
	}
	fmt.Fprintf(a.out, "  gRPC %s   REST http://%s   metrics http://%s/metrics\n", f.Context().GRPC, f.Context().REST, f.Context().Metrics)
	if cfg.Dir != allinone.DefaultDir() {
		dir, err := filepath.Abs(cfg.Dir) // the other terminal may be elsewhere
		if err != nil {
			dir = cfg.Dir
		}
		fmt.Fprintf(a.out, "in another terminal: export WEFT_CONTEXT=%s\n", filepath.Join(dir, allinone.ContextFile))
	}
	fmt.Fprintln(a.out, "try: weft run -- echo hello     (Ctrl-C here stops the fabric)")

	failed := make(chan error, 1)
	go func() { failed <- f.Wait() }()
	select {
	case err := <-failed:
		return err
	case why := <-lost:
		cancel()
		_ = f.Stop() // it says less than why
		return diskError(cfg.Dir, why)
	case s := <-sig:
		if s == os.Interrupt {
			fmt.Fprintln(a.errOut, "stopping jobs with their grace and putting them back into their queues; Ctrl-C again leaves them running")
			drained := make(chan error, 1)
			go func() { drained <- f.Drain(ctx) }()
			select {
			case err := <-drained:
				if err != nil {
					fmt.Fprintln(a.errOut, "weft: "+err.Error())
				} else {
					fmt.Fprintln(a.errOut, "stopped; what was running waits in its queue for the next weft up")
				}
			case <-sig:
			}
		}
	}
	cancel()
	return f.Stop()
}

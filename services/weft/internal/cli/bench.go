package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/weft-fabric/weft/services/weft/allinone"
	"github.com/weft-fabric/weft/services/weft/internal/bench"
)

func benchCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine's fabric; one JSON line a figure, each with its anchor",
	}
	var runs int
	var noBar bool
	latency := &cobra.Command{
		Use:   "latency",
		Short: "Submit to first rank running on an idle fabric of its own",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withBenchFabric(cmd.Context(), func(ctx context.Context, c *client) error {
				return bench.Latency(ctx, a.out, func(ctx context.Context, command []string) (string, error) {
					return submitAndRead(ctx, c, command)
				}, runs, !noBar)
			})
		},
	}
	latency.Flags().IntVar(&runs, "runs", 100, "measured runs")
	size := bench.Size{}
	scale := &cobra.Command{
		Use:   "scale",
		Short: "Listings, explain and memory of a large cell",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.Scale(cmd.Context(), a.out, size, func(f *allinone.Fabric) (bench.Reader, func(), error) {
				c, err := dial(f.Context())
				if err != nil {
					return nil, nil, err
				}
				return c, c.close, nil
			}, !noBar)
		},
	}
	scale.Flags().IntVar(&size.Jobs, "jobs", 100_000, "queued jobs")
	scale.Flags().IntVar(&size.Nodes, "nodes", 1000, "nodes, all in use")
	jobs := 0
	replay := &cobra.Command{
		Use:   "replay",
		Short: "Reading a ledger of whole lives, and starting from a snapshot of it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.Replay(cmd.Context(), a.out, jobs, !noBar)
		},
	}
	replay.Flags().IntVar(&jobs, "jobs", 100_000, "jobs in the ledger")
	cmd.PersistentFlags().BoolVar(&noBar, "no-bar", false, "print the figures, never fail by them")
	cmd.AddCommand(latency, scale, replay)
	return cmd
}

// withBenchFabric runs f against a fabric in a temporary directory, in this process.
func withBenchFabric(ctx context.Context, f func(context.Context, *client) error) error {
	dir, err := os.MkdirTemp("", "weft-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cfg := allinone.DefaultConfig()
	cfg.Dir, cfg.Simulate = dir, 2
	cfg.GRPC, cfg.REST, cfg.Metrics, cfg.NATS = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	fab, err := allinone.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { cancel(); _ = fab.Stop() }()
	a := &app{contextFile: filepath.Join(dir, allinone.ContextFile)}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.close()
	return f(ctx, c)
}

func submitAndRead(ctx context.Context, c *client, command []string) (string, error) {
	text, err := yaml.Marshal(map[string]any{"apiVersion": "weft/v1", "kind": "Job", "metadata": map[string]any{"name": "bench-" + newID()[10:], "queue": "default"},
		"spec": map[string]any{"gpus": 0, "command": command}})
	if err != nil {
		return "", err
	}
	var out, errOut bytes.Buffer
	a := &app{out: &out, errOut: &errOut, output: "table"}
	resp, err := a.submit(ctx, c, string(text), ".", false)
	if err != nil {
		return "", err
	}
	if err := a.followLogs(ctx, c, resp.GetJob().GetId(), nil); err != nil {
		return "", err
	}
	if _, err := a.waitEnd(ctx, c, resp.GetJob().GetId()); err != nil {
		return "", fmt.Errorf("%w %s", err, errOut.String())
	}
	return out.String(), nil
}

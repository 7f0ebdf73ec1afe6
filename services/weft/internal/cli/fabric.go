package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weft-fabric/weft/libs/program"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func nodesCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "List machines, their accelerators and what they are doing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.ListNodes(ctx, &apiv1.ListNodesRequest{})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printProto(r)
				}
				var rows [][]string
				for _, n := range r.GetNodes() {
					inv := n.GetInventory()
					cond := n.GetCondition()
					if n.GetCordoned() {
						cond += ",cordoned"
					}
					var used int64
					for _, m := range n.GetUsedMilli() {
						used += m
					}
					rows = append(rows, []string{n.GetName(), cond, models(inv), fmt.Sprintf("%s/%d", milliText(used), len(inv.GetDevices())),
						fmt.Sprintf("%s/%s", milliText(n.GetUsedCpuMilli()), milliText(inv.GetCpuMilli())),
						fmt.Sprintf("%s/%s", bytesText(n.GetUsedMemoryBytes()), bytesText(inv.GetMemoryBytes())), notes(n)})
				}
				a.table([]string{"NODE", "CONDITION", "ACCELERATORS", "GPUS USED", "CPU USED", "MEMORY USED", "NOTES"}, rows,
					"no nodes yet; an agent joins by itself within seconds; see the output of weft up")
				return nil
			})
		},
	}
}

func models(inv *weftv1.Inventory) string {
	count := map[string]int{}
	var order []string
	for _, d := range inv.GetDevices() {
		if count[d.GetModel()] == 0 {
			order = append(order, d.GetModel())
		}
		count[d.GetModel()]++
	}
	var parts []string
	for _, m := range order {
		parts = append(parts, fmt.Sprintf("%d×%s", count[m], m))
	}
	s := strings.Join(parts, " ")
	if s == "" {
		s = "none"
	}
	if inv.GetSimulated() {
		s += " (simulated)"
	}
	return s
}

func notes(n *apiv1.Node) string {
	var parts []string
	for _, d := range n.GetInventory().GetDevices() {
		if d.GetHealth() == weftv1.DeviceHealth_DEVICE_HEALTH_FAILED {
			parts = append(parts, "device failed: "+d.GetHealthReason())
		}
	}
	for _, c := range n.GetInventory().GetConditions() {
		if c.GetStatus() != weftv1.ConditionStatus_CONDITION_STATUS_OK {
			parts = append(parts, c.GetName()+": "+c.GetMessage())
		}
	}
	return strings.Join(parts, "; ")
}

func queuesCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "queues",
		Short: "List queues, their shares and what waits in them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.ListQueues(ctx, &apiv1.ListQueuesRequest{})
				if err != nil {
					return err
				}
				if a.json() {
					return a.printProto(r)
				}
				var rows [][]string
				for _, q := range r.GetQueues() {
					limit := "unlimited"
					if q.GetSet().GetLimit().HasGpuMilli() {
						limit = milliText(q.GetSet().GetLimit().GetGpuMilli())
					}
					rows = append(rows, []string{q.GetSet().GetQueue(), fmt.Sprint(q.GetSet().GetWeight()), milliText(q.GetSet().GetQuota().GetGpuMilli()), limit,
						milliText(q.GetUsed().GetGpuMilli()), fmt.Sprintf("%.1f%%", float64(q.GetSharePpm())/1e4), fmt.Sprint(q.GetRunning()), fmt.Sprint(q.GetWaiting())})
				}
				a.table([]string{"QUEUE", "WEIGHT", "GPU QUOTA", "GPU LIMIT", "GPUS USED", "SHARE", "RUNNING", "WAITING"}, rows,
					"no queues; make some: weft queues apply FILE")
				return nil
			})
		},
	}
	var dryRun bool
	apply := &cobra.Command{
		Use:   "apply FILE",
		Short: "Create or change queues from a file (administrators)",
		Example: `  weft queues apply - <<'E'
  queues:
    - {name: acme, quota: {gpu: 16}, weight: 2}
    - {name: acme/vision, limit: {gpu: 8}}
  E`,
		Args: needs(1, 1, "the file of queues", "weft queues apply queues.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, _, err := a.readFile(args[0], "an example is in: weft queues apply --help")
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.ApplyQueues(ctx, apiv1.ApplyQueuesRequest_builder{Manifest: &text, DryRun: &dryRun}.Build())
				if err != nil {
					return err
				}
				if a.json() {
					return a.printProto(r)
				}
				for _, q := range r.GetQueues() {
					done := "set"
					if q.GetRemoved() {
						done = "removed"
					}
					if dryRun {
						done = "would be " + done
					}
					fmt.Fprintf(a.out, "queue %s %s\n", q.GetQueue(), done)
				}
				return nil
			})
		},
	}
	apply.Flags().BoolVar(&dryRun, "dry-run", false, "check only")
	cmd.AddCommand(apply)
	return cmd
}

func versionCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command and of the fabric it talks to",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := map[string]any{"client": program.Version()}
			err := a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.GetStatus(ctx, &apiv1.GetStatusRequest{})
				if err == nil {
					out["fabric"] = r.GetVersion()
					out["ledger_seq"] = r.GetLedgerSeq()
					out["leader"] = r.GetLeader()
				}
				return err
			})
			why := ""
			if err != nil {
				_, why = explainError(err)
				out["not_reached"] = why
			}
			if a.json() {
				return a.printJSON(out)
			}
			fmt.Fprintln(a.out, "weft   "+program.Version())
			if err != nil {
				fmt.Fprintln(a.out, "fabric not reached: "+why)
				return nil
			}
			fmt.Fprintf(a.out, "fabric %s, ledger at %d, led by %s\n", out["fabric"], out["ledger_seq"], out["leader"])
			return nil
		},
	}
}

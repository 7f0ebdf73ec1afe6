package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/cell"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func psCmd(a *app) *cobra.Command {
	var queue, phase string
	var all bool
	var limit uint32
	cmd := &cobra.Command{
		Use:     "ps",
		Aliases: []string{"jobs"},
		Short:   "List jobs: what runs, what waits and why",
		Example: "  weft ps\n  weft ps --all --queue demo/vision\n  weft ps --phase queued -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.ListJobs(ctx, apiv1.ListJobsRequest_builder{Queue: &queue, Phase: &phase, All: &all, PageSize: &limit}.Build())
				if err != nil {
					return err
				}
				if a.json() {
					return a.printProto(r)
				}
				a.printJobs(r, all)
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&queue, "queue", "q", "", "only this queue and those below it")
	cmd.Flags().StringVar(&phase, "phase", "", "only jobs in this phase")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "ended jobs too")
	cmd.Flags().Uint32Var(&limit, "limit", 500, "rows at most")
	return cmd
}

func (a *app) printJobs(r *apiv1.ListJobsResponse, all bool) {
	var rows [][]string
	room := max(24, a.columns()-100)
	for _, j := range r.GetJobs() {
		att := "-"
		if j.GetAttempt() > 0 {
			att = fmt.Sprintf("%d", j.GetAttempt())
		}
		rows = append(rows, []string{j.GetId(), clip(j.GetName(), 24), clip(j.GetQueue(), 20), j.GetPhase(), since(j.GetPhaseSinceNs()),
			fmt.Sprint(j.GetRanks()), att, clip(where(j), room)})
	}
	note := "no live jobs; --all shows ended ones; start one: weft run -- echo hello"
	if all {
		note = "no jobs yet; start one: weft run -- echo hello"
	}
	a.table([]string{"ID", "NAME", "QUEUE", "PHASE", "SINCE", "RANKS", "ATTEMPT", "WHERE / WHY"}, rows, note)
	if n := int(r.GetTotal()); n > len(rows) {
		fmt.Fprintf(a.errOut, "%d of %d jobs; narrow with --queue or --phase, or raise --limit\n", len(rows), n)
	}
}

// where says where a job runs, or why it does not.
func where(j *apiv1.Job) string {
	if len(j.GetPlacements()) == 0 {
		return j.GetReason()
	}
	var parts []string
	for _, p := range j.GetPlacements() {
		parts = append(parts, fmt.Sprintf("%s×%d", p.GetNode(), p.GetCount()))
	}
	s := strings.Join(parts, " ")
	if j.GetSimulated() {
		s += " (simulated)"
	}
	return s
}

func getCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "get JOB",
		Short:   "Show one job: its manifest and its state",
		Long:    "Show one job by id, or by queue/name while it lives. With -o yaml or json the output is a manifest that submit accepts, with a status section.",
		Example: "  weft get 01k…\n  weft get demo/vision/digits -o yaml",
		Args:    needs(1, 1, "the job", "weft get demo/vision/digits"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.GetJob(ctx, apiv1.GetJobRequest_builder{Job: &args[0]}.Build())
				if err != nil {
					return err
				}
				j := r.GetJob()
				if a.output == "table" {
					a.printJob(j)
					return nil
				}
				return a.printManifest(j)
			})
		},
	}
}

// printManifest prints the manifest with the state beside it as status, which submit ignores.
func (a *app) printManifest(j *apiv1.Job) error {
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(j.GetManifest()), &doc); err != nil {
		return fmt.Errorf("the gateway sent a manifest that is not YAML: %w", err)
	}
	st := proto.CloneOf(j)
	st.ClearSpec()
	st.ClearManifest()
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(st)
	if err != nil {
		return err
	}
	var status map[string]any
	if err := json.Unmarshal(b, &status); err != nil {
		return err
	}
	doc["status"] = status
	if a.json() {
		return a.printJSON(doc)
	}
	out, err := manifestText(doc)
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, out)
	return err
}

func (a *app) printJob(j *apiv1.Job) {
	line := func(k, v string) {
		if v != "" {
			fmt.Fprintf(a.out, "%-12s %s\n", k, v)
		}
	}
	line("id", j.GetId())
	line("name", j.GetName())
	line("queue", j.GetQueue())
	line("phase", a.paint(j.GetPhase(), colorOf(j.GetPhase()))+" for "+since(j.GetPhaseSinceNs()))
	line("reason", j.GetReason())
	if c := j.GetCause(); c != nil {
		line("last cause", cell.Describe(c))
	}
	line("submitted", time.Unix(0, j.GetSubmittedNs()).Format(time.RFC3339))
	if j.GetAttempt() > 0 {
		line("attempt", fmt.Sprintf("%d (%d restarts charged of %d)", j.GetAttempt(), j.GetRestarts(), j.GetSpec().GetRestart().GetMax()))
	}
	if j.GetRanks() > 0 {
		line("ranks", fmt.Sprint(j.GetRanks()))
	}
	line("where", where2(j))
	if s := j.GetResumeFrom(); s != nil {
		line("resumed from", fmt.Sprintf("%s (step %d)", s.GetSave(), s.GetStep()))
	}
	if s := j.GetNewestSave(); s != nil {
		line("newest save", fmt.Sprintf("%s (step %d)", s.GetSave(), s.GetStep()))
	}
	line("GPU time", fmt.Sprintf("%s used, %s lost to faults", short(time.Duration(j.GetGpuNs())), short(time.Duration(j.GetGpuLostNs()))))
}

func where2(j *apiv1.Job) string {
	if len(j.GetPlacements()) == 0 {
		return ""
	}
	return where(j)
}

func cancelCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel JOB...",
		Short: "Cancel jobs: SIGTERM, the job's grace, then SIGKILL",
		Args:  needs(1, 0, "the job", "weft cancel demo/vision/digits"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				failed, code := 0, ExitOK
				for _, id := range args {
					r, err := c.CancelJob(ctx, apiv1.CancelJobRequest_builder{Job: &id}.Build())
					if err != nil && len(args) == 1 {
						return err
					}
					if err != nil { // the others are to end all the same
						var text string
						code, text = explainError(err)
						fmt.Fprintf(a.errOut, "weft: %s: %s\n", id, text)
						failed++
						continue
					}
					if a.json() {
						if err := a.printProto(r); err != nil {
							return err
						}
						continue
					}
					fmt.Fprintf(a.out, "%s %s\n", r.GetJob().GetId(), r.GetJob().GetPhase())
				}
				if failed > 0 {
					return &exitError{code, fmt.Errorf("%d of %d jobs were not cancelled", failed, len(args))}
				}
				return nil
			})
		},
	}
}

func explainCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain JOB",
		Short: "Say why a job waits, what it lacks, who holds it, and what would unblock it",
		Args:  needs(1, 1, "the job", "weft explain demo/vision/digits"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.ExplainJob(ctx, apiv1.ExplainJobRequest_builder{Job: &args[0]}.Build())
				if err != nil {
					return err
				}
				if a.json() {
					return a.printProto(r)
				}
				e := r.GetExplanation()
				fmt.Fprintf(a.out, "%s: %s\n%s\n", a.paint(e.GetPhase(), colorOf(e.GetPhase())), a.paint(e.GetToken(), bold), e.GetMessage())
				if p := e.GetPosition(); p > 0 {
					fmt.Fprintf(a.out, "position     %d in its queue\n", p)
				}
				for _, d := range e.GetDeficits() {
					fmt.Fprintf(a.out, "lacks        %s\n", lack(d))
				}
				for _, f := range e.GetFilters() {
					fmt.Fprintf(a.out, "ruled out    %d nodes by %s\n", f.GetNodes(), f.GetFilter())
				}
				for _, h := range e.GetHolders() {
					fmt.Fprintf(a.out, "held by      %s (%s): %s GPUs\n", h.GetJob(), h.GetQueue(), milliText(h.GetGpuMilli()))
				}
				if e.GetEtaNs() > 0 {
					fmt.Fprintf(a.out, "may start    in %s\n", short(time.Until(time.Unix(0, e.GetEtaNs()))))
				}
				if e.GetCure() != "" {
					fmt.Fprintf(a.out, "try          %s\n", e.GetCure())
				}
				return nil
			})
		},
	}
}

// lack says what is too little, in the units of manifests.
func lack(d *weftv1.Deficit) string {
	name, text := d.GetResource(), func(n int64) string { return fmt.Sprint(n) }
	switch name {
	case "gpu-milli":
		name, text = "GPUs", milliText
	case "cpu-milli":
		name, text = "cores", milliText
	case "memory-bytes":
		name, text = "memory", bytesText
	}
	return fmt.Sprintf("%s: needs %s, free %s", name, text(d.GetNeeded()), text(d.GetAvailable()))
}

func eventsCmd(a *app) *cobra.Command {
	var follow, live bool
	var job string
	var after uint64
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the life of jobs and nodes, as CloudEvents with -o json",
		Example: `  weft events --job JOB      # one job's timeline
  weft events -f -o json     # one CloudEvent a line, for pipelines; --after CURSOR continues`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.stream(cmd.Context(), func(ctx context.Context, c *client) error {
				st, err := c.WatchEvents(ctx, apiv1.WatchEventsRequest_builder{Job: &job, After: &after, Follow: &follow, Live: &live}.Build())
				if err != nil {
					return err
				}
				last := after
				for {
					ev, err := st.Recv()
					if done, err := streamEnd(ctx, err); done {
						if last == after && err == nil && !follow && job != "" {
							fmt.Fprintf(a.errOut, "no events of job %s; see: weft ps --all\n", job)
						}
						return resumeEvents(err, last)
					}
					last = ev.GetCursor()
					if a.json() {
						fmt.Fprintln(a.out, ev.GetEvent())
						continue
					}
					fmt.Fprintf(a.out, "%s  %s\n", a.paint(time.Unix(0, ev.GetTimeNs()).Format("15:04:05.000"), dim), ev.GetLine())
				}
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new events")
	cmd.Flags().BoolVar(&live, "new", false, "only new events (with --follow)")
	cmd.Flags().StringVar(&job, "job", "", "only this job")
	cmd.Flags().Uint64Var(&after, "after", 0, "continue after this cursor (weftcursor of a CloudEvent)")
	return cmd
}

// resumeEvents says how to go on after what was printed before the fabric went away.
func resumeEvents(err error, last uint64) error {
	if err == nil {
		return nil
	}
	if code, text := explainError(err); code == ExitUnavailable && last > 0 {
		return &exitError{code, fmt.Errorf("%s; go on then with: weft events --after %d", text, last)}
	}
	return err
}

// streamEnd says whether a stream is over; its end and an interruption by the user are no errors.
func streamEnd(ctx context.Context, err error) (bool, error) {
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, io.EOF), ctx.Err() != nil:
		return true, nil
	}
	return true, err
}

func logsCmd(a *app) *cobra.Command {
	var follow bool
	var ranks []uint
	var attempt, tail uint32
	cmd := &cobra.Command{
		Use:     "logs JOB",
		Short:   "Show what a job's ranks printed",
		Example: "  weft logs JOB\n  weft logs -f --rank 0 JOB",
		Args:    needs(1, 1, "the job", "weft logs demo/vision/digits"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.stream(cmd.Context(), func(ctx context.Context, c *client) error {
				req := apiv1.ReadLogsRequest_builder{Job: &args[0], Attempt: &attempt, Follow: &follow, Tail: &tail}
				for _, r := range ranks {
					req.Ranks = append(req.Ranks, uint32(r))
				}
				return a.copyLogs(ctx, c, req.Build())
			})
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job ends")
	cmd.Flags().UintSliceVar(&ranks, "rank", nil, "only these ranks (repeatable)")
	cmd.Flags().Uint32Var(&attempt, "attempt", 0, "attempt (default: the newest)")
	cmd.Flags().Uint32Var(&tail, "tail", 0, "only so many last lines of each rank")
	return cmd
}

func (a *app) followLogs(ctx context.Context, c *client, id string, ranks []uint32) error {
	return a.copyLogs(ctx, c, apiv1.ReadLogsRequest_builder{Job: &id, Follow: proto.Bool(true), Ranks: ranks}.Build())
}

// copyLogs prints chunks as they come: a single rank's output as it is, several ranks' with the rank before each line.
func (a *app) copyLogs(ctx context.Context, c *client, req *apiv1.ReadLogsRequest) error {
	st, err := c.ReadLogs(ctx, req)
	if err != nil {
		return err
	}
	p := newLogPrinter(a, req.GetJob())
	defer p.flush()
	for {
		m, err := st.Recv()
		if done, err := streamEnd(ctx, err); done {
			return err
		}
		if a.json() {
			b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
			if err != nil {
				return err
			}
			fmt.Fprintln(a.out, string(b))
			continue
		}
		p.chunk(m)
	}
}

func ckptCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "ckpt", Aliases: []string{"checkpoints"}, Short: "Look at a job's checkpoints"}
	cmd.AddCommand(&cobra.Command{
		Use:   "ls JOB",
		Short: "List a job's saves: which are complete and verified, and where they lie",
		Args:  needs(1, 1, "the job", "weft ckpt ls demo/vision/digits"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, c *client) error {
				r, err := c.ListSaves(ctx, apiv1.ListSavesRequest_builder{Job: &args[0]}.Build())
				if err != nil {
					return err
				}
				if a.json() {
					return a.printProto(r)
				}
				var rows [][]string
				for _, s := range r.GetSaves() {
					var tiers []string
					for _, cp := range s.GetCopies() {
						tiers = append(tiers, cp.GetTier()+"@"+cp.GetNode())
					}
					class := strings.ToLower(strings.TrimPrefix(s.GetRef().GetClass().String(), "SAVE_CLASS_"))
					rows = append(rows, []string{s.GetRef().GetSave(), fmt.Sprint(s.GetRef().GetStep()), fmt.Sprint(s.GetRef().GetAttempt()), class,
						s.GetState(), bytesText(s.GetBytes()), since(s.GetTimeNs()), strings.Join(tiers, " "), s.GetReason()})
				}
				a.table([]string{"SAVE", "STEP", "ATTEMPT", "CLASS", "STATE", "SIZE", "AGE", "WHERE", "REASON"}, rows,
					"no saves yet; a script saves with weft.py: with weft.save(step, full=True) as dir: torch.save(...)")
				return nil
			})
		},
	})
	return cmd
}

package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/jobspec"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/weft/internal/bundle"
)

func submitCmd(a *app) *cobra.Command {
	var dryRun, follow, wait bool
	cmd := &cobra.Command{
		Use:   "submit FILE",
		Short: "Submit a job from a manifest (- reads standard input)",
		Example: `  weft submit job.yaml             # prints the job's id
  weft submit job.yaml --follow    # and its output, until it ends; exit code 10 if it fails
  weft submit --dry-run job.yaml   # check only
  generate | weft submit - -o json`,
		Args: needs(1, 1, "the manifest", "weft submit job.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, dir, err := a.readFile(args[0], "examples are in deploy/examples, or try: weft run -- echo hello")
			if err != nil {
				return err
			}
			return a.stream(cmd.Context(), func(ctx context.Context, c *client) error {
				resp, err := a.submit(ctx, c, text, dir, dryRun)
				if err != nil {
					return err
				}
				return a.afterSubmit(ctx, c, resp, dryRun, follow, wait)
			})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check the manifest against the fabric; submit nothing")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "follow the output until the job ends")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the job ends, without its output")
	return cmd
}

// readFile returns the text and the directory that its paths are relative to. hint helps who named no file.
func (a *app) readFile(arg, hint string) (text, dir string, err error) {
	var b []byte
	if arg == "-" {
		b, err = io.ReadAll(io.LimitReader(a.in, jobspec.MaxManifest+1))
		dir = "."
	} else {
		b, err = os.ReadFile(arg)
		dir = filepath.Dir(arg)
	}
	if errors.Is(err, os.ErrNotExist) {
		return "", "", usagef("%s: no such file; %s", arg, hint)
	}
	if err != nil {
		return "", "", usagef("%v", err)
	}
	return string(b), dir, nil
}

// submit packs the job's files if it names any, and submits. The client makes the id, so that a repeat after a lost
// answer is the same job.
func (a *app) submit(ctx context.Context, c *client, text, dir string, dryRun bool) (*apiv1.SubmitResponse, error) {
	m, err := jobspec.Parse([]byte(text))
	if err != nil {
		return nil, &exitError{ExitUsage, err}
	}
	if m.ID == "" && !dryRun {
		if text, err = withID(text, newID()); err != nil {
			return nil, err
		}
	}
	var digest string
	if m.Files != "" {
		b, err := bundle.Pack(filepath.Join(dir, m.Files))
		if err != nil {
			return nil, &exitError{ExitUsage, fmt.Errorf("spec.files: %w", err)}
		}
		digest = b.Digest
		if !dryRun {
			if err := upload(ctx, c, b); err != nil {
				return nil, err
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Submit(ctx, apiv1.SubmitRequest_builder{Manifest: &text, Bundle: &digest, DryRun: &dryRun}.Build())
}

func newID() string {
	return strings.ToLower(ulid.MustNew(ulid.Timestamp(time.Now()), rand.Reader).String())
}

// withID writes metadata.id into a manifest that has none.
func withID(text, id string) (string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil || len(doc.Content) == 0 {
		return "", usagef("the manifest is not YAML: %v", err)
	}
	root := doc.Content[0]
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "metadata" {
			meta := root.Content[i+1]
			meta.Content = append(meta.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "id"}, &yaml.Node{Kind: yaml.ScalarNode, Value: id, Tag: "!!str"})
			return nodeText(&doc)
		}
	}
	return "", usagef("metadata: missing; a manifest needs metadata.name and metadata.queue")
}

func upload(ctx context.Context, c *client, b *bundle.Bundle) error {
	st, err := c.PutBundle(ctx)
	if err != nil {
		return err
	}
	const chunk = 256 << 10
	digest := &b.Digest
	for rest := b.Data; ; {
		n := min(chunk, len(rest))
		if err := st.Send(apiv1.PutBundleRequest_builder{Digest: digest, Chunk: rest[:n]}.Build()); err != nil {
			break // the answer says why
		}
		digest, rest = nil, rest[n:]
		if len(rest) == 0 {
			break
		}
	}
	_, err = st.CloseAndRecv()
	return err
}

func (a *app) afterSubmit(ctx context.Context, c *client, resp *apiv1.SubmitResponse, dryRun, follow, wait bool) error {
	for _, w := range resp.GetWarnings() {
		fmt.Fprintln(a.errOut, "weft: warning: "+w)
	}
	job := resp.GetJob()
	switch {
	case dryRun:
		if a.json() {
			return a.printProto(resp)
		}
		fmt.Fprintln(a.out, "ok: the fabric would accept this job")
		return nil
	case !follow && !wait:
		if a.json() {
			return a.printProto(resp)
		}
		fmt.Fprintln(a.out, job.GetId())
		if resp.GetUndecided() {
			fmt.Fprintf(a.errOut, "weft: stored, not decided yet; ask: weft get %s\n", job.GetId())
		}
		return nil
	}
	if !a.json() {
		fmt.Fprintf(a.errOut, "job %s submitted to %s\n", job.GetId(), job.GetQueue())
	}
	if follow && !a.json() {
		if err := a.followLogs(ctx, c, job.GetId(), nil); err != nil {
			return alone(ctx, job.GetId(), err)
		}
	}
	ended, err := a.waitEnd(ctx, c, job.GetId())
	if err != nil {
		return alone(ctx, job.GetId(), err)
	}
	return a.reportEnd(ended)
}

// alone says that a job goes on although the command that watched it ends.
func alone(ctx context.Context, id string, err error) error {
	code, text := explainError(err)
	switch {
	case ctx.Err() != nil:
		return &exitError{ExitError, fmt.Errorf("interrupted; job %s goes on; see: weft logs -f %s, or end it: weft cancel %s", id, id, id)}
	case code == ExitUnavailable:
		return &exitError{code, fmt.Errorf("%s; job %s is not lost; see then: weft logs -f %s", text, id, id)}
	}
	return err
}

// waitEnd follows the job's events until it has ended.
func (a *app) waitEnd(ctx context.Context, c *client, id string) (*apiv1.Job, error) {
	get := func() (*apiv1.Job, error) {
		r, err := c.GetJob(ctx, apiv1.GetJobRequest_builder{Job: &id}.Build())
		return r.GetJob(), err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := c.WatchEvents(ctx, apiv1.WatchEventsRequest_builder{Job: &id, Follow: proto.Bool(true)}.Build())
	if err != nil {
		return nil, err
	}
	for {
		ev, err := st.Recv()
		if err != nil {
			return nil, err
		}
		if endEvent(ev.GetType()) {
			return get()
		}
	}
}

func endEvent(typ string) bool {
	for _, s := range []string{"succeeded", "failed", "cancelled"} {
		if strings.HasSuffix(typ, "job-"+s) || strings.HasSuffix(typ, "job."+s) {
			return true
		}
	}
	return false
}

func (a *app) reportEnd(j *apiv1.Job) error {
	if a.json() {
		if err := a.printProto(j); err != nil {
			return err
		}
	}
	if j.GetPhase() == "succeeded" {
		return nil
	}
	why := j.GetReason()
	if why == "" {
		why = j.GetCause().GetMessage()
	}
	return &exitError{ExitJobFailed, fmt.Errorf("job %s %s: %s; see: weft events --job %s", j.GetId(), j.GetPhase(), why, j.GetId())}
}

func runCmd(a *app) *cobra.Command {
	var queue, name, cpu, memory, framework, models string
	var gpus, workers int
	var env []string
	var detach bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG...]",
		Short: "Run one command on the fabric, follow its output, and exit 0 or, if it failed, 10",
		Example: `  weft run -- echo hello
  weft run --gpus 1 --workers 4 --framework pytorch -- python3 train.py --epochs 10`,
		Args: needs(1, 0, "the command", "weft run -- echo hello"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				name = "run-" + newID()[16:]
			}
			spec := map[string]any{"workers": workers, "gpus": gpus, "command": args, "framework": framework, "restart": map[string]any{"max": 0}}
			if cpu != "" {
				spec["cpu"] = cpu
			}
			if memory != "" {
				spec["memory"] = memory
			}
			if models != "" {
				spec["models"] = strings.Split(models, ",")
			}
			if cmd.Flags().Changed("limit") {
				if limit <= 0 {
					return usagef("--limit %v: write a duration such as 2h, or leave it out for no limit", limit)
				}
				spec["limit"] = limit.String()
			}
			if len(env) > 0 {
				vars := map[string]string{}
				for _, kv := range env {
					k, v, ok := strings.Cut(kv, "=")
					if !ok {
						v, ok = os.LookupEnv(k)
					}
					if !ok {
						return usagef("--env %s: write NAME=VALUE (or NAME alone to pass on a variable that is set here)", kv)
					}
					vars[k] = v
				}
				spec["env"] = vars
			}
			text, err := manifestText(map[string]any{"apiVersion": "weft/v1", "kind": "Job", "metadata": map[string]any{"name": name, "queue": queue}, "spec": spec})
			if err != nil {
				return err
			}
			return a.stream(cmd.Context(), func(ctx context.Context, c *client) error {
				return withoutLines(a.runJob(ctx, c, text, detach))
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&queue, "queue", "q", "default", "queue")
	f.StringVar(&name, "name", "", "name of the job (default run-…)")
	f.IntVar(&gpus, "gpus", 0, "accelerators per worker")
	f.IntVarP(&workers, "workers", "n", 1, "workers (ranks)")
	f.StringVar(&cpu, "cpu", "", "cores per worker, such as 2 or 500m")
	f.StringVar(&memory, "memory", "", "memory per worker, such as 4Gi")
	f.StringVar(&framework, "framework", "none", "pytorch, tensorflow or none: which environment the ranks get")
	f.StringVar(&models, "models", "", "acceptable accelerator models, comma-separated")
	f.StringArrayVarP(&env, "env", "e", nil, "environment: NAME=VALUE, or NAME to pass one on (repeatable)")
	f.BoolVarP(&detach, "detach", "d", false, "print the job's id and return at once")
	f.DurationVar(&limit, "limit", 0, "run-time limit, such as 2h")
	return cmd
}

var lineOfManifest = regexp.MustCompile(` \(line [0-9]+\)`)

// withoutLines takes out of a refusal the lines of a manifest that the user has not seen.
func withoutLines(err error) error {
	if err == nil {
		return nil
	}
	if code, text := explainError(err); code == ExitUsage {
		return &exitError{code, errors.New(lineOfManifest.ReplaceAllString(text, ""))}
	}
	return err
}

// runJob submits, follows, and cancels the job if it is interrupted meanwhile.
func (a *app) runJob(ctx context.Context, c *client, text string, detach bool) error {
	resp, err := a.submit(ctx, c, text, ".", false)
	if err != nil {
		return err
	}
	if detach {
		return a.afterSubmit(ctx, c, resp, false, false, false)
	}
	err = a.afterSubmit(ctx, c, resp, false, !a.json(), true)
	if ctx.Err() != nil {
		id := resp.GetJob().GetId()
		bg, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		if _, cerr := c.CancelJob(bg, apiv1.CancelJobRequest_builder{Job: &id}.Build()); cerr != nil {
			_, why := explainError(cerr)
			return fmt.Errorf("interrupted; job %s may go on, since it could not be cancelled: %s; try: weft cancel %s", id, why, id)
		}
		return fmt.Errorf("interrupted; job %s cancelled", id)
	}
	return err
}

// Package demo runs the main job as a user would and checks it from outside: it starts the fabric as a process of its
// own, talks to it through the gateway only, and judges what it sees by what the training script printed, what the
// fabric said and what the operating system shows. It never looks into the fabric's files.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	"github.com/weft-fabric/weft/services/weft/allinone"
)

// Options of a demo run.
type Options struct {
	Out     io.Writer
	Color   bool
	Example string // directory with job.yaml and train.py
	Keep    bool   // keep the data directory
}

// limit bounds the whole demo; it is generous, since a first run may share its machine with a build.
const limit = 5 * time.Minute

// Run plays the demo; nil means that everything it promises was seen.
func Run(ctx context.Context, o Options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	python, err := findPython(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weft-demo-")
	if err != nil {
		return err
	}
	if o.Keep {
		fmt.Fprintf(o.Out, "data stays in %s\n", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}

	d := &demo{Options: o, python: python, dir: dir}
	if err := d.startFabric(ctx); err != nil {
		return err
	}
	story := d.play(ctx)
	stop := d.stopFabric()
	if err := errors.Join(story, stop, d.nothingLeft()); err != nil {
		return fmt.Errorf("demo failed: %w", err)
	}
	d.say("done", "everything that the demo promises was seen, in %.0f s; nothing is left running", time.Since(begin).Seconds())
	return nil
}

type demo struct {
	Options
	python string
	dir    string
	fabric *exec.Cmd
	waited chan error
	jobs   apiv1.JobServiceClient
	cell   apiv1.CellServiceClient
	conn   *grpc.ClientConn
	pids   map[int]bool // every process of the training script that was seen
}

func (d *demo) say(what, format string, args ...any) {
	tag := fmt.Sprintf("%-9s", what)
	if d.Color {
		tag = "\x1b[1;36m" + tag + "\x1b[0m"
	}
	fmt.Fprintf(d.Out, "%s %s\n", tag, fmt.Sprintf(format, args...))
}

// findPython returns the first python3 that imports torch.
func findPython(ctx context.Context) (string, error) {
	for _, p := range []string{os.Getenv("WEFT_PYTHON"), "python3", "/usr/bin/python3"} {
		if p == "" {
			continue
		}
		full, err := exec.LookPath(p)
		if err != nil {
			continue
		}
		if exec.CommandContext(ctx, full, "-c", "import torch").Run() == nil {
			return full, nil
		}
	}
	return "", errors.New("no python3 here imports torch; run: make setup-demo (Debian/Ubuntu), or install PyTorch for CPU and name it: WEFT_PYTHON=/path/to/python3")
}

func (d *demo) startFabric(ctx context.Context) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(d.dir, "fabric.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	free := "127.0.0.1:0"
	// Not CommandContext: the end of the demo must be a Ctrl-C, never a kill that leaves ranks behind.
	d.fabric = exec.Command(exe, "up", "--data", filepath.Join(d.dir, "data"), "--simulate", "2", "--grpc", free, "--rest", free, "--metrics", free, "--nats", free)
	d.fabric.Stdout, d.fabric.Stderr = log, log
	d.fabric.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.fabric.Start(); err != nil {
		return err
	}
	d.waited = make(chan error, 1)
	go func() { d.waited <- d.fabric.Wait() }()
	c, err := d.awaitContext(ctx)
	if err != nil {
		return errors.Join(err, d.stopFabric())
	}
	d.conn, err = grpc.NewClient("passthrough:///"+c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, m string, req, reply any, cc *grpc.ClientConn, inv grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return inv(withToken(ctx, c.Token), m, req, reply, cc, opts...)
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, sd *grpc.StreamDesc, cc *grpc.ClientConn, m string, st grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return st(withToken(ctx, c.Token), sd, cc, m, opts...)
		}))
	if err != nil {
		return errors.Join(err, d.stopFabric())
	}
	d.jobs, d.cell = apiv1.NewJobServiceClient(d.conn), apiv1.NewCellServiceClient(d.conn)
	r, err := d.cell.ListNodes(ctx, &apiv1.ListNodesRequest{})
	if err != nil {
		return errors.Join(err, d.stopFabric())
	}
	for _, n := range r.GetNodes() {
		d.say("fabric", "node %s: %d × %s, %s", n.GetName(), len(n.GetInventory().GetDevices()), n.GetInventory().GetDevices()[0].GetModel(),
			map[bool]string{true: "simulated", false: "real"}[n.GetSimulated()])
	}
	return nil
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// awaitContext waits until the fabric has written its context file, which it does once it is ready.
func (d *demo) awaitContext(ctx context.Context) (*allinone.Context, error) {
	file := filepath.Join(d.dir, "data", allinone.ContextFile)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(file); err == nil {
			var c allinone.Context
			if json.Unmarshal(b, &c) == nil && c.GRPC != "" {
				return &c, nil
			}
		}
		select {
		case <-tick.C:
		case err := <-d.waited:
			d.waited <- err
			b, _ := os.ReadFile(filepath.Join(d.dir, "fabric.log"))
			return nil, fmt.Errorf("the fabric did not start (%w):\n%s", err, b)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (d *demo) stopFabric() error {
	if d.conn != nil {
		_ = d.conn.Close()
	}
	_ = d.fabric.Process.Signal(os.Interrupt)
	select {
	case err := <-d.waited:
		if err != nil {
			b, _ := os.ReadFile(filepath.Join(d.dir, "fabric.log"))
			return fmt.Errorf("the fabric ended badly: %w\n%s", err, b)
		}
		return nil
	case <-time.After(90 * time.Second):
		_ = d.fabric.Process.Kill()
		return errors.New("the fabric did not stop within 90 s of Ctrl-C")
	}
}

// nothingLeft checks that no process of the training script lives.
func (d *demo) nothingLeft() error {
	var left []string
	for pid := range d.pids {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(b), "train.py") {
			left = append(left, fmt.Sprint(pid))
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("ranks were left running (pids %s)", strings.Join(left, ", "))
	}
	return nil
}

// play submits the job, breaks it, and judges what follows.
func (d *demo) play(ctx context.Context) error {
	id, err := d.submit(ctx)
	if err != nil {
		return err
	}
	w := d.watch(ctx, id)
	first, err := w.untilHalf(ctx)
	if err != nil {
		return err
	}
	newest, err := d.newestSave(ctx, id)
	if err != nil {
		return err
	}
	victim := first.pids[3]
	if victim == 0 {
		return errors.New("rank 3 never said its pid")
	}
	d.say("fault", "step %d of %d: SIGKILL to rank 3 (pid %d); the newest complete save is %s (step %d)", first.step, first.total, victim, newest.GetSave(), newest.GetStep())
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill rank 3: %w", err)
	}
	killed := time.Now()
	restored, err := w.untilRestored(ctx)
	if err != nil {
		return err
	}
	d.say("restart", "attempt %d runs %.1f s after the kill, from step %d", restored.Attempt, time.Since(killed).Seconds(), restored.SaveStep)
	if err := d.judgeRestore(ctx, id, newest.GetStep(), restored); err != nil {
		return err
	}
	final, err := w.untilDone(ctx)
	if err != nil {
		return err
	}
	return d.judgeEnd(ctx, id, final)
}

// judgeRestore holds the restart against the save it must come from.
func (d *demo) judgeRestore(ctx context.Context, id string, newest uint64, r *event) error {
	job, err := d.jobs.GetJob(ctx, apiv1.GetJobRequest_builder{Job: &id}.Build())
	if err != nil {
		return err
	}
	from := job.GetJob().GetResumeFrom()
	switch {
	case from == nil:
		return errors.New("the job was placed again without a save to resume from")
	case from.GetStep() < newest:
		return fmt.Errorf("the job resumed from step %d although step %d was complete before the kill", from.GetStep(), newest)
	case r.SaveStep != from.GetStep():
		return fmt.Errorf("the script restored step %d, the fabric named step %d", r.SaveStep, from.GetStep())
	case r.NextStep != r.SaveStep+1:
		return fmt.Errorf("the first step after the restore was %d, not the save's %d + 1", r.NextStep, r.SaveStep)
	case math.IsNaN(r.Loss) || math.Abs(r.Loss-r.StoredLoss) > 1e-4:
		return fmt.Errorf("loss on the fixed samples: %.6f stored, %.6f after the restore", r.StoredLoss, r.Loss)
	case r.Optimizer == "" || r.Optimizer != r.StoredOptimizer:
		return fmt.Errorf("optimizer state: hash %s stored, %s after the restore", r.StoredOptimizer, r.Optimizer)
	}
	d.say("check", "first step %d = save's step + 1; loss on 256 fixed samples %.6f = %.6f stored; optimizer state hash equal (%.12s)", r.NextStep, r.Loss, r.StoredLoss, r.Optimizer)
	return nil
}

func (d *demo) judgeEnd(ctx context.Context, id string, final *event) error {
	job, err := d.awaitEnded(ctx, id)
	if err != nil {
		return err
	}
	d.say("timeline", "")
	if err := d.timeline(ctx, id); err != nil {
		return err
	}
	switch {
	case job.GetPhase() != "succeeded":
		return fmt.Errorf("the job %s: %s", job.GetPhase(), job.GetReason())
	case job.GetAttempt() != 2 || job.GetRestarts() != 1:
		return fmt.Errorf("one kill cost %d attempts and %d charged restarts; 2 and 1 were expected", job.GetAttempt(), job.GetRestarts())
	case final.Accuracy < 0.95:
		return fmt.Errorf("test accuracy %.1f %%, below 95 %%", 100*final.Accuracy)
	}
	d.say("result", "test accuracy %.1f %%; GPU time %.1f s, of which the fault lost %.1f s", 100*final.Accuracy,
		time.Duration(job.GetGpuNs()).Seconds(), time.Duration(job.GetGpuLostNs()).Seconds())
	return nil
}

// submit sends the example's manifest, with the python that imports torch, through the command a user would type.
func (d *demo) submit(ctx context.Context) (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(filepath.Join(d.Example, "job.yaml"))
	if err != nil {
		return "", fmt.Errorf("%w; run the demo from the project's root, or name the example: --example DIR", err)
	}
	text := strings.Replace(string(b), "[python3,", "["+d.python+",", 1)
	if !strings.Contains(text, d.python) {
		return "", errors.New("the example's command does not begin with python3")
	}
	cmd := exec.CommandContext(ctx, exe, "--context", filepath.Join(d.dir, "data", allinone.ContextFile), "submit", "-")
	cmd.Dir = d.Example
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			return "", fmt.Errorf("submit: %w: %s", err, ee.Stderr)
		}
		return "", fmt.Errorf("submit: %w", err)
	}
	id := strings.TrimSpace(string(out))
	d.say("submit", "job %s: 4 ranks of PyTorch DDP with %s", id, d.python)
	return id, nil
}

func (d *demo) newestSave(ctx context.Context, id string) (*saveRef, error) {
	r, err := d.jobs.ListSaves(ctx, apiv1.ListSavesRequest_builder{Job: &id}.Build())
	if err != nil {
		return nil, err
	}
	var best *saveRef
	for _, s := range r.GetSaves() {
		if s.GetState() == "committed" && (best == nil || s.GetRef().GetStep() > best.GetStep()) {
			best = s.GetRef()
		}
	}
	if best == nil {
		return nil, errors.New("no complete save half-way through the job")
	}
	return best, nil
}

func (d *demo) awaitEnded(ctx context.Context, id string) (*apiv1.Job, error) {
	st, err := d.jobs.WatchEvents(ctx, apiv1.WatchEventsRequest_builder{Job: &id, Follow: proto.Bool(true)}.Build())
	if err != nil {
		return nil, err
	}
	for {
		if _, err := st.Recv(); err != nil {
			return nil, err
		}
		r, err := d.jobs.GetJob(ctx, apiv1.GetJobRequest_builder{Job: &id}.Build())
		if err != nil {
			return nil, err
		}
		if r.GetJob().GetEndedNs() > 0 {
			return r.GetJob(), nil
		}
	}
}

func (d *demo) timeline(ctx context.Context, id string) error {
	st, err := d.jobs.WatchEvents(ctx, apiv1.WatchEventsRequest_builder{Job: &id}.Build())
	if err != nil {
		return err
	}
	var t0 int64
	for {
		ev, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if t0 == 0 {
			t0 = ev.GetTimeNs()
		}
		fmt.Fprintf(d.Out, "          %7.2f s  %s\n", time.Duration(ev.GetTimeNs()-t0).Seconds(), ev.GetLine())
	}
}

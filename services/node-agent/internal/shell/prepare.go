package shell

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/jobspec"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/launch"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

// PreparerConfig is what preparing needs to know.
type PreparerConfig struct {
	Dir     string
	BootID  string
	Node    launch.Node
	Contact string // file
	FenceNS int64
	HostEnv []string
	Verify  func(ctx context.Context, dir string) error // reads one part of a save
}

// Preparer fetches what attempts need: spec, bundle, the save to resume from. It starts nothing. Several Workers share one
// queue, so that a large bundle does not hold up other attempts.
type Preparer struct {
	cfg     PreparerConfig
	bundles bus.Objects
	caller  bus.Caller
	groups  *cgroup.Manager
	wake    signal // for workers
	done    signal // for the core

	mu    sync.Mutex
	queue []*preparation
	under map[reconcile.ID]*preparation
	ready []prepared
	specs map[string]*weftv1.JobSpec
}

type preparation struct {
	id       reconcile.ID
	dir      string // where the run directory will be
	made     string // where it is made; the core renames it
	assigned *weftv1.AssignedAttempt
	at       time.Time // not before
	cancel   chan struct{}
	waiting  bool      // it was said that something is awaited
	since    time.Time // when the save was first found unreadable
}

// prepared is a finished preparation: launch or failure.
type prepared struct {
	id      reconcile.ID
	made    string // directory, to be renamed to the run's
	launch  *shim.Launch
	failure *failure
}

// NewPreparer makes the queue; Workers makes its shells.
func NewPreparer(cfg PreparerConfig, bundles bus.Objects, caller bus.Caller, groups *cgroup.Manager) *Preparer {
	return &Preparer{
		cfg: cfg, bundles: bundles, caller: caller, groups: groups, wake: newSignal(), done: newSignal(),
		under: map[reconcile.ID]*preparation{}, specs: map[string]*weftv1.JobSpec{},
	}
}

// Workers returns n shells that prepare.
func (p *Preparer) Workers(n int) []*Worker {
	ws := make([]*Worker, n)
	for i := range ws {
		ws[i] = &Worker{p}
	}
	return ws
}

// begin queues a preparation.
func (p *Preparer) begin(id reconcile.ID, dir string, a *weftv1.AssignedAttempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	made := filepath.Join(filepath.Dir(dir), fmt.Sprintf("%s%s-%s", unfinished, filepath.Base(dir), unique()))
	x := &preparation{id: id, dir: dir, made: made, assigned: a, cancel: make(chan struct{})}
	p.under[id] = x
	p.queue = append(p.queue, x)
	p.wake.set()
}

// cancel ends a preparation; it never becomes ready. A worker that is at it stops soon and removes what it made, in a
// directory of its own, so that the same attempt may be begun again at once.
func (p *Preparer) cancel(id reconcile.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.under[id]
	if x == nil {
		return
	}
	delete(p.under, id)
	close(x.cancel)
}

// take returns what became ready.
func (p *Preparer) take() []prepared {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.ready
	p.ready = nil
	return r
}

// next takes the first preparation that is due, or says when one will be.
func (p *Preparer) next(now time.Time) (x *preparation, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := p.queue[:0]
	for _, q := range p.queue {
		switch {
		case p.under[q.id] != q: // cancelled
		case x == nil && !now.Before(q.at):
			x = q
		default:
			keep = append(keep, q)
			if at.IsZero() || q.at.Before(at) {
				at = q.at
			}
		}
	}
	p.queue = keep
	if x != nil && len(keep) > 0 {
		p.wake.set() // another worker may take the next one
	}
	return x, at
}

// finish hands on a preparation; false if it was cancelled.
func (p *Preparer) finish(x *preparation, r prepared) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.under[x.id] != x {
		return false
	}
	delete(p.under, x.id)
	r.id, r.made = x.id, x.made
	p.ready = append(p.ready, r)
	p.done.set()
	return true
}

// again is how long to wait for what may come back by itself.
const again = 250 * time.Millisecond

func (p *Preparer) retry(x *preparation, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.under[x.id] == x {
		x.at = now.Add(again)
		p.queue = append(p.queue, x)
		p.wake.set()
	}
}

// Worker prepares one attempt at a time.
type Worker struct{ p *Preparer }

// Name for logs.
func (w *Worker) Name() string { return "node-agent preparer" }

// Wakes implements run.Shell.
func (w *Worker) Wakes() []<-chan struct{} { return []<-chan struct{}{w.p.wake} }

// Step implements run.Shell.
func (w *Worker) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	x, at := w.p.next(now)
	if x == nil {
		return false, at, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-x.cancel:
			cancel()
		case <-ctx.Done():
		}
	}()
	l, err := w.p.prepare(ctx, x)
	handedOn := false
	switch {
	case err == nil:
		handedOn = w.p.finish(x, prepared{launch: l})
	case ctx.Err() != nil:
		// Cancelled, or the agent is ending.
	case temporary(err) || readable(err, x, now):
		if !x.waiting {
			x.waiting = true
			slog.Warn("an attempt waits at launch", "job", x.id.Job, "attempt", x.id.Attempt, "error", err)
		}
		w.p.retry(x, now)
	default:
		handedOn = w.p.finish(x, prepared{failure: describeFailure(x.assigned, err)})
	}
	if !handedOn {
		_ = os.RemoveAll(x.made)
	}
	return true, time.Time{}, nil
}

// temporary says that waiting may help: nobody answered, or not yet.
func temporary(err error) bool {
	if errors.Is(err, bus.ErrUnavailable) || errors.Is(err, bus.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var r *bus.Refusal
	return errors.As(err, &r) && (r.Code == bus.CodeBehind || r.Code == bus.CodeUnavailable)
}

// readPatience is how long a save may be unreadable before an older one is tried.
const readPatience = time.Minute

// readable says that reading the save may still succeed.
func readable(err error, x *preparation, now time.Time) bool {
	var u *launch.Unreadable
	if !errors.As(err, &u) {
		return false
	}
	if x.since.IsZero() {
		x.since = now
	}
	return now.Sub(x.since) < readPatience
}

func describeFailure(a *weftv1.AssignedAttempt, err error) *failure {
	f := &failure{Kind: weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, Message: err.Error()}
	var port *launch.BusyPort
	var save *launch.Unrestorable
	var unread *launch.Unreadable
	switch {
	case errors.As(err, &port):
		f.Kind = weftv1.CauseKind_CAUSE_KIND_PORT_BUSY
	case errors.As(err, &save), errors.As(err, &unread):
		f.Kind, f.Save = weftv1.CauseKind_CAUSE_KIND_RESTORE_FAILED, a.GetResumeFrom().GetSave()
	}
	return f
}

func (p *Preparer) prepare(ctx context.Context, x *preparation) (*shim.Launch, error) {
	a := x.assigned
	for _, token := range []string{a.GetJob(), a.GetTenant()} {
		if err := bus.CheckToken(token); err != nil {
			return nil, err
		}
	}
	if err := p.directories(x.made, a); err != nil {
		return nil, err
	}
	spec, err := p.spec(ctx, a.GetSpec())
	if err != nil {
		return nil, err
	}
	resume, err := p.resume(ctx, a)
	if err != nil {
		return nil, err
	}
	if b := spec.GetBundle(); b != "" {
		if err := p.unpack(ctx, b, filepath.Join(x.made, dirWork)); err != nil {
			return nil, err
		}
	}
	d := launch.Dirs{Work: filepath.Join(x.dir, dirWork), Logs: p.logs(a)}
	token := strings.ToLower(rand.Text())
	// Never the same cgroup twice: once it was killed, kernels (seen on 6.18) kill whatever is started in it.
	group := p.groups.Group(runName(x.id)+groupSeparator+token[:8], "WEFT_RUN="+x.dir)
	ranks, err := launch.Ranks(p.cfg.Node, a, spec, d, p.cfg.HostEnv, resume, group.Marker)
	if err != nil {
		return nil, err
	}
	l := &shim.Launch{
		Token: token, Job: a.GetJob(), Attempt: a.GetAttempt(), BootID: p.cfg.BootID, Group: group,
		Contact: p.cfg.Contact, FenceNS: p.cfg.FenceNS, GraceNS: spec.GetCheckpoint().GetGraceNs(), Ranks: ranks,
		HangAfterNS: spec.GetHangAfterNs(),
	}
	if err := launch.CheckPorts(a, spec); err != nil {
		return nil, err
	}
	return l, shim.WriteFile(x.made, shim.FileLaunch, l, false)
}

// logs is where the output of an attempt's ranks goes; it stays when the run directory is removed.
func (p *Preparer) logs(a *weftv1.AssignedAttempt) string {
	return filepath.Join(p.cfg.Dir, "logs", a.GetJob(), fmt.Sprint(a.GetAttempt()))
}

// directories makes the run directory from nothing.
func (p *Preparer) directories(dir string, a *weftv1.AssignedAttempt) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	n := p.cfg.Node
	for _, m := range []string{filepath.Join(dir, dirWork), p.logs(a), n.SaveDir(a.GetTenant(), a.GetJob()), n.JobOutput(a.GetTenant(), a.GetJob())} {
		if err := os.MkdirAll(m, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	b, err := proto.Marshal(a)
	if err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := replaceFile(filepath.Join(dir, fileAssigned), b); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	return nil
}

const (
	maxSpec  = 1 << 20
	maxSpecs = 256 // kept in memory
)

// spec fetches a job's spec, whose key says what its bytes must be.
func (p *Preparer) spec(ctx context.Context, key string) (*weftv1.JobSpec, error) {
	p.mu.Lock()
	s := p.specs[key]
	p.mu.Unlock()
	if s != nil {
		return s, nil
	}
	r, err := p.bundles.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(io.LimitReader(r, maxSpec))
	if err != nil {
		return nil, fmt.Errorf("spec %s: %w", key, err)
	}
	s = &weftv1.JobSpec{}
	if err := proto.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("spec %s: %w", key, err)
	}
	if got := jobspec.SpecKey(s); got != key {
		return nil, fmt.Errorf("spec %s: its bytes are %s", key, got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.specs) >= maxSpecs {
		clear(p.specs)
	}
	p.specs[key] = s
	return s, nil
}

func (p *Preparer) unpack(ctx context.Context, digest, dir string) error {
	name, err := launch.Fetch(ctx, p.bundles, filepath.Join(p.cfg.Dir, "bundles"), digest)
	if err != nil {
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	defer func() { _ = f.Close() }()
	// Of use again, so it is not swept soon.
	now := time.Now()
	_ = os.Chtimes(name, now, now)
	return launch.Unpack(f, dir)
}

// locateTimeout is longer than an answerer that is behind waits.
const locateTimeout = 2 * time.Second

// resume asks the checkpoint service only where the bytes are; which save it is, the placement says.
func (p *Preparer) resume(ctx context.Context, a *weftv1.AssignedAttempt) (string, error) {
	save := a.GetResumeFrom().GetSave()
	if save == "" {
		return "", nil
	}
	q, err := proto.Marshal(weftv1.LocateRequest_builder{Job: new(a.GetJob()), Save: &save}.Build())
	if err != nil {
		return "", fmt.Errorf("locate: %w", err)
	}
	r := p.caller.Call(bus.SubjectNodeRPC("checkpoint", "locate", p.cfg.Node.Name), q, locateTimeout).Wait(ctx)
	var refusal *bus.Refusal
	if errors.As(r.Err, &refusal) && refusal.Code == bus.CodeNotFound {
		return "", &launch.Unrestorable{Why: refusal.Message}
	}
	if r.Err != nil {
		return "", fmt.Errorf("where save %s is: %w", save, r.Err)
	}
	at := &weftv1.LocateReply{}
	if err := proto.Unmarshal(r.Data, at); err != nil {
		return "", fmt.Errorf("where save %s is: %w", save, err)
	}
	return launch.Resume(ctx, p.cfg.Node, a, at, p.cfg.Verify)
}

package allinone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/run"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Fabric is a running fabric.
type Fabric struct {
	cfg     Config
	lock    *os.File
	srv     *bus.Embedded
	conns   []*bus.Conn
	log     *natsledger.Log
	proj    *ledger.Projection[*cell.State]
	reqs    bus.Outbox
	nodes   []node
	closers []func()
	door    Context
	before  uint64 // term of the leader before this process

	confirmed func(context.Context) (uint64, error) // newest record known outside of the ledger

	started bool // the services run, and close done
	cancel  context.CancelFunc
	done    chan struct{}
	err     error // how the services ended; read after done
}

// readyWithin bounds the start; a healthy machine needs a fraction of a second.
const readyWithin = 30 * time.Second

// Start brings a fabric up and returns once it takes jobs. It stops when ctx ends; Stop waits for that.
func Start(ctx context.Context, cfg Config) (*Fabric, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var err error
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return nil, err
	}
	level := slog.LevelWarn
	if cfg.Verbose {
		level = slog.LevelInfo
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(cfg.LogTo, &slog.HandlerOptions{Level: level})))

	f := &Fabric{cfg: cfg, done: make(chan struct{})}
	if f.lock, err = lock(cfg.Dir); err != nil {
		return nil, err
	}
	ctx, f.cancel = context.WithCancel(ctx)
	if err := f.start(ctx); err != nil {
		f.cancel()
		if f.started {
			<-f.done
			err = errors.Join(err, f.err)
		}
		f.release()
		return nil, err
	}
	return f, nil
}

func (f *Fabric) start(ctx context.Context) error {
	_ = os.Remove(filepath.Join(f.cfg.Dir, ContextFile)) // it says that the fabric is ready
	for flag, addr := range map[string]string{"--grpc": f.cfg.GRPC, "--rest": f.cfg.REST, "--metrics": f.cfg.Metrics, "--nats": f.cfg.NATS} {
		l, err := listen(flag, addr)
		if err != nil {
			return err
		}
		_ = l.Close()
	}
	var err error
	if f.nodes, err = findNodes(ctx, f.cfg); err != nil {
		return err
	}
	if err := f.startBus(ctx); err != nil {
		return err
	}
	services, err := f.services(ctx)
	if err != nil {
		return err
	}
	// Whoever asks is answered from the whole ledger, and the term that begins here is the first one after it.
	if err := f.catchUp(ctx); err != nil {
		return err
	}
	_, f.before = f.proj.Leader()
	f.started = true
	go func() {
		f.err = run.NewGroup("weft up", services...).Run(ctx)
		close(f.done)
	}()
	if err := f.ready(ctx); err != nil {
		return err
	}
	return writeContext(f.cfg.Dir, f.door)
}

func (f *Fabric) startBus(ctx context.Context) error {
	host, portText, err := net.SplitHostPort(f.cfg.NATS)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return fmt.Errorf("--nats %s: the port is not a number", f.cfg.NATS)
	}
	names := slices.Clone(f.cfg.Guests)
	for _, n := range f.nodes {
		names = append(names, n.name)
	}
	if f.srv, err = bus.StartServer(bus.ServerConfig{Dir: filepath.Join(f.cfg.Dir, "bus"), Host: host, Port: port, Nodes: names}); err != nil {
		return err
	}
	core, err := f.srv.Conn(ctx, bus.RoleCoreInit)
	if err != nil {
		return err
	}
	defer core.Close()
	nodes, err := f.srv.Conn(ctx, bus.RoleNodesInit)
	if err != nil {
		return err
	}
	defer nodes.Close()
	return bus.Apply(ctx, core, nodes, bus.ApplyOptions{Replicas: 1})
}

// Guest signs in as a node of Config.Guests; the caller closes it.
func (f *Fabric) Guest(ctx context.Context, node string) (*bus.Conn, error) {
	return f.srv.Conn(ctx, bus.NodeRole(node))
}

// catchUp reads the ledger. One that lost its end is refused here, in words: no scheduler would lead it.
func (f *Fabric) catchUp(ctx context.Context) error {
	confirmed, err := f.confirmed(ctx) // before the ledger is read
	if err != nil {
		return err
	}
	tail, err := f.proj.CatchUp(ctx, time.Now())
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	f.proj.Confirm(confirmed, tail)
	loss := f.proj.Lost()
	switch {
	case loss == nil:
		return nil
	case f.cfg.Dir != DefaultDir():
		return fmt.Errorf("%w: weft ledger adopt --data %s", loss, f.cfg.Dir)
	}
	return loss
}

// conn opens a connection that Stop closes.
func (f *Fabric) conn(ctx context.Context, role bus.Role) (*bus.Conn, error) {
	c, err := f.srv.Conn(ctx, role)
	if err == nil {
		f.conns = append(f.conns, c)
	}
	return c, err
}

// openLedger opens the one projection that every service here shares.
func (f *Fabric) openLedger(ctx context.Context, core *bus.Conn) error {
	var err error
	if f.log, err = natsledger.Open(ctx, core, bus.StreamLedger); err != nil {
		return err
	}
	snaps, err := natsledger.OpenSnapshots(ctx, core, bus.StreamLedger)
	if err != nil {
		return err
	}
	f.proj = ledger.NewProjection(f.log, cellfold.Fold(), snaps)
	f.reqs = busnats.NewOutbox(core, bus.StreamRequests)
	return nil
}

// ready waits until the ledger is led from here, the first queues exist and every node has said hello.
func (f *Fabric) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	if err := f.untilLed(ctx); err != nil {
		return fmt.Errorf("no scheduler leads the ledger: %w", err)
	}
	if err := f.firstQueues(ctx); err != nil {
		return err
	}
	err := f.until(ctx, func(s *cell.State) bool {
		for _, n := range f.nodes {
			if s.Node(n.name) == nil {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("not every node came up: %w", err)
	}
	return nil
}

// untilLed waits until a scheduler of this process leads.
func (f *Fabric) untilLed(ctx context.Context) error {
	return f.until(ctx, func(*cell.State) bool { _, term := f.proj.Leader(); return term > f.before })
}

// firstQueues makes the queues that a first user needs, if the ledger has none of them.
func (f *Fabric) firstQueues(ctx context.Context) error {
	old := false
	f.proj.View(func(s *cell.State, _ ledger.Position) {
		for range s.Queues() {
			old = true
			break
		}
	})
	if old { // whoever removed one of the first meant it
		return nil
	}
	var first []*weftv1.QueueSet
	for _, q := range []string{"default", "demo", "demo/vision"} {
		first = append(first, weftv1.QueueSet_builder{Queue: &q, Weight: proto.Int64(1)}.Build())
	}
	err := f.request(ctx, "queues", weftv1.Request_builder{ApplyQueues: weftv1.ApplyQueues_builder{Queues: first}.Build()})
	if err != nil {
		return fmt.Errorf("first queues: %w", err)
	}
	return f.until(ctx, func(s *cell.State) bool { return s.Queue("default") != nil })
}

// request writes one request of the all-in-one itself, as the gateway writes those of users.
func (f *Fabric) request(ctx context.Context, verb string, r weftv1.Request_builder) error {
	now := time.Now()
	r.Id, r.Tenant, r.By, r.TimeNs = proto.String(verb+"-"+strconv.FormatInt(now.UnixNano(), 36)), proto.String("cell"), proto.String("weft up"), proto.Int64(now.UnixNano())
	b, err := proto.Marshal(r.Build())
	if err != nil {
		return err
	}
	_, err = f.reqs.Publish(ctx, bus.Message{Subject: bus.SubjectRequest("cell", verb), Data: b})
	return err
}

// until waits for a state of the cell.
func (f *Fabric) until(ctx context.Context, holds func(*cell.State) bool) error {
	wake := f.proj.Wake()
	for {
		// Asked outside of the projection's lock: what holds may ask the projection too.
		var now *cell.State
		f.proj.View(func(s *cell.State, _ ledger.Position) { now = s.Overlay() })
		if holds(now) {
			return nil
		}
		select {
		case <-wake:
		case <-f.done:
			return errors.Join(errors.New("a service ended"), f.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Context is where the door is.
func (f *Fabric) Context() Context { return f.door }

// Nodes describes the nodes for people.
func (f *Fabric) Nodes() []string {
	var out []string
	for _, n := range f.nodes {
		out = append(out, n.describe())
	}
	return out
}

// Wait returns when the services have ended, with the reason.
func (f *Fabric) Wait() error {
	<-f.done
	return f.err
}

// Drain stops every attempt with its grace and puts the jobs back into their queues, uncharged. It returns when no
// attempt holds anything any more.
func (f *Fabric) Drain(ctx context.Context) error {
	var grace time.Duration
	f.proj.View(func(s *cell.State, _ ledger.Position) {
		for j := range s.LiveJobs() {
			if j.Phase.Active() {
				grace = max(grace, time.Duration(j.Spec.GetCheckpoint().GetGraceNs()))
			}
		}
	})
	ctx, cancel := context.WithTimeout(ctx, grace+15*time.Second)
	defer cancel()
	if err := f.request(ctx, "shutdown", weftv1.Request_builder{ShutDown: &weftv1.ShutDown{}}); err != nil {
		return fmt.Errorf("drain: %w; the ranks run on and are adopted at the next start", err)
	}
	var left []string
	err := f.until(ctx, func(s *cell.State) bool {
		left = left[:0]
		for j := range s.LiveJobs() {
			if j.Phase.Active() {
				left = append(left, j.ID)
			}
		}
		return len(left) == 0
	})
	if err != nil {
		return fmt.Errorf("drain: %w; still holding devices: %s; the ranks run on and are adopted at the next start", err, strings.Join(left, ", "))
	}
	return nil
}

// Stop ends the services and the bus. Ranks that still run are left alone.
func (f *Fabric) Stop() error {
	f.cancel()
	<-f.done
	_ = os.Remove(filepath.Join(f.cfg.Dir, ContextFile))
	f.release()
	return f.err
}

func (f *Fabric) release() {
	for _, c := range f.closers {
		c()
	}
	if f.log != nil {
		f.log.Close()
	}
	for _, n := range f.nodes {
		if n.device != nil {
			_ = n.device.Close()
		}
	}
	for i := len(f.conns) - 1; i >= 0; i-- {
		f.conns[i].Close()
	}
	if f.srv != nil {
		f.srv.Shutdown()
	}
	_ = f.lock.Close()
}

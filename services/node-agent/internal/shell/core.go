package shell

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/cgroup"
	"github.com/weft-fabric/weft/services/node-agent/internal/launch"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

// CoreConfig is what the core needs to know.
type CoreConfig struct {
	Dir    string // the agent's
	BootID string
	Node   launch.Node
	// Fence is how long after contact every rank must be dead here; 0 = never.
	Fence time.Duration
}

// CoreDeps are the core's surroundings.
type CoreDeps struct {
	Assignments bus.Inbox
	Groups      *cgroup.Manager
	Shims       *shim.Pool
	Contact     *Contact
	Reports     *Reports
	Preparer    *Preparer
	Logs        *Logs
	Saves       *Saves
	Janitor     *Janitor
	Use         func(uuids []string) // the devices in use changed
	Inventory   func() *weftv1.Inventory
}

// Core reads assignments, looks at runs, and performs what reconcile decides.
type Core struct {
	cfg   CoreConfig
	d     CoreDeps
	watch *watcher
	order reconcile.Order
	known bool
	want  map[reconcile.ID]*weftv1.AssignedAttempt
	runs  map[reconcile.ID]*run

	fence   int64 // Unix; see fenceNS
	fenceOf int64 // contact that fence follows from

	fillAt time.Time // when to start the next shim ahead

	inboxAt time.Time // do not read the inbox before
	inboxOK bool
	helloed signal
	mu      sync.Mutex
	ended   map[reconcile.ID]bool // runs whose shim ended, noted by watches
}

const fileOrder = "order.json"

// NewCore adopts what an agent before left, and queues the hello that says so.
func NewCore(cfg CoreConfig, d CoreDeps, now time.Time) (*Core, error) {
	c := &Core{
		cfg: cfg, d: d, want: map[reconcile.ID]*weftv1.AssignedAttempt{}, runs: map[reconcile.ID]*run{},
		helloed: newSignal(), ended: map[reconcile.ID]bool{}, inboxOK: true,
	}
	var err error
	if c.watch, err = newWatcher(); err != nil {
		return nil, err
	}
	if _, err := shim.ReadFile(cfg.Dir, fileOrder, &c.order); err != nil {
		return nil, err
	}
	if err := c.adoptAll(now); err != nil {
		c.watch.close()
		return nil, err
	}
	d.Assignments.Seek(0)
	return c, c.sayHello(now)
}

// Close stops watching; ranks run on.
func (c *Core) Close() {
	c.watch.close()
	c.d.Shims.Close()
	if len(c.runs) > 0 {
		return
	}
	// Nothing is left here: leave no empty cgroups behind, once the shim that was started ahead has ended.
	for range 50 {
		if c.d.Groups.Remove() == nil {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (c *Core) runsDir() string { return filepath.Join(c.cfg.Dir, "runs") }

func (c *Core) adoptAll(now time.Time) error {
	if err := os.MkdirAll(c.runsDir(), 0o700); err != nil {
		return fmt.Errorf("node-agent: %w", err)
	}
	es, err := os.ReadDir(c.runsDir())
	if err != nil {
		return fmt.Errorf("node-agent: %w", err)
	}
	known := map[string]bool{}
	for _, e := range es {
		dir := filepath.Join(c.runsDir(), e.Name())
		id, ok := parseRunName(e.Name())
		if !ok || strings.HasPrefix(e.Name(), unfinished) {
			if strings.HasPrefix(e.Name(), unfinished) {
				c.d.Janitor.remove(dir)
			}
			continue
		}
		// Kept even if it cannot be read: what a cgroup holds dies only when somebody knows that it should.
		known[e.Name()] = true
		r, err := adopt(dir, id, c.cfg.BootID, now, func() { c.d.Janitor.discard(dir) })
		if err != nil {
			slog.Error("a run directory cannot be read; it is left alone", "dir", dir, "error", err)
			continue
		}
		if r == nil {
			delete(known, e.Name())
			continue
		}
		c.runs[id] = r
		switch {
		case r.Phase < reconcile.Empty:
			c.follow(r)
			slog.Info("adopted", "job", id.Job, "attempt", id.Attempt, "phase", r.Phase.String())
		case r.launch != nil:
			if err := r.group().Remove(); err != nil {
				slog.Warn("a cgroup could not be removed", "error", err)
			}
		}
		c.track(r)
		if r.Phase >= reconcile.Ended {
			c.flush(r, now)
		}
	}
	if err := c.d.Groups.Sweep(func(name string) bool {
		run, _, _ := strings.Cut(name, groupSeparator)
		return known[run]
	}); err != nil {
		slog.Warn("cgroups of no run could not be removed", "error", err)
	}
	c.useDevices()
	return nil
}

// follow watches a run's files and its shim.
func (c *Core) follow(r *run) {
	id := r.ID
	if err := c.watch.add(id, r.dir, unixMovedTo); err != nil {
		slog.Warn("events of a run are not seen; its state is read every second", "error", err)
	}
	if f := r.group().EventsFile(); f != "" && r.Phase < reconcile.Empty {
		// Only saves waiting; the group is also looked at when the shim ends.
		_ = c.watch.add(id, f, unixModify)
	}
	if r.gone {
		return
	}
	if ok, err := shim.ReadFile(r.dir, shim.FileShim, &r.shim); err != nil || !ok {
		// It holds its lock and has not written its name: the agent before died in that very moment. scan sees it.
		return
	}
	c.watchShim(r)
}

func (c *Core) watchShim(r *run) {
	id := r.ID
	proc.Watch(r.shim, func() {
		c.mu.Lock()
		c.ended[id] = true
		c.mu.Unlock()
		c.watch.mark(id)
	})
}

// Name for logs.
func (c *Core) Name() string { return "node-agent core" }

// Wakes implements run.Shell.
func (c *Core) Wakes() []<-chan struct{} {
	return []<-chan struct{}{c.d.Assignments.Wake(), c.watch.wake, c.d.Preparer.done, c.d.Contact.wake, c.d.Logs.flushed, c.helloed, c.d.Saves.flushed}
}

// rescan is how often everything is looked at although nothing called for it.
const rescan = time.Second

// Step implements run.Shell. It returns no error for what it can do again: a backoff would delay a kill.
func (c *Core) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	did := c.read(ctx, now)
	did = c.prepared(now) || did
	c.scan(now)
	select {
	case <-c.helloed:
		if err := c.sayHello(now); err != nil {
			return did, time.Time{}, err
		}
	default:
	}
	do, next := reconcile.Decide(c.world(now))
	if len(do) == 0 && !did && !now.Before(c.fillAt) && !c.d.Shims.Full() {
		if err := c.d.Shims.Fill(); err != nil {
			slog.Warn("no shim could be started ahead; launches take longer", "error", err)
		}
		c.fillAt = now.Add(fillRetry)
	}
	failed := false
	for _, a := range do {
		if err := c.perform(a, now); err != nil {
			slog.Error("not done, trying again", "action", fmt.Sprintf("%T", a), "error", err)
			failed = true
		}
	}
	if failed {
		return false, now.Add(performRetry), nil
	}
	return did || len(do) > 0, c.next(now, next), nil
}

// After a launch the machine has better things to do than to prepare for the next one.
const (
	fillAfter = 50 * time.Millisecond
	fillRetry = 10 * time.Second
)

// performRetry is how long to leave alone what could not be done, such as writing to a full disk.
const performRetry = 200 * time.Millisecond

func (c *Core) next(now time.Time, decided int64) time.Time {
	at := now.Add(rescan)
	sooner := func(t time.Time) {
		if t.After(now) && t.Before(at) {
			at = t
		}
	}
	if decided != 0 {
		sooner(time.Unix(0, decided))
	}
	sooner(c.inboxAt)
	if !c.d.Shims.Full() {
		sooner(c.fillAt)
	}
	for _, r := range c.runs {
		if r.Phase == reconcile.Ended {
			sooner(r.emptyAt)
		}
		if r.Phase >= reconcile.Ended && !r.Flushed {
			sooner(r.flushBy)
		}
	}
	return at
}

// readRetry is how long to leave a bus alone that did not answer.
const readRetry = 250 * time.Millisecond

// read takes the newest assignment.
func (c *Core) read(ctx context.Context, now time.Time) bool {
	if now.Before(c.inboxAt) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	in, err := c.d.Assignments.Next(ctx, 16)
	if err != nil {
		if c.inboxOK {
			slog.Warn("assignments cannot be read; what runs runs on", "error", err)
		}
		c.inboxOK, c.inboxAt = false, now.Add(readRetry)
		return false
	}
	c.inboxOK = true
	for _, i := range in {
		var a weftv1.Assignment
		if err := proto.Unmarshal(i.Data, &a); err != nil {
			slog.Error("an assignment cannot be decoded", "seq", i.Seq, "error", err)
			continue
		}
		c.assign(reconcile.Order{CreatedNS: i.CreatedNS, LedgerSeq: a.GetLedgerSeq()}, &a)
	}
	return len(in) > 0
}

func (c *Core) assign(o reconcile.Order, a *weftv1.Assignment) {
	if a.GetNode() != c.cfg.Node.Name {
		slog.Error("an assignment of another node was refused", "node", a.GetNode())
		return
	}
	if b := a.GetBootId(); b != "" && b != c.cfg.BootID {
		slog.Info("an assignment for an earlier start of this machine was left alone", "ledger_seq", o.LedgerSeq)
		return
	}
	if reconcile.Stale(c.order, o) {
		slog.Warn("a stale assignment was refused", "ledger_seq", o.LedgerSeq, "obeyed", c.order.LedgerSeq)
		return
	}
	if o != c.order {
		if err := shim.WriteFile(c.cfg.Dir, fileOrder, o, false); err != nil {
			slog.Error("the order of assignments could not be kept", "error", err)
		}
	}
	c.order, c.known = o, true
	c.want = map[reconcile.ID]*weftv1.AssignedAttempt{}
	for _, x := range a.GetAttempts() {
		c.want[reconcile.ID{Job: x.GetJob(), Attempt: x.GetAttempt()}] = x
	}
}

// scan looks at the runs that changed.
func (c *Core) scan(now time.Time) {
	c.mu.Lock()
	for id := range c.ended {
		if r := c.runs[id]; r != nil {
			r.gone = true
		}
	}
	clear(c.ended)
	c.mu.Unlock()
	dirty, _ := c.watch.take()
	for id, r := range c.runs {
		before := r.Phase
		if r.Phase == reconcile.Empty || r.launch == nil {
			c.checkFlush(r, now)
			continue
		}
		// Reading a handful of small files is cheap, and seeing every change at any wake is simpler to trust.
		if err := r.scan(now); err != nil {
			slog.Error("a run cannot be read", "job", id.Job, "attempt", id.Attempt, "dirty", dirty[id], "error", err)
		}
		if r.shim.Pid == 0 && !r.gone {
			if ok, err := shim.ReadFile(r.dir, shim.FileShim, &r.shim); err == nil && ok {
				c.watchShim(r)
			}
		}
		if r.unasked {
			c.tellStop(r)
		}
		if before < reconcile.Ended && r.Phase >= reconcile.Ended {
			c.flush(r, now)
		}
		if r.Phase == reconcile.Empty {
			c.watch.remove(id)
			if err := r.group().Remove(); err != nil {
				slog.Warn("a cgroup could not be removed", "error", err)
			}
			c.useDevices()
		}
		c.checkFlush(r, now)
	}
}

// flushTime bounds how long a release waits for its last output and saves.
const flushTime = 2 * time.Second

// flush asks for the last output and saves of a run whose ranks have ended.
func (c *Core) flush(r *run, now time.Time) {
	r.flushBy = now.Add(flushTime)
	c.d.Logs.finish(r.ID)
	c.d.Saves.finish(r.ID)
}

func (c *Core) checkFlush(r *run, now time.Time) {
	if r.Phase >= reconcile.Ended && !r.Flushed {
		r.Flushed = r.launch == nil || !now.Before(r.flushBy) || c.d.Logs.isFlushed(r.ID) && c.d.Saves.isFlushed(r.ID)
	}
}

// track tells the shells that follow output and saves of a run.
func (c *Core) track(r *run) {
	if r.launch == nil {
		return
	}
	c.d.Logs.add(r.ID, r.launch.Ranks)
	c.d.Saves.add(r.ID, r.assigned)
}

func (c *Core) world(now time.Time) reconcile.World {
	w := reconcile.World{NowNS: now.UnixNano(), Known: c.known}
	for id, a := range c.want {
		w.Want = append(w.Want, reconcile.Want{ID: id, Stop: a.HasStop(), KillAtNS: a.GetKillAtNs()})
	}
	for _, r := range c.runs {
		w.Have = append(w.Have, r.Attempt)
	}
	w.FenceNS = c.fenceNS(w.NowNS)
	return w
}

// fenceNS is the fence on the wall clock. Two clocks are never read at one instant, so the last result stands while it is
// right: a deadline that trembled would be a new decision each time.
func (c *Core) fenceNS(now int64) int64 {
	if c.cfg.Fence == 0 {
		return 0
	}
	last := c.d.Contact.Last()
	at := now + last + int64(c.cfg.Fence) - proc.SinceBoot()
	if off := at - c.fence; last != c.fenceOf || off > int64(time.Second) || off < -int64(time.Second) {
		c.fence, c.fenceOf = at, last
	}
	return c.fence
}

// Hello asks for another hello: the leader does not know this node, or its inventory changed.
func (c *Core) Hello() { c.helloed.set() }

func (c *Core) sayHello(now time.Time) error {
	inv := c.d.Inventory()
	var held []*weftv1.HeldAttempt
	for id := range c.runs {
		held = append(held, weftv1.HeldAttempt_builder{Job: new(id.Job), Attempt: new(id.Attempt)}.Build())
	}
	return c.d.Reports.say(now, func(m *weftv1.Report) {
		m.SetHello(weftv1.Hello_builder{Inventory: inv, Held: held}.Build())
	})
}

// useDevices says which devices are in use.
func (c *Core) useDevices() {
	var uuids []string
	for _, r := range c.runs {
		if r.Phase == reconcile.Empty {
			continue
		}
		for _, p := range r.assigned.GetPlacements() {
			for _, i := range p.GetDevices() {
				if int(i) < len(c.cfg.Node.Devices) {
					uuids = append(uuids, c.cfg.Node.Devices[i].GetUuid())
				}
			}
		}
	}
	c.d.Use(uuids)
}

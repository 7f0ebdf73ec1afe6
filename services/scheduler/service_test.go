package scheduler

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/libs/run"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// world is what replicas share: a bus and a ledger in memory. Everything runs in its own goroutine, on virtual time.
type world struct {
	t   *testing.T
	bus *membus.Bus
	log *memledger.Log
	out *lines
}

// lines is a log that may be written from everywhere.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, bus: membus.New(), log: memledger.New(), out: &lines{}}
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(w.out, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return w
}

// running is one replica at work.
type running struct {
	proj *ledger.Projection[*cell.State]
	log  *faultledger.Log
	stop func()
	ctx  context.Context
}

// start runs a replica. alive is the life of what it reads from, which may end before the replica does.
func (w *world) start(name string, change func(*Config, *Deps)) *running {
	w.t.Helper()
	r := &running{log: faultledger.Wrap(w.log)}
	r.proj = ledger.NewProjection(r.log, cellfold.Fold(), nil)
	cfg := DefaultConfig()
	cfg.Replica = name
	d := Deps{
		Log: r.log, History: r.log, Proj: r.proj, Core: w.bus.Caller(), Nodes: w.bus.Caller(),
		Requests: w.bus.Inbox(bus.StreamRequests, ""), Reports: w.bus.Inbox(bus.StreamReports, ""),
		Checkpoints: w.bus.Inbox(bus.StreamCheckpoints, ""), Trim: []bus.Inbox{w.bus.Inbox(bus.StreamRequests, "")},
		Events: w.bus.Outbox(bus.StreamEvents), Assignments: w.bus.Outbox(bus.StreamAssignments),
	}
	if change != nil {
		change(&cfg, &d)
	}
	s, err := New(cfg, d)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.ctx = ctx
	var wg sync.WaitGroup
	wg.Go(func() { _ = run.Loop(ctx, nil, r.proj) })
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	r.stop = func() { cancel(); wg.Wait() }
	return r
}

func (w *world) request(verb string, b weftv1.Request_builder) {
	w.t.Helper()
	b.Tenant, b.By = new("demo"), new("ann")
	data, err := proto.Marshal(b.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.bus.Outbox(bus.StreamRequests).Publish(context.Background(), bus.Message{Subject: bus.SubjectRequest("demo", verb), Data: data}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) queue(path string) {
	w.t.Helper()
	w.request("queues", weftv1.Request_builder{ApplyQueues: weftv1.ApplyQueues_builder{Queues: []*weftv1.QueueSet{
		weftv1.QueueSet_builder{Queue: &path, Weight: new(int64(1))}.Build(),
	}}.Build()})
}

func (w *world) queues(r *running) (out []string) {
	r.proj.View(func(s *cell.State, _ ledger.Position) {
		for q := range s.Queues() {
			out = append(out, q.Path)
		}
	})
	return out
}

func (r *running) leader() (string, uint64) { return r.proj.Leader() }

// pass lets virtual time go by; it returns when everybody rests.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestALoneReplicaLeadsAtOnceAndSleepsOnNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start("a", func(c *Config, _ *Deps) { c.Alone = true })
		defer a.stop()
		synctest.Wait()
		if who, term := a.leader(); who != "a" || term != 1 {
			t.Fatalf("%s leads term %d", who, term)
		}
		for i := range 20 { // not a tick of the clock in between
			w.queue(fmt.Sprintf("q%d", i))
			synctest.Wait()
			if n := len(w.queues(a)); n != i+1 {
				t.Fatalf("%d queues after request %d", n, i)
			}
		}
		in, err := w.bus.Inbox(bus.StreamEvents, "").Next(t.Context(), 100)
		if err != nil || len(in) != 20 {
			t.Fatalf("%d events, %v: the announcer sleeps", len(in), err)
		}
	})
}

func TestAStandbyTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start("a", nil)
		pass(2 * time.Second)
		b := w.start("b", nil)
		defer b.stop()
		w.queue("one")
		pass(time.Minute)
		if who, term := b.leader(); who != "a" || term != 1 {
			t.Fatalf("%s leads term %d while its leader lives", who, term)
		}
		a.stop()
		w.queue("two") // while nobody leads
		pass(10 * time.Second)
		if who, term := b.leader(); who != "b" || term != 2 {
			t.Fatalf("%s leads term %d", who, term)
		}
		if got := strings.Join(w.queues(b), " "); got != "one two" {
			t.Fatal(got)
		}
		in, err := w.bus.Inbox(bus.StreamEvents, "").Next(t.Context(), 100)
		if err != nil || len(in) != 2 {
			t.Fatalf("%d events, %v", len(in), err)
		}
	})
}

func TestTheFirstOneIsFencedWhenItComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		cut := &cutCaller{}
		a := w.start("a", func(_ *Config, d *Deps) { cut.Caller = d.Core; d.Core = cut })
		defer a.stop()
		pass(2 * time.Second)
		cut.set(true) // its beats get lost, nothing else
		b := w.start("b", nil)
		defer b.stop()
		for i := range 30 {
			w.queue(fmt.Sprintf("q%d", i))
			pass(time.Second)
		}
		cut.set(false)
		pass(30 * time.Second)
		who, term := a.leader()
		if other, same := b.leader(); other != who || same != term || term < 2 {
			t.Fatalf("a sees %s lead term %d, b sees %s", who, term, other)
		}
		// Each request was decided once, whoever did it.
		in, err := w.bus.Inbox(bus.StreamEvents, "").Next(t.Context(), 1000)
		if err != nil || len(in) != 30 {
			t.Fatalf("%d events, %v", len(in), err)
		}
		if strings.Contains(w.out.String(), "level=WARN") || strings.Contains(w.out.String(), "level=ERROR") {
			t.Errorf("a takeover is no failure:\n%s", w.out)
		}
	})
}

// cutCaller loses what it should send.
type cutCaller struct {
	bus.Caller
	mu  sync.Mutex
	cut bool
}

func (c *cutCaller) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
}

func (c *cutCaller) Send(m bus.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil
	}
	return c.Caller.Send(m)
}

func TestTheLoopsGoOnAfterTheLedgerFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start("a", func(c *Config, _ *Deps) { c.Alone = true })
		defer a.stop()
		synctest.Wait()
		a.log.PlanAppends(faultledger.Drop, faultledger.LoseAck, faultledger.Late, faultledger.Drop)
		a.log.PlanReads(faultledger.Drop, faultledger.Drop, faultledger.Drop)
		for i := range 5 {
			w.queue(fmt.Sprintf("q%d", i))
			pass(time.Second)
		}
		a.log.Land(t.Context())
		pass(time.Minute)
		if n := len(w.queues(a)); n != 5 {
			t.Fatalf("%d queues", n)
		}
		in, err := w.bus.Inbox(bus.StreamEvents, "").Next(t.Context(), 1000)
		if err != nil || len(in) != 5 {
			t.Fatalf("%d events, %v", len(in), err)
		}
	})
}

func TestTheBusMayBeAwayForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start("a", func(c *Config, _ *Deps) { c.Alone = true })
		defer a.stop()
		w.queue("one")
		pass(time.Second)
		w.bus.SetDown(true)
		pass(5 * time.Minute)
		w.bus.SetDown(false)
		w.queue("two")
		pass(10 * time.Second)
		if got := strings.Join(w.queues(a), " "); got != "one two" {
			t.Fatal(got)
		}
	})
}

// endedInbox fails as an inbox does whose connection was closed under its reader.
type endedInbox struct {
	bus.Inbox
	alive context.Context
}

func (i endedInbox) Next(ctx context.Context, n int) ([]bus.Input, error) {
	if err := i.alive.Err(); err != nil {
		return nil, err
	}
	return i.Inbox.Next(ctx, n)
}

func TestShutdownIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		alive, end := context.WithCancel(context.Background())
		a := w.start("a", func(c *Config, d *Deps) {
			c.Alone = true
			d.Requests, d.Reports = endedInbox{d.Requests, alive}, endedInbox{d.Reports, alive}
		})
		w.queue("one")
		pass(time.Second)
		end() // the connections end first; services stop one by one
		w.queue("two")
		pass(2 * time.Second)
		a.stop()
		if out := w.out.String(); strings.Contains(out, "level=WARN") || strings.Contains(out, "level=ERROR") {
			t.Fatalf("an orderly end says:\n%s", out)
		}
	})
}

func TestAStoppedSchedulerHearsNoMoreBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a := w.start("a", func(c *Config, _ *Deps) { c.Alone = true })
		synctest.Wait()
		a.stop()
		call := w.bus.Caller().Call(bus.SubjectBeat("n1"), nil, time.Second)
		if _, done := call.Poll(); !done {
			t.Fatal("a beat waits for a scheduler that is gone")
		}
	})
}

func TestTwoReplicasWithoutANameAreTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		nameless := func(c *Config, _ *Deps) { c.Replica = "" }
		a, b := w.start("", nameless), w.start("", nameless)
		defer a.stop()
		defer b.stop()
		pass(5 * time.Minute)
		if who, term := a.leader(); term > 2 || !strings.HasPrefix(who, Name+"-") {
			t.Fatalf("%s leads term %d after five minutes of peace", who, term)
		}
	})
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"silent 500ms": func(c *Config) { c.Silent = 500 * time.Millisecond },
		"fence":        func(c *Config) { c.Fence = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
		if _, err := New(c, Deps{}); err == nil {
			t.Error("New takes it")
		}
	}
}

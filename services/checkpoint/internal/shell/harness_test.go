package shell

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/faultbus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/libs/manifest"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/internal/savetest"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

const full, light = weftv1.SaveClass_SAVE_CLASS_FULL, weftv1.SaveClass_SAVE_CLASS_LIGHT

// fabric is what outlives a replica of the service: the bus, the log, the disk.
type fabric struct {
	tb      fataler
	bus     *membus.Bus
	log     *faultledger.Log
	root    string
	policy  keeper.Policy
	now     time.Time
	started int
}

type fataler interface {
	Helper()
	Fatal(a ...any)
	Fatalf(format string, a ...any)
}

func newFabric(tb fataler, root string) *fabric {
	f := &fabric{tb: tb, bus: membus.New(), log: faultledger.Wrap(memledger.New()), root: root, now: time.Unix(1000, 0)}
	f.bus.SetClock(func() time.Time { return f.now })
	return f
}

// replica is one process of the service; its pool works when it is drained, and only then.
type replica struct {
	*fabric
	proj   *Projection
	writer *Writer
	shell  *Shell
	pool   *pool
	saves  *faultbus.Inbox
	ctx    context.Context
	errs   []error // of its steps
}

type pool struct {
	ctx   context.Context
	hold  bool
	queue []func(context.Context) func()
	wake  chan struct{}
}

func (p *pool) Go(work func(context.Context) func()) { p.queue = append(p.queue, work) }
func (p *pool) Wake() <-chan struct{}                { return p.wake }
func (p *pool) Drain() bool {
	if p.hold || len(p.queue) == 0 {
		return false
	}
	queue := p.queue
	p.queue = nil
	for _, work := range queue {
		if then := work(p.ctx); then != nil {
			then()
		}
	}
	return true
}

// start makes a replica; it leads once it is told to.
func (f *fabric) start(ctx context.Context) *replica {
	f.started++
	proj := ledger.NewProjection(f.log, ledger.Fold[*keeper.Index]{
		New: keeper.NewIndex, Encode: keeper.Encode, Decode: keeper.Decode, Version: keeper.FoldVersion,
		Apply: func(ix *keeper.Index, c *weftv1.Commit, _ uint64) error { return keeper.Apply(ix, c) },
	}, nil)
	r := &replica{
		fabric: f, ctx: ctx, proj: proj, saves: faultbus.WrapInbox(f.bus.Inbox(bus.StreamSaves, "")), pool: &pool{ctx: ctx, wake: make(chan struct{})},
		writer: ledger.NewWriter(f.log, proj, "checkpoint", fmt.Sprint("replica-", f.started)),
	}
	r.shell = New(Config{Dir: f.root, Policy: f.policy}, Deps{
		Proj: proj, Writer: r.writer, Saves: r.saves, Callers: []bus.Caller{f.bus.Caller(), f.bus.Caller()}, Pool: r.pool,
	})
	return r
}

func (f *fabric) lead(ctx context.Context) *replica {
	f.tb.Helper()
	r := f.start(ctx)
	r.elect()
	return r.run()
}

func (r *replica) elect() {
	r.tb.Helper()
	if err := r.writer.Lead(r.ctx, r.now); err != nil {
		r.tb.Fatal(err)
	}
}

// run steps until there is nothing left to do. A step that fails is stepped again, as the loop would.
func (r *replica) run() *replica {
	r.tb.Helper()
	for range 10_000 {
		if _, _, err := r.proj.Step(r.ctx, r.now); err != nil {
			r.errs = append(r.errs, err)
			continue
		}
		did, _, err := r.shell.Step(r.ctx, r.now)
		if err != nil {
			r.errs = append(r.errs, err)
		} else if !did && (r.pool.hold || len(r.pool.queue) == 0) {
			return r
		}
	}
	r.tb.Fatalf("no end: %v", r.errs[max(0, len(r.errs)-3):])
	return nil
}

// advance lets time pass.
func (r *replica) advance(d time.Duration) *replica {
	r.tb.Helper()
	r.now = r.now.Add(d)
	return r.run()
}

// write puts a rank's part where its rank would publish it.
func (f *fabric) write(job string, attempt uint32, step uint64, class weftv1.SaveClass, rank uint32, declared string) string {
	f.tb.Helper()
	path, err := savetest.Write(f.root, savetest.Part{Job: job, Attempt: attempt, Step: step, Class: class, Rank: rank, Declared: declared})
	if err != nil {
		f.tb.Fatal(err)
	}
	return path
}

// verify is what the agent found in a part.
func (f *fabric) verify(path string) *weftv1.PartRef {
	f.tb.Helper()
	p, err := manifest.Verify(context.Background(), filepath.Join(f.root, path))
	if err != nil {
		f.tb.Fatal(err)
	}
	return p
}

func (f *fabric) report(p *weftv1.PartRef) {
	f.tb.Helper()
	b, err := proto.Marshal(weftv1.SaveReport_builder{Node: new(savetest.Node(p.GetRanks()[0])), Part: p}.Build())
	if err != nil {
		f.tb.Fatal(err)
	}
	f.send(bus.SubjectSave(savetest.Node(p.GetRanks()[0])), b)
}

func (f *fabric) send(subject string, data []byte) {
	f.tb.Helper()
	if _, err := f.bus.Outbox(bus.StreamSaves).Publish(context.Background(), bus.Message{Subject: subject, Data: data}); err != nil {
		f.tb.Fatal(err)
	}
}

// save writes and reports a save of ranks 0 and 1, and returns its name.
func (f *fabric) save(step uint64) string { return f.saveOf("j1", 1, step, full) }

func (f *fabric) saveOf(job string, attempt uint32, step uint64, class weftv1.SaveClass) string {
	f.tb.Helper()
	for r := range uint32(2) {
		f.report(f.verify(f.write(job, attempt, step, class, r, "0-1")))
	}
	return saveid.Name(attempt, step, class)
}

func (f *fabric) file(save string, rank uint32, name string) string {
	return filepath.Join(f.root, saveid.Path("acme", "j1", save, rank), name)
}

// damage changes a byte of a file.
func (f *fabric) damage(save string, rank uint32) {
	f.tb.Helper()
	file := f.file(save, rank, "state.bin")
	b, err := os.ReadFile(file)
	if err != nil {
		f.tb.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(file, b, 0o600); err != nil {
		f.tb.Fatal(err)
	}
}

// facts reads CHECKPOINTS as the scheduler does, and says them shortly.
func (f *fabric) facts() []string {
	f.tb.Helper()
	var out []string
	for _, c := range f.commits() {
		for _, e := range c.GetEntries() {
			fact := &weftv1.CheckpointFact{}
			if e.GetKind() == ledger.KindLeaderElected {
				continue
			}
			if err := proto.Unmarshal(e.GetFact(), fact); err != nil {
				f.tb.Fatal(err)
			}
			switch fact.WhichKind() {
			case weftv1.CheckpointFact_PartVerified_case:
				p := fact.GetPartVerified().GetPart()
				out = append(out, fmt.Sprintf("verified %s %d on %s", p.GetSave(), p.GetRanks()[0], fact.GetPartVerified().GetNode()))
			case weftv1.CheckpointFact_SaveCommitted_case:
				out = append(out, "committed "+fact.GetSaveCommitted().GetSave().GetSave())
			case weftv1.CheckpointFact_SaveQuarantined_case:
				q := fact.GetSaveQuarantined()
				out = append(out, fmt.Sprintf("quarantined %s on %s: %s", q.GetSave(), q.GetNode(), q.GetReason()))
			case weftv1.CheckpointFact_SaveDeleted_case:
				out = append(out, "deleted "+fact.GetSaveDeleted().GetSave())
			}
		}
	}
	return out
}

func (f *fabric) commits() []*weftv1.Commit {
	f.tb.Helper()
	recs, err := f.log.Log.Read(context.Background(), 1, 1<<20)
	if err != nil {
		f.tb.Fatal(err)
	}
	var out []*weftv1.Commit
	for _, rec := range recs {
		c, err := ledger.Decode(rec.Data)
		if err != nil {
			f.tb.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// cursor is how far the log says that SAVES was read.
func (f *fabric) cursor() uint64 {
	f.tb.Helper()
	seq := uint64(0)
	for _, c := range f.commits() {
		for _, cur := range c.GetCursors() {
			seq = cur.GetSeq()
		}
	}
	return seq
}

func (f *fabric) ask(subject, job, save string) bus.Pending {
	f.tb.Helper()
	b, err := proto.Marshal(weftv1.LocateRequest_builder{Job: &job, Save: &save}.Build())
	if err != nil {
		f.tb.Fatal(err)
	}
	return f.bus.Caller().Call(subject, b, time.Hour)
}

// locate asks as the agent of node n0 does.
func (r *replica) locate(save string) (*weftv1.LocateReply, error) {
	r.tb.Helper()
	p := r.ask(bus.SubjectNodeRPC("checkpoint", "locate", "n0"), "j1", save)
	r.run()
	return r.located(p)
}

func (r *replica) located(p bus.Pending) (*weftv1.LocateReply, error) {
	r.tb.Helper()
	a, done := p.Poll()
	if !done {
		r.tb.Fatal("not answered")
	}
	m := &weftv1.LocateReply{}
	if a.Err == nil && proto.Unmarshal(a.Data, m) != nil {
		r.tb.Fatalf("answered %q", a.Data)
	}
	return m, a.Err
}

func (r *replica) best() string {
	name := ""
	r.proj.View(func(ix *keeper.Index, _ ledger.Position) {
		if j := ix.Job("j1"); j != nil {
			for s := range j.Saves() {
				if name == "" && s.State == keeper.Committed && s.Ref.GetClass() == full {
					name = s.Ref.GetSave()
				}
			}
		}
	})
	return name
}

func wantFacts(t *testing.T, f *fabric, want ...string) {
	t.Helper()
	got := f.facts()
	if len(got) != len(want) || !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("facts:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func wantEqual[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (f *fabric) onDisk() []string {
	f.tb.Helper()
	paths, err := manifest.ListParts(f.root)
	if err != nil {
		f.tb.Fatal(err)
	}
	saves := []string{}
	for _, p := range paths {
		saves = append(saves, strings.Split(p, "/")[2])
	}
	return slices.Compact(saves)
}

// committedFacts are the facts of a save of ranks 0 and 1.
func committedFacts(saves ...string) (out []string) {
	for _, s := range saves {
		out = append(out, "verified "+s+" 0 on n0", "verified "+s+" 1 on n1", "committed "+s)
	}
	return out
}

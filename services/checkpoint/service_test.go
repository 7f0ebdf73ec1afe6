package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/libs/manifest"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/internal/savetest"
)

const full = weftv1.SaveClass_SAVE_CLASS_FULL

// fabric is what the service's replicas share.
type fabric struct {
	t           *testing.T
	core, nodes *membus.Bus
	log         *memledger.Log
	snaps       *memledger.Snapshots
	root        string
}

func newFabric(t *testing.T) *fabric {
	return &fabric{t: t, core: membus.New(), nodes: membus.New(), log: memledger.New(), snaps: memledger.NewSnapshots(), root: t.TempDir()}
}

// start runs a replica; what it returns stops it and waits for its end.
func (f *fabric) start(alone bool) (stop func()) {
	f.t.Helper()
	cfg := DefaultConfig()
	cfg.Dir, cfg.Alone, cfg.KeepFull = f.root, alone, 2
	s, err := New(cfg, Deps{
		Log: f.log, Proof: f.log, Snaps: f.snaps, Saves: f.nodes.Inbox(bus.StreamSaves, ""), Core: f.core.Caller(), Nodes: f.nodes.Caller(),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if s.Name() != "checkpoint" {
		f.t.Errorf("named %q", s.Name())
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	}
}

// save writes and reports a save of two ranks. damaged loses a byte after the agents looked.
func (f *fabric) save(step uint64, damaged bool) string {
	f.t.Helper()
	for rank := range uint32(2) {
		path, err := savetest.Write(f.root, savetest.Part{Job: "j1", Attempt: 1, Step: step, Class: full, Rank: rank, Declared: "0-1"})
		if err != nil {
			f.t.Fatal(err)
		}
		part, err := manifest.Verify(context.Background(), filepath.Join(f.root, path))
		if err != nil {
			f.t.Fatal(err)
		}
		if damaged {
			if err := os.Truncate(filepath.Join(f.root, path, "state.bin"), 5); err != nil {
				f.t.Fatal(err)
			}
		}
		b, err := proto.Marshal(weftv1.SaveReport_builder{Node: new(savetest.Node(rank)), Part: part}.Build())
		if err != nil {
			f.t.Fatal(err)
		}
		f.publish(bus.SubjectSave(savetest.Node(rank)), b)
	}
	return saveid.Name(1, step, full)
}

func (f *fabric) publish(subject string, data []byte) {
	f.t.Helper()
	if _, err := f.nodes.Outbox(bus.StreamSaves).Publish(f.t.Context(), bus.Message{Subject: subject, Data: data}); err != nil {
		f.t.Fatal(err)
	}
}

// announced are the saves that CHECKPOINTS says may be restored, as the scheduler reads it.
func (f *fabric) announced() string {
	f.t.Helper()
	synctest.Wait()
	recs, err := f.log.Read(f.t.Context(), 1, 1<<20)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, rec := range recs {
		c, err := ledger.Decode(rec.Data)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, e := range c.GetEntries() {
			fact := &weftv1.CheckpointFact{}
			if e.GetKind() != ledger.KindLeaderElected && proto.Unmarshal(e.GetFact(), fact) == nil && fact.HasSaveCommitted() {
				out = append(out, fact.GetSaveCommitted().GetSave().GetSave())
			}
		}
	}
	return strings.Join(out, " ")
}

func (f *fabric) locate(on *membus.Bus, subject, save string) (*weftv1.LocateReply, error) {
	f.t.Helper()
	q, err := proto.Marshal(weftv1.LocateRequest_builder{Job: new("j1"), Save: &save}.Build())
	if err != nil {
		f.t.Fatal(err)
	}
	r := on.Caller().Call(subject, q, 10*time.Second).Wait(f.t.Context())
	m := &weftv1.LocateReply{}
	if r.Err == nil && proto.Unmarshal(r.Data, m) != nil {
		f.t.Fatalf("answered %q", r.Data)
	}
	return m, r.Err
}

func wantEqual[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestService runs the whole of it: reports, damage, poison, questions on both buses, retention, a restart.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t)
		stop := f.start(true)
		a := f.save(10, false)
		wantEqual(t, "announced", f.announced(), a)
		bad := f.save(20, true)
		f.publish(bus.SubjectSave("n0"), []byte("\xff"))
		b := f.save(30, false)
		wantEqual(t, "announced, damaged ones not among them", f.announced(), a+" "+b)
		for _, q := range []struct {
			on      *membus.Bus
			subject string
		}{{f.core, bus.SubjectRPC("checkpoint", "locate")}, {f.nodes, bus.SubjectNodeRPC("checkpoint", "locate", "n1")}} {
			if l, err := f.locate(q.on, q.subject, b); err != nil || l.GetError() != "" || len(l.GetCopies()) != 2 {
				t.Errorf("%s: %v, %v", q.subject, l, err)
			}
			if l, err := f.locate(q.on, q.subject, bad); err != nil || !strings.Contains(l.GetError(), "quarantined: rank 0: state.bin: it has 5 bytes") {
				t.Errorf("%s, damaged: %v, %v", q.subject, l, err)
			}
		}
		stop()
		if _, err := f.locate(f.core, bus.SubjectRPC("checkpoint", "locate"), b); !errors.Is(err, bus.ErrNoAnswer) {
			t.Errorf("after its end: %v", err)
		}
		c := f.save(40, false) // nobody listens
		stop = f.start(true)
		wantEqual(t, "announced after a restart, each once", f.announced(), a+" "+b+" "+c)
		if l, err := f.locate(f.core, bus.SubjectRPC("checkpoint", "locate"), a); err != nil || !strings.Contains(l.GetError(), "deleted") {
			t.Errorf("the oldest of three: %v, %v", l, err)
		}
		if _, err := os.Stat(filepath.Join(f.root, savetest.Tenant, "j1", a)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its bytes: %v", err)
		}
		stop()
	})
}

// TestFailover: of two replicas one works; when it dies the other goes on.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric(t)
		stops := []func(){f.start(false), f.start(false)}
		time.Sleep(10 * time.Second) // on the virtual clock: until one has been elected
		a := f.save(10, false)
		wantEqual(t, "announced", f.announced(), a)
		for i, stop := range stops {
			stop()
			b := f.save(uint64(20+10*i), false)
			if i == len(stops)-1 {
				break
			}
			time.Sleep(20 * time.Second)
			a += " " + b
			wantEqual(t, "announced by whoever is left", f.announced(), a)
			if l, err := f.locate(f.core, bus.SubjectRPC("checkpoint", "locate"), b); err != nil || l.GetError() != "" {
				t.Errorf("located: %v, %v", l, err)
			}
		}
		wantEqual(t, "announced by nobody", f.announced(), a)
	})
}

func TestWrongConfig(t *testing.T) {
	for part, c := range map[string]Config{
		"no absolute path": {Dir: "saves"}, "must not be negative": {KeepFull: -1}, "keep_light -1": {KeepLight: -1},
	} {
		if _, err := New(c, Deps{}); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := New(DefaultConfig(), Deps{}); err == nil || !strings.Contains(err.Error(), "are needed") {
		t.Errorf("without anything: %v", err)
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

// TestLaterFacts: a log that a later version wrote stops this one by name, rather than let it decide on half of it.
func TestLaterFacts(t *testing.T) {
	c := weftv1.Commit_builder{Entries: []*weftv1.Entry{weftv1.Entry_builder{Kind: new("save_moved")}.Build()}}.Build()
	fold := fold()
	var u *ledger.UnknownKind
	if err := fold.Apply(fold.New(), c, 7); !errors.As(err, &u) || u.Kind != "save_moved" || u.Seq != 7 {
		t.Error(err)
	}
}

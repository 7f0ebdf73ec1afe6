package natsledger_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/testkit"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// clusterHarness is LEDGER on three replicas, made anew.
func clusterHarness(t testing.TB, c *testkit.BusCluster) ledgertest.Harness {
	c.Remake(t, bus.StreamLedger, "OBJ_"+bus.BucketSnapshots)
	servers := 0
	return ledgertest.Harness{
		Open: func(t testing.TB) ledger.Log { // each by another server
			servers++
			return open(t, c.Conn(t, bus.RoleCore, c.Servers()[servers%3]))
		},
		Force:     func(t testing.TB, data []byte) { force(t, c.Core, data) },
		Image:     func(t testing.TB) func() { return backup(t, c) },
		Trim:      func(t testing.TB, seq uint64) { trim(t, c.Core, seq) },
		Recreate:  func(t testing.TB) { c.Remake(t, bus.StreamLedger) },
		Snapshots: func(t testing.TB) ledger.Snapshots { return snapshots(t, c.Core) },
	}
}

// backup saves the ledger as `nats stream backup` does; restore puts it back as an operator would, who has nothing newer.
func backup(t testing.TB, c *testkit.BusCluster) (restore func()) {
	t.Helper()
	nc := c.Init(bus.AccountCore).NC()
	ask := func(subject string, body any) (r struct {
		Deliver string          `json:"deliver_subject"`
		Config  json.RawMessage `json:"config"`
		State   json.RawMessage `json:"state"`
		Error   json.RawMessage `json:"error"`
	}) {
		t.Helper()
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		m, err := nc.Request(subject, b, testkit.ClusterPatience)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(m.Data, &r); err != nil || r.Error != nil {
			t.Fatalf("%s: %s, %v", subject, m.Data, err)
		}
		return r
	}
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	saved := ask("$JS.API.STREAM.SNAPSHOT."+bus.StreamLedger, map[string]any{"deliver_subject": inbox, "no_consumers": true})
	var chunks [][]byte
	for {
		m, err := sub.NextMsg(testkit.ClusterPatience)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Data) == 0 {
			break
		}
		chunks = append(chunks, m.Data)
		if m.Reply != "" {
			if err := m.Respond(nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func() {
		t.Helper()
		if err := c.Init(bus.AccountCore).JS().DeleteStream(context.Background(), bus.StreamLedger); err != nil {
			t.Fatal(err)
		}
		to := ask("$JS.API.STREAM.RESTORE."+bus.StreamLedger, map[string]any{"config": saved.Config, "state": saved.State}).Deliver
		for _, chunk := range append(chunks, nil) { // an empty one ends it
			var m *nats.Msg
			testkit.Eventually(t, testkit.ClusterPatience, func() (err error) {
				// Nobody there: this server hasn't heard of the receiver yet, and nothing was sent.
				if m, err = nc.Request(to, chunk, testkit.ClusterPatience); err != nil && !errors.Is(err, nats.ErrNoResponders) {
					t.Fatal(err)
				}
				return err
			})
			if bytes.Contains(m.Data, []byte(`"error"`)) {
				t.Fatalf("restore: %s", m.Data)
			}
		}
		c.Apply(t) // waits until it has a leader
	}
}

// TestR3 is everything on three replicas. The parts wait for elections most of the time, so they run side by side.
func TestR3(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers and some elections")
	}
	for name, f := range map[string]func(t *testing.T, c *testkit.BusCluster){
		"Contract": func(t *testing.T, c *testkit.BusCluster) {
			ledgertest.Run(t, func(t testing.TB) ledgertest.Harness { return clusterHarness(t, c) })
		},
		"LeaderKilled": func(t *testing.T, c *testkit.BusCluster) {
			full(t, c.Init(bus.AccountCore), c.Core, 3)
			leaderKilled(t, c)
		},
		"OneDiskPutBack":  oneDiskPutBack,
		"AllDisksPutBack": allDisksPutBack,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, testkit.Cluster(t))
		})
	}
}

// replica is one process of a service, by a connection of its own to any server.
func replica(t testing.TB, c *testkit.BusCluster, name string) *ledgertest.Replica {
	t.Helper()
	return ledgertest.NewReplica(open(t, c.Conn(t, bus.RoleCore)), nil, name)
}

func commit(t testing.TB, r *ledgertest.Replica, note string) ledger.Position {
	t.Helper()
	var at ledger.Position
	testkit.Eventually(t, testkit.ClusterPatience, func() (err error) {
		at, err = r.Writer.Commit(t.Context(), time.Now(), []*weftv1.Entry{ledgertest.Note(note)}, nil)
		return err
	})
	return at
}

func lead(t testing.TB, r *ledgertest.Replica) {
	t.Helper()
	testkit.Eventually(t, testkit.ClusterPatience, func() error { return r.Writer.Lead(t.Context(), time.Now()) })
}

// wantFacts catches up and compares what was folded.
func wantFacts(t testing.TB, r *ledgertest.Replica, want ...string) {
	t.Helper()
	testkit.Eventually(t, testkit.ClusterPatience, func() error {
		_, err := r.Proj.CatchUp(t.Context(), time.Now())
		return err
	})
	r.Proj.View(func(s *ledgertest.State, at ledger.Position) {
		if !slices.Equal(s.Facts, want) {
			t.Fatalf("at %d the facts are %q, want %q", at.Seq, s.Facts, want)
		}
	})
}

// image copies what servers hold of the ledger and of the log of its replication, once all replicas are level. Restore
// puts the copy back under servers that are down.
func image(t testing.TB, c *testkit.BusCluster) (restore func(server string)) {
	t.Helper()
	type answer struct {
		Cluster struct {
			Group    string `json:"raft_group"`
			Replicas []struct {
				Current bool   `json:"current"`
				Lag     uint64 `json:"lag"`
			} `json:"replicas"`
		} `json:"cluster"`
	}
	var info answer
	testkit.Eventually(t, testkit.ClusterPatience, func() bool {
		info = answer{} // what is absent is zero, not what it was
		m, err := c.Init(bus.AccountCore).NC().Request("$JS.API.STREAM.INFO."+bus.StreamLedger, nil, 2*time.Second)
		if err != nil || json.Unmarshal(m.Data, &info) != nil || len(info.Cluster.Replicas) != 2 {
			return false
		}
		for _, r := range info.Cluster.Replicas {
			if !r.Current || r.Lag != 0 {
				return false
			}
		}
		return true
	})
	parts := []string{
		filepath.Join("jetstream", bus.AccountCore, "streams", bus.StreamLedger),
		filepath.Join("jetstream", "SYS", "_js_", info.Cluster.Group),
	}
	saved := t.TempDir()
	for _, s := range c.Servers() {
		for _, p := range parts {
			if err := os.CopyFS(filepath.Join(saved, s, p), os.DirFS(filepath.Join(c.Dir(t, s), p))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return func(server string) {
		for _, p := range parts {
			if err := os.RemoveAll(filepath.Join(c.Dir(t, server), p)); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS(filepath.Join(c.Dir(t, server), p), os.DirFS(filepath.Join(saved, server, p))); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// One replica that loses its tail costs nothing, not even if it led.
func oneDiskPutBack(t *testing.T, c *testkit.BusCluster) {
	a := replica(t, c, "a")
	lead(t, a)
	commit(t, a, "one")
	victim := c.Leader(t, bus.AccountCore, bus.StreamLedger)
	restore := image(t, c)
	commit(t, a, "two")
	commit(t, a, "three")
	c.Kill(t, victim)
	restore(victim)
	c.Start(t, victim)
	began := time.Now()
	commit(t, a, "four")
	t.Logf("commits went on after %v", time.Since(began))
	wantFacts(t, replica(t, c, "b"), "one", "two", "three", "four")
	if a.Proj.Lost() != nil || len(a.Breaks) != 0 {
		t.Fatalf("a lost disk of three: %v, %v", a.Proj.Lost(), a.Breaks)
	}
	// Even if that server leads again: it has learnt what it lost.
	c.MoveLeader(t, bus.AccountCore, bus.StreamLedger, victim)
	commit(t, a, "five")
	wantFacts(t, replica(t, c, "c"), "one", "two", "three", "four", "five")
}

// The server that leads the stream dies: the writer's append lands once, and a follower goes on behind it.
func leaderKilled(t *testing.T, c *testkit.BusCluster) {
	a, b := replica(t, c, "a"), replica(t, c, "b")
	lead(t, a)
	commit(t, a, "before")
	wantFacts(t, b, "before")
	victim := c.Leader(t, bus.AccountCore, bus.StreamLedger)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.ClusterPatience)
	defer cancel()
	read := make(chan error, 1)
	go func() { // by wakes alone
		for b.Proj.Position().Seq < 3 {
			did, _, err := b.Proj.Step(ctx, time.Now())
			if err != nil && !errors.Is(err, ledger.ErrUnavailable) {
				read <- err
				return
			}
			if did {
				continue
			}
			var retry <-chan time.Time
			if err != nil { // as the loop of a service does
				retry = time.After(100 * time.Millisecond)
			}
			select {
			case <-b.Proj.Wakes()[0]:
			case <-retry:
			case <-ctx.Done():
				read <- ctx.Err()
				return
			}
		}
		read <- nil
	}()
	c.Kill(t, victim)
	began := time.Now()
	at := commit(t, a, "after")
	wrote := time.Now()
	if err := <-read; err != nil {
		t.Fatalf("the follower: %v", err)
	}
	t.Logf("the append landed after %v, the follower had it %v later", wrote.Sub(began), time.Since(wrote))
	if at.Seq != 3 {
		t.Fatalf("the append landed at %d", at.Seq)
	}
	c.Start(t, victim)
	wantFacts(t, a, "before", "after")
	wantFacts(t, b, "before", "after")
}

// All disks are put back, as after a restore of the whole site: the end is lost. Nobody leads what is left until
// somebody adopts it; then readers rebuild, and the old leader's appends count for nothing.
func allDisksPutBack(t *testing.T, c *testkit.BusCluster) {
	a, b := replica(t, c, "a"), replica(t, c, "b")
	lead(t, a)
	commit(t, a, "kept")
	restore := image(t, c)
	commit(t, a, "lost1")
	lost := commit(t, a, "lost2")
	wantFacts(t, b, "kept", "lost1", "lost2")
	for _, s := range c.Servers() {
		c.Kill(t, s)
	}
	for _, s := range c.Servers() {
		restore(s)
		c.Start(t, s)
	}
	var loss *ledger.Loss
	testkit.Eventually(t, testkit.ClusterPatience, func() error {
		err := b.Writer.Lead(t.Context(), time.Now())
		if err == nil {
			t.Fatal("b leads a ledger that lost what b had read")
		}
		if errors.As(err, &loss) {
			return nil
		}
		return err
	})
	if loss.Had.Seq != lost.Seq || loss.Tail.Last != 2 {
		t.Fatalf("the loss is %+v", loss)
	}
	wantFacts(t, b, "kept")
	if got, err := b.Writer.Adopt(t.Context(), time.Now()); err != nil || got == nil || got.Had.Seq != lost.Seq {
		t.Fatalf("adopt: %+v, %v", got, err)
	}
	commit(t, b, "new")
	// a still believes to lead: whatever becomes of its append, it counts for nothing.
	if !a.Writer.Leading() {
		t.Fatal("a knows already")
	}
	if _, err := a.Writer.Commit(t.Context(), time.Now(), []*weftv1.Entry{ledgertest.Note("zombie")}, nil); err != nil {
		t.Logf("the zombie was stopped by itself: %v", err)
	}
	wantFacts(t, b, "kept", "new")
	wantFacts(t, replica(t, c, "c"), "kept", "new")
	wantFacts(t, a, "kept", "new")
	if a.Writer.Leading() {
		t.Fatal("a leads on")
	}
	lead(t, b)
	commit(t, b, "on")
	wantFacts(t, a, "kept", "new", "on")
}

// full fills a ledger whose storage is bounded: the writer learns why it can't go on, leads on, and what is stored stays.
func full(t *testing.T, admin, core *bus.Conn, replicas int) {
	_, err := admin.JS().CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "TINY", Subjects: []string{"weft.tiny"}, MaxBytes: 64 << 10, Discard: jetstream.DiscardNew, Replicas: replicas,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.JS().DeleteStream(context.Background(), "TINY"); err != nil {
			t.Error(err)
		}
	})
	openTiny := func(name string) *ledgertest.Replica {
		l, err := natsledger.Open(t.Context(), core, "TINY")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		return ledgertest.NewReplica(l, nil, name)
	}
	a := openTiny("a")
	lead(t, a)
	big := strings.Repeat("x", 10<<10)
	var notes []string
	for err = nil; err == nil; {
		if len(notes) > 10 {
			t.Fatal("never full")
		}
		if _, err = a.Writer.Commit(t.Context(), time.Now(), []*weftv1.Entry{ledgertest.Note(big)}, nil); err == nil {
			notes = append(notes, big)
		}
	}
	if !errors.Is(err, ledger.ErrFull) || errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("a commit to a full ledger: %v", err)
	}
	if !a.Writer.Leading() {
		t.Fatal("a full ledger cost the leadership")
	}
	commit(t, a, "small") // there is room for it
	wantFacts(t, openTiny("b"), append(notes, "small")...)
}

func TestFull(t *testing.T) {
	d := newDisk(t)
	full(t, d.conn(t, bus.RoleCoreInit), d.conn(t, bus.RoleCore), 1)
}

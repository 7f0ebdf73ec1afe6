package natsledger_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/ledgertest"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	"github.com/weft-fabric/weft/libs/testkit"
)

// disk is an embedded server that can be stopped and started again on another content of its directory.
type disk struct {
	dir  string
	port int
	srv  *bus.Embedded

	conns []*bus.Conn
}

func newDisk(t testing.TB) *disk {
	t.Helper()
	d := &disk{dir: filepath.Join(t.TempDir(), "bus")}
	d.start(t)
	t.Cleanup(func() { d.srv.Shutdown() })
	d.apply(t)
	return d
}

func (d *disk) start(t testing.TB) {
	t.Helper()
	srv, err := bus.StartServer(bus.ServerConfig{Dir: d.dir, Port: d.port})
	if err != nil {
		t.Fatal(err)
	}
	d.srv = srv
	url := srv.URL()
	if d.port, err = strconv.Atoi(url[strings.LastIndexByte(url, ':')+1:]); err != nil {
		t.Fatal(err)
	}
}

// conn connects by TCP, so that it survives a restart of the server.
func (d *disk) conn(t testing.TB, r bus.Role) *bus.Conn {
	t.Helper()
	user, password, err := d.srv.Credentials(r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := bus.Dial(t.Context(), bus.Options{URL: d.srv.URL(), User: user, Password: password, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	d.conns = append(d.conns, c)
	return c
}

// reconnected waits until every connection is back.
func (d *disk) reconnected(t testing.TB) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func() bool {
		return !slices.ContainsFunc(d.conns, func(c *bus.Conn) bool { return !c.NC().IsConnected() })
	})
}

func (d *disk) apply(t testing.TB) {
	t.Helper()
	if err := bus.Apply(t.Context(), d.conn(t, bus.RoleCoreInit), d.conn(t, bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
}

// image copies the stream's directory; restore puts the copy back under a stopped server. Snapshots live elsewhere.
func (d *disk) image(t testing.TB) (restore func()) {
	t.Helper()
	store := filepath.Join(d.dir, "jetstream", bus.AccountCore, "streams", bus.StreamLedger)
	backup := filepath.Join(t.TempDir(), "image")
	if err := os.CopyFS(backup, os.DirFS(store)); err != nil {
		t.Fatal(err)
	}
	return func() {
		d.srv.Shutdown()
		if err := os.RemoveAll(store); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(store, os.DirFS(backup)); err != nil {
			t.Fatal(err)
		}
		d.start(t)
		d.reconnected(t)
	}
}

func open(t testing.TB, c *bus.Conn) *natsledger.Log {
	t.Helper()
	l, err := natsledger.Open(t.Context(), c, bus.StreamLedger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func harness(t testing.TB) ledgertest.Harness {
	d := newDisk(t)
	core := d.conn(t, bus.RoleCore)
	return ledgertest.Harness{
		Open:  func(t testing.TB) ledger.Log { return open(t, d.conn(t, bus.RoleCore)) },
		Force: func(t testing.TB, data []byte) { force(t, core, data) },
		Image: d.image,
		Trim:  func(t testing.TB, seq uint64) { trim(t, core, seq) },
		Recreate: func(t testing.TB) {
			if err := d.conn(t, bus.RoleCoreInit).JS().DeleteStream(t.Context(), bus.StreamLedger); err != nil {
				t.Fatal(err)
			}
			d.apply(t)
		},
		Snapshots: func(t testing.TB) ledger.Snapshots { return snapshots(t, core) },
	}
}

func force(t testing.TB, c *bus.Conn, data []byte) {
	t.Helper()
	if _, err := c.JS().Publish(t.Context(), bus.SubjectLedger, data); err != nil {
		t.Fatal(err)
	}
}

func trim(t testing.TB, c *bus.Conn, seq uint64) {
	t.Helper()
	s, err := c.JS().Stream(t.Context(), bus.StreamLedger)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSequence(seq)); err != nil {
		t.Fatal(err)
	}
}

func snapshots(t testing.TB, c *bus.Conn) ledger.Snapshots {
	t.Helper()
	s, err := natsledger.OpenSnapshots(t.Context(), c, bus.StreamLedger)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestContract(t *testing.T) { ledgertest.Run(t, harness) }

// TestServerRestart: an append that meets a stopped server succeeds once it is back, stored once; a follower goes on.
func TestServerRestart(t *testing.T) {
	d := newDisk(t)
	l, reader := open(t, d.conn(t, bus.RoleCore)), open(t, d.conn(t, bus.RoleCore))
	a := ledgertest.NewReplica(l, nil, "a")
	b := ledgertest.NewReplica(reader, nil, "b")
	ctx, now := t.Context(), time.Now()
	if err := a.Writer.Lead(ctx, now); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Proj.CatchUp(ctx, now); err != nil {
		t.Fatal(err)
	}
	d.srv.Shutdown()
	done := make(chan error, 1)
	go func() {
		_, err := a.Writer.Commit(ctx, now, nil, nil)
		done <- err
	}()
	d.start(t)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	d.reconnected(t)
	wait, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if _, err := b.Proj.CatchUp(wait, now); err != nil {
		t.Fatal(err)
	}
	if at := b.Proj.Position(); at.Seq != 2 {
		t.Fatalf("reader at %d, want 2", at.Seq)
	}
}

func BenchmarkCommit(b *testing.B) {
	d := newDisk(b)
	a := ledgertest.NewReplica(open(b, d.conn(b, bus.RoleCore)), nil, "a")
	if err := a.Writer.Lead(b.Context(), time.Now()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := a.Writer.Commit(b.Context(), time.Now(), nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}

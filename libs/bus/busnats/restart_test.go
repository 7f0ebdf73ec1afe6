package busnats_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/bus/bustest"
	"github.com/weft-fabric/weft/libs/testkit"
)

func TestCallIsFast(t *testing.T) {
	b := testkit.Bus(t)
	s, err := busnats.NewCaller(b.Core).Serve("weft.rpc.allocator.plan", "allocator")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	defer func() { s.Close(); close(done) }()
	go func() {
		for {
			select {
			case <-done:
				return
			case <-s.Wake():
				for _, r := range s.Next(100) {
					r.Respond(r.Data, nil)
				}
			}
		}
	}()
	c := busnats.NewCaller(b.Conn(t, bus.RoleCore))
	var took []time.Duration
	for range 300 {
		began := time.Now()
		if r := c.Call("weft.rpc.allocator.plan", []byte("x"), bustest.Patience).Wait(t.Context()); r.Err != nil {
			t.Fatal(r.Err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("call and answer: p50 %v, p99 %v", took[150], took[297])
	if took[150] > 5*time.Millisecond {
		t.Errorf("p50 %v", took[150])
	}
}

// A writer over TCP goes on over restarts of the server: each message is stored once, whatever became of its
// acknowledgement, and a reader sees them all.
func TestAppendAndReadOverRestarts(t *testing.T) {
	dir := t.TempDir()
	srv, err := bus.StartServer(bus.ServerConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { srv.Shutdown() }()
	u, _ := url.Parse(srv.URL())
	port, _ := strconv.Atoi(u.Port())
	dial := func(r bus.Role) *bus.Conn {
		user, pw, err := srv.Credentials(r)
		if err != nil {
			t.Fatal(err)
		}
		c, err := bus.Dial(t.Context(), bus.Options{URL: srv.URL(), User: user, Password: pw})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	if err := bus.Apply(t.Context(), dial(bus.RoleCoreInit), dial(bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	// LEDGER, as everything acknowledged there is on disk.
	out := busnats.NewOutbox(dial(bus.RoleCore), bus.StreamLedger)
	const n = 1500
	wrote := make(chan error, 1)
	third := make(chan struct{}, 2)
	go func() {
		deadline := time.Now().Add(2 * bustest.Patience)
		for i := uint64(0); i < n; {
			_, err := out.Append(t.Context(), i, bus.Message{Subject: bus.SubjectLedger, Data: fmt.Append(nil, i)})
			switch {
			case err == nil:
				if i++; i == n/3 || i == 2*n/3 {
					third <- struct{}{}
				}
			case !errors.Is(err, bus.ErrUnavailable) || time.Now().After(deadline):
				wrote <- fmt.Errorf("append %d: %w", i, err)
				return
			}
		}
		wrote <- nil
	}()
	in := busnats.NewInbox(t.Context(), dial(bus.RoleCore), bus.StreamLedger, "")
	in.Seek(0)
	for range 2 {
		<-third
		srv.Shutdown()
		if srv, err = bus.StartServer(bus.ServerConfig{Dir: dir, Port: port}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	var got uint64
	testkit.Eventually(t, bustest.Patience, func() bool {
		msgs, err := in.Next(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range msgs {
			if got++; m.Seq != got || string(m.Data) != fmt.Sprint(got-1) {
				t.Fatalf("message %d: %d %s", got, m.Seq, m.Data)
			}
		}
		return got == n
	})
}

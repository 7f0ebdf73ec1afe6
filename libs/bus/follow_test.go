package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/testkit"
)

// reader follows a stream in the background and keeps what it got.
type reader struct {
	mu   sync.Mutex
	msgs []*bus.Msg
	at   []time.Time
	end  chan error
}

func follow(t *testing.T, c *bus.Conn, stream, filter string, from uint64) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{end: make(chan error, 1)}
	go func() { r.end <- bus.Follow(ctx, c, stream, filter, from, r.take) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-r.end:
		case <-time.After(patience):
			t.Error("Follow did not end with its context")
		}
	})
	return r
}

func (r *reader) take(m []*bus.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.msgs = append(r.msgs, m...)
	for range m {
		r.at = append(r.at, time.Now())
	}
}

func (r *reader) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.msgs)
}

// wait until n messages came, 1..n in order.
func (r *reader) wait(t *testing.T, n int) {
	t.Helper()
	testkit.Eventually(t, patience, func() bool { return r.len() >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.msgs) != n {
		t.Fatalf("%d messages, want %d", len(r.msgs), n)
	}
	for i, m := range r.msgs {
		if m.Seq != uint64(i+1) {
			t.Fatalf("message %d has sequence %d", i, m.Seq)
		}
	}
}

func put(t *testing.T, c *bus.Conn, subject string, data []byte) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		_, err := c.JS().Publish(t.Context(), subject, data)
		return err
	})
}

func TestFollowDeliversAtOnce(t *testing.T) {
	b := testkit.Bus(t)
	r := follow(t, b.Core, bus.StreamEvents, "", 1)
	subject := bus.SubjectEvent("acme", "x")
	put(t, b.Core, subject, nil)
	r.wait(t, 1)
	var took []time.Duration
	for i := range 200 {
		put(t, b.Core, subject, []byte("x"))
		acked := time.Now()
		r.wait(t, i+2)
		r.mu.Lock()
		took = append(took, r.at[i+1].Sub(acked))
		r.mu.Unlock()
	}
	slices.Sort(took)
	t.Logf("delivered after the acknowledgement: p50 %v, p99 %v", took[100], took[198])
	if took[100] > 5*time.Millisecond {
		t.Errorf("p50 %v", took[100])
	}
}

func TestFollowLargeBacklogs(t *testing.T) {
	b := testkit.Bus(t)
	subject := bus.SubjectEvent("acme", "x")
	const small, large = 3000, 24
	for range small {
		if _, err := b.Core.JS().PublishAsync(subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	<-b.Core.JS().PublishAsyncComplete()
	for range large { // more than one request's bytes
		put(t, b.Core, subject, make([]byte, 900<<10))
	}
	r := follow(t, b.Core, bus.StreamEvents, "", 1)
	r.wait(t, small+large)
	if p := r.msgs[small+large-1].Pending; p != 0 {
		t.Errorf("at the tail, pending %d", p)
	}
	if p := r.msgs[0].Pending; p == 0 {
		t.Error("at the start, nothing pending")
	}
	filtered := follow(t, b.Core, bus.StreamEvents, bus.SubjectEvent("beta", "y"), 5)
	put(t, b.Core, bus.SubjectEvent("beta", "y"), nil)
	testkit.Eventually(t, patience, func() bool { return filtered.len() == 1 })
	if filtered.msgs[0].Seq != small+large+1 {
		t.Fatalf("filter: %+v", filtered.msgs[0])
	}
}

func TestFollowWaitsForItsSink(t *testing.T) {
	b := testkit.Bus(t)
	subject := bus.SubjectEvent("acme", "x")
	open := make(chan struct{})
	var r reader
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var once sync.Once
	inside := make(chan struct{})
	go func() {
		r.end = nil
		_ = bus.Follow(ctx, b.Core, bus.StreamEvents, "", 1, func(m []*bus.Msg) {
			once.Do(func() { close(inside) })
			<-open
			r.take(m)
		})
	}()
	put(t, b.Core, subject, nil)
	<-inside
	const n = 4000
	for range n - 1 {
		if _, err := b.Core.JS().PublishAsync(subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	<-b.Core.JS().PublishAsyncComplete()
	close(open)
	r.wait(t, n)
}

func TestFollowSurvivesTheLossOfItsConsumer(t *testing.T) {
	b := testkit.Bus(t)
	subject := bus.SubjectEvent("acme", "x")
	r := follow(t, b.Core, bus.StreamEvents, "", 1)
	for i := range 5 {
		put(t, b.Core, subject, nil)
		r.wait(t, i+1)
		s, err := b.Core.JS().Stream(t.Context(), bus.StreamEvents)
		if err != nil {
			t.Fatal(err)
		}
		for name := range s.ConsumerNames(t.Context()).Name() {
			if err := s.DeleteConsumer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestFollowSurvivesARestartOfTheServer(t *testing.T) {
	dir := t.TempDir()
	srv, err := bus.StartServer(bus.ServerConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	port, _ := strconv.Atoi(u.Port())
	dial := func(r bus.Role) *bus.Conn { // over TCP, as a service of another process
		user, pw, err := srv.Credentials(r)
		if err != nil {
			t.Fatal(err)
		}
		c, err := bus.Dial(t.Context(), bus.Options{URL: srv.URL(), User: user, Password: pw, Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	if err := bus.Apply(t.Context(), dial(bus.RoleCoreInit), dial(bus.RoleNodesInit), bus.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	core := dial(bus.RoleCore)
	r := follow(t, core, bus.StreamLedger, "", 1)
	const rounds = 3
	for round := range rounds {
		for i := range 10 {
			put(t, core, bus.SubjectLedger, fmt.Append(nil, round, i))
		}
		r.wait(t, 10*round+10)
		srv.Shutdown()
		began := time.Now()
		if _, err := busnats.NewOutbox(core, bus.StreamLedger).Publish(t.Context(), bus.Message{Subject: bus.SubjectLedger}); !errors.Is(err, bus.ErrUnavailable) {
			t.Fatalf("published without a server: %v", err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v to learn that the server is gone", took)
		}
		if srv, err = bus.StartServer(bus.ServerConfig{Dir: dir, Port: port}); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { srv.Shutdown() }()
	put(t, core, bus.SubjectLedger, []byte("last"))
	back := time.Now()
	r.wait(t, 10*rounds+1)
	t.Logf("resumed %v after writes did", r.at[len(r.at)-1].Sub(back))
	if took := r.at[len(r.at)-1].Sub(back); took > 5*time.Second {
		t.Errorf("resumed only %v after writes did", took)
	}
}

func TestFollowSaysThatTheStreamWasRewound(t *testing.T) {
	b := testkit.Bus(t)
	put(t, b.Core, bus.SubjectEvent("acme", "x"), nil)
	r := follow(t, b.Core, bus.StreamEvents, "", 3) // had read 2, there is only 1
	err := <-r.end
	r.end <- err
	if !errors.Is(err, bus.ErrRewound) {
		t.Fatal(err)
	}
	next := follow(t, b.Core, bus.StreamEvents, "", 2) // the next one is no rewind
	put(t, b.Core, bus.SubjectEvent("acme", "x"), nil)
	testkit.Eventually(t, patience, func() bool { return next.len() == 1 })
}

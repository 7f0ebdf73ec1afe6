package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// cluster starts three servers with the fabric's accounts, as an operator would.
func cluster(t *testing.T) []*server.Server {
	t.Helper()
	conf, err := AccountsConf([]Role{RoleCoreInit, RoleNodesInit, RoleCore, RoleNodes}, func(Role) string { return "pw" })
	if err != nil {
		t.Fatal(err)
	}
	ports := make([]string, 3)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, ports[i], _ = net.SplitHostPort(l.Addr().String())
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	routes := "nats://127.0.0.1:" + strings.Join(ports, ", nats://127.0.0.1:")
	var all []*server.Server
	for i, p := range ports {
		opts := &server.Options{}
		err := opts.ProcessConfigString(conf + fmt.Sprintf(
			"server_name: s%d\nhost: 127.0.0.1\nport: -1\ncluster {name: c, host: 127.0.0.1, port: %s, routes: [%s]}\n"+
				"jetstream {store_dir: %q, sync_interval: always, max_memory_store: %d, max_file_store: %d}\n",
			i, p, routes, t.TempDir(), 3*memoryBytes, storeBytes))
		if err != nil {
			t.Fatal(err)
		}
		opts.NoSigs, opts.NoLog = true, true
		s, err := server.NewServer(opts)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(s.Shutdown)
		all = append(all, s)
	}
	await(t, "a cluster", func() error {
		for _, s := range all {
			if !s.JetStreamIsCurrent() || !slices.ContainsFunc(all, (*server.Server).JetStreamIsLeader) || s.NumRoutes() == 0 {
				return errors.New("not yet")
			}
		}
		return nil
	})
	return all
}

func await(t *testing.T, what string, f func() error) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		err := f()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > 60*time.Second {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// On three replicas: the declarations are accepted, one server may die at any time without a follower going blind, and
// the stream is alive at the end.
func TestFollowSurvivesTheDeathOfAServerOfThree(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers and an election")
	}
	servers := cluster(t)
	urls := make([]string, 3)
	for i, s := range servers {
		urls[i] = s.ClientURL()
	}
	dial := func(r Role, urls ...string) *Conn {
		c, err := Dial(t.Context(), Options{URL: strings.Join(urls, ","), User: string(r), Password: "pw"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	coreInit, nodesInit := dial(RoleCoreInit, urls...), dial(RoleNodesInit, urls...)
	await(t, "streams", func() error { return Apply(t.Context(), coreInit, nodesInit, ApplyOptions{Replicas: 3}) })
	if err := Verify(t.Context(), coreInit, nodesInit); err != nil {
		t.Fatal(err)
	}

	writer, reader := dial(RoleCore, urls...), dial(RoleCore, urls...)
	var mu sync.Mutex
	var got []uint64
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Follow(ctx, reader, StreamLedger, "", 1, func(m []*Msg) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range m {
				got = append(got, m.Seq)
			}
		})
	}()
	write := func(n uint64) { // sequence n, by compare-and-append over whatever happens
		await(t, "a write", func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			_, err := writer.JS().Publish(ctx, SubjectLedger, []byte("c"), jetstream.WithExpectLastSequence(n-1))
			if api := (*jetstream.APIError)(nil); errors.As(err, &api) && api.ErrorCode == 10071 {
				if s, err := writer.JS().Stream(ctx, StreamLedger); err == nil && s.CachedInfo().State.LastSeq == n {
					return nil // stored, the acknowledgement was lost
				}
			}
			return err
		})
	}
	read := func(n uint64) time.Duration {
		return await(t, "a read", func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(got) < int(n) {
				return fmt.Errorf("read %d of %d", len(got), n)
			}
			return nil
		})
	}
	for n := uint64(1); n <= 20; n++ {
		write(n)
	}
	read(20)
	// The worst server to lose: the one that holds the follower's consumer.
	victim := consumerServer(t, coreInit)
	for _, s := range servers {
		if s.Name() == victim {
			s.Shutdown()
			s.WaitForShutdown()
		}
	}
	began := time.Now()
	write(21)
	t.Logf("writes came back after %v", time.Since(began))
	late := read(21)
	t.Logf("the follower resumed %v after writes did", late)
	if late > 5*time.Second {
		t.Errorf("the follower was blind for %v after writes came back", late)
	}
	for n := uint64(22); n <= 40; n++ {
		write(n)
	}
	read(40)
	cancel()
	<-ended
	for i, s := range got {
		if s != uint64(i+1) {
			t.Fatalf("read %v", got)
		}
	}
}

func consumerServer(t *testing.T, c *Conn) (name string) {
	t.Helper()
	await(t, "the consumer's server", func() error {
		s, err := c.JS().Stream(t.Context(), StreamLedger)
		if err != nil {
			return err
		}
		for info := range s.ListConsumers(t.Context()).Info() {
			if info.Cluster != nil && info.Cluster.Leader != "" {
				name = info.Cluster.Leader
				return nil
			}
		}
		return errors.New("no consumer")
	})
	return name
}

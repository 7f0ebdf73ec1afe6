package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var leaderFaults = flag.Int("chaos.faults", 3, "faults of TestChaosLeader")

// pausedFor is longer than any patience that a replica has with another.
const pausedFor = 20 * time.Second

// replicated is a fabric of separate processes: three servers of the bus, two schedulers, two checkpoint services.
type replicated struct {
	*fabric
	buses  []*process
	apart  map[string]*process
	links  map[string][]*link // of each scheduler, one to each server
	moved  []time.Duration    // fault of the leader → another leads
	counts map[string]int
}

// The leader dies, stops for a while, or loses its links; servers of the bus die. Whoever leads next takes over what is,
// and the one before does no harm when it comes back.
func TestChaosLeader(t *testing.T) {
	r := startReplicated(t)
	c, rnd := newChaos(r.fabric)
	var submitting sync.WaitGroup
	submitting.Go(c.submitJobs)

	faults := []struct {
		name string
		do   func(leader string)
	}{
		{"the leader is killed", r.killLeader},
		{"a server of the bus is killed", func(string) { r.killBus(rnd.IntN(3)) }},
		{"the leader's links are held up", r.holdLeader},
		{"the leader stops for 20 s", r.stopLeader},
		{"a checkpoint service is killed", func(string) { r.killAndStart(r.apart["checkpoint-"+[]string{"a", "b"}[rnd.IntN(2)]]) }},
		{"the leader's links are cut", r.cutLeader},
		{"a checkpoint service stops for 20 s", func(string) {
			r.stopFor(r.apart["checkpoint-"+[]string{"a", "b"}[rnd.IntN(2)]], nil)
		}},
	}
	for i := range *leaderFaults {
		f := faults[i%len(faults)]
		f.do(r.leader())
		r.counts[f.name]++
	}
	close(c.stop)
	submitting.Wait()
	for id := range c.acked {
		r.phase(id, "succeeded", "failed", "cancelled")
	}
	for _, f := range faults {
		t.Logf("%s: %d times", f.name, r.counts[f.name])
	}
	slices.Sort(r.moved)
	if n := len(r.moved); n > 0 {
		t.Logf("%d fail-overs: median %v, longest %v", n, r.moved[n/2], r.moved[n-1])
	}
	t.Logf("%d jobs", len(c.acked))
	c.verdict(t)
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func startReplicated(t *testing.T) *replicated {
	t.Helper()
	if said, err := services(); err != nil {
		t.Fatalf("build: %v\n%s", err, said)
	}
	f := &fabric{t: t, dir: t.TempDir()}
	f.log = filepath.Join(f.dir, "fabric.log")
	r := &replicated{fabric: f, apart: map[string]*process{}, links: map[string][]*link{}, counts: map[string]int{}}
	t.Cleanup(func() {
		if b, _ := os.ReadFile(f.log); t.Failed() {
			t.Logf("the fabric's log:\n%s", b[max(0, len(b)-20000):])
		}
	})
	add := func(key, name string, args ...string) *process {
		p := &process{f: f, name: name, args: args}
		r.apart[key] = p
		p.start()
		t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.done })
		return p
	}

	var clients, routes []string
	for range 3 {
		clients, routes = append(clients, freeAddr(t)), append(routes, freeAddr(t))
	}
	var users []byte
	for i, name := range []string{"a", "b", "c"} {
		data := filepath.Join(f.dir, "bus-"+name)
		file := filepath.Join(data, "bus", "bus-users.json")
		if i > 0 { // as an operator copies it
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, users, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		args := []string{"bus", "serve", "--data", data, "--listen", clients[i], "--node", "dev-0", "--server", name, "--cluster", routes[i]}
		for _, to := range routes {
			args = append(args, "--route", to)
		}
		r.buses = append(r.buses, add("bus-"+name, "weft", args...))
		if i == 0 {
			f.eventually("the file of users is there", func() (err error) {
				users, err = os.ReadFile(file)
				return err
			})
		}
	}
	for _, b := range r.buses {
		select {
		case <-b.said:
		case <-time.After(patience):
			t.Fatal("the servers of the bus do not find each other")
		}
	}

	credentials := filepath.Join(f.dir, "bus-a", "bus", "bus-users.json")
	urls := func(addrs []string) string { return "nats://" + strings.Join(addrs, ",nats://") }
	shared := func(at string, more ...string) []string {
		return append([]string{"--nats", at, "--data", f.data(), "--credentials", credentials}, more...)
	}
	saves := filepath.Join(f.data(), "saves")
	if err := os.MkdirAll(saves, 0o755); err != nil {
		t.Fatal(err)
	}
	direct := urls(clients)
	for _, name := range []string{"a", "b"} {
		var via []string
		for _, to := range clients {
			l := newLink(t, to)
			r.links[name] = append(r.links[name], l)
			via = append(via, l.addr())
		}
		add(name, "weft-scheduler", shared(urls(via), "--replica", name)...)
		add("checkpoint-"+name, "weft-checkpoint", shared(direct, "--saves-dir", saves)...)
		add("allocator-"+name, "weft-allocator", shared(direct)...)
	}
	add("agent", "weft-agent", shared(direct, "--node", "dev-0", "--simulate", "a100-80gx16", "--saves-dir", saves, "--saves-shared", "--port-base", "24600", "--port-count", "500")...)
	add("gateway", "weft-gateway", shared(direct, "--grpc", "127.0.0.1:0", "--rest", "127.0.0.1:0")...)
	f.door()
	f.eventually("queues are applied", func() error {
		return exitZero(f.weft("queues: [{name: default}, {name: demo}]\n", "queues", "apply", "-"))
	})
	return r
}

// leader names the scheduler that leads, as the gateway sees it.
func (r *replicated) leader() string {
	r.t.Helper()
	var v struct{ Leader string }
	r.eventually("somebody leads", func() error {
		if err := json.Unmarshal([]byte(r.weft("", "version", "-o", "json").stdout), &v); err != nil {
			return err
		}
		if v.Leader == "" {
			return fmt.Errorf("nobody")
		}
		return nil
	})
	return v.Leader
}

// awaitOther waits until another one leads, and notes how long that took.
func (r *replicated) awaitOther(before string) {
	r.t.Helper()
	began := time.Now()
	r.eventually("another scheduler leads", func() error {
		if l := r.leader(); l == before {
			return fmt.Errorf("%s still leads", l)
		}
		return nil
	})
	r.moved = append(r.moved, time.Since(began))
}

func (r *replicated) killAndStart(p *process) {
	p.kill()
	p.start()
	r.alive(p)
}

// alive starts a process again until it stays: a service ends if it finds no bus, and is started again by whoever
// keeps services running.
func (r *replicated) alive(p *process) {
	r.t.Helper()
	up := time.Now()
	r.eventually(p.name+" stays up", func() error {
		select {
		case <-p.done:
			p.start()
			up = time.Now()
		default:
		}
		if time.Since(up) < 500*time.Millisecond {
			return fmt.Errorf("it was started %v ago", time.Since(up))
		}
		return nil
	})
}

func (r *replicated) killLeader(leader string) {
	r.apart[leader].kill()
	r.awaitOther(leader)
	r.apart[leader].start()
	r.alive(r.apart[leader])
}

// stopFor stops a process, as a machine that swaps does, and lets it go on where it stood.
func (r *replicated) stopFor(p *process, meanwhile func()) {
	_ = p.cmd.Process.Signal(syscall.SIGSTOP)
	over := time.After(pausedFor)
	if meanwhile != nil {
		meanwhile()
	}
	<-over
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
}

func (r *replicated) stopLeader(leader string) {
	r.stopFor(r.apart[leader], func() { r.awaitOther(leader) })
}

func (r *replicated) killBus(i int) {
	r.t.Helper()
	b := r.buses[i]
	b.kill()
	r.leader()
	b.start()
	select {
	case <-b.said:
	case <-b.done:
		r.t.Fatal("the server of the bus ended")
	case <-time.After(patience):
		r.t.Fatal("the server of the bus does not find the others again")
	}
}

func (r *replicated) cutLeader(leader string) {
	for _, l := range r.links[leader] {
		l.cut()
	}
	r.awaitOther(leader)
	for _, l := range r.links[leader] {
		l.heal()
	}
	r.alive(r.apart[leader])
}

func (r *replicated) holdLeader(leader string) {
	for _, l := range r.links[leader] {
		l.hold()
	}
	r.awaitOther(leader)
	for _, l := range r.links[leader] {
		l.heal()
	}
}

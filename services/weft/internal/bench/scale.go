package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	apiv1 "github.com/weft-fabric/weft/proto/gen/weft/api/v1"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/weft/allinone"
)

// Size of a cell under test.
type Size struct{ Jobs, Nodes int }

// Reader is what Scale asks the fabric.
type Reader interface {
	apiv1.JobServiceClient
	apiv1.CellServiceClient
}

// bars of Scale.
const (
	readWithin = 200 * time.Millisecond
	memoryBar  = 3 << 30
	reads      = 50
)

// Scale measures what people wait for on a large cell: nodes that are all in use, and a long queue. The jobs and nodes
// are committed to the ledger before the fabric starts; it then places what fits by itself. connect opens a client.
func Scale(ctx context.Context, w io.Writer, size Size, connect func(*allinone.Fabric) (Reader, func(), error), judge bool) error {
	dir, err := os.MkdirTemp("", "weft-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cfg := allinone.DefaultConfig()
	cfg.Dir, cfg.Simulate, cfg.Profile = dir, 1, "l4x1" // of its own it can run none of the jobs
	cfg.GRPC, cfg.REST, cfg.Metrics, cfg.NATS = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	for i := range size.Nodes {
		cfg.Guests = append(cfg.Guests, fmt.Sprintf("node-%04d", i))
	}
	last, err := fill(ctx, cfg, size)
	if err != nil {
		return fmt.Errorf("fill the ledger: %w", err)
	}
	begin := time.Now()
	fab, err := allinone.Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = fab.Stop() }()
	started := time.Since(begin)
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	defer func() { stop(); beats.Wait() }()
	for i, n := range cfg.Guests {
		conn, err := fab.Guest(ctx, n)
		if err != nil {
			return err
		}
		beats.Go(func() {
			defer conn.Close()
			beat(beating, conn, n, time.Duration(i)*beatEvery/time.Duration(size.Nodes))
		})
	}
	c, done, err := connect(fab)
	if err != nil {
		return err
	}
	defer done()
	if err := untilFull(ctx, c, size); err != nil {
		return err
	}
	full := time.Since(begin)

	failed := false
	for _, m := range []struct {
		name string
		call func() error
	}{
		{"ps_first_page_p95", func() error {
			r, err := c.ListJobs(ctx, apiv1.ListJobsRequest_builder{Queue: new("default"), Phase: new("queued")}.Build())
			if err == nil && len(r.GetJobs()) != 500 {
				err = fmt.Errorf("a page of %d jobs", len(r.GetJobs()))
			}
			return err
		}},
		{"explain_p95", func() error {
			_, err := c.ExplainJob(ctx, apiv1.ExplainJobRequest_builder{Job: &last}.Build())
			return err
		}},
		{"nodes_p95", func() error {
			r, err := c.ListNodes(ctx, &apiv1.ListNodesRequest{})
			if err == nil && len(r.GetNodes()) != size.Nodes+1 {
				err = fmt.Errorf("%d nodes", len(r.GetNodes()))
			}
			return err
		}},
	} {
		var took []time.Duration
		for range reads {
			begin := time.Now()
			if err := m.call(); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
			took = append(took, time.Since(begin))
		}
		p95 := quantile(took, 0.95)
		failed = failed || p95 > readWithin
		f := Figure{Name: m.name, Ours: ms(p95), Unit: "ms", Bar: "<= 200 ms", Pass: p95 <= readWithin,
			Note: fmt.Sprintf("%d jobs, %d nodes, %d calls; median %.1f ms", size.Jobs, size.Nodes, reads, ms(quantile(took, 0.5)))}
		if err := f.Print(w); err != nil {
			return err
		}
	}
	rss, err := residentBytes()
	if err != nil {
		return err
	}
	failed = failed || rss > memoryBar
	for _, f := range []Figure{
		{Name: "resident_memory", Ours: float64(rss) / (1 << 20), Unit: "MiB", Bar: "<= 3072 MiB", Pass: rss <= memoryBar,
			Note: "the whole fabric, the benchmark and a connection for each node in one process"},
		{Name: "start", Ours: started.Seconds(), Unit: "s", Bar: "none", Pass: true, Note: "from the ledger to ready"},
		{Name: "first_plans", Ours: (full - started).Seconds(), Unit: "s", Bar: "none", Pass: true, Note: "from ready to every node in use"},
	} {
		if err := f.Print(w); err != nil {
			return err
		}
	}
	if judge && failed {
		return errors.New("a figure is above its bar")
	}
	return nil
}

// fill commits the nodes and jobs as the scheduler would, and returns the last job's id.
func fill(ctx context.Context, cfg allinone.Config, size Size) (last string, err error) {
	srv, err := bus.StartServer(bus.ServerConfig{Dir: filepath.Join(cfg.Dir, "bus"), Nodes: cfg.Guests})
	if err != nil {
		return "", err
	}
	defer srv.Shutdown()
	core, err := prepared(ctx, srv)
	if err != nil {
		return "", err
	}
	defer core.Close()
	b, done, err := openBook(ctx, core, factsACommit)
	if err != nil {
		return "", err
	}
	defer done()
	spec, err := b.furnish(ctx, cfg.Guests, "spec: {workers: 2, gpus: 4, models: [A100-80G], command: [\"true\"]}")
	if err != nil {
		return "", err
	}
	for i := range size.Jobs {
		c := spec.submit(i)
		if _, err := b.decide(ctx, c); err != nil {
			return "", err
		}
		last = c.Job
	}
	return last, b.commit(ctx)
}

const factsACommit = 256

const beatEvery = 5 * time.Second

// beat keeps one node from falling silent.
func beat(ctx context.Context, conn *bus.Conn, node string, first time.Duration) {
	caller := busnats.NewCaller(conn)
	data, err := proto.Marshal(weftv1.Beat_builder{Node: &node, BootId: new(bootID)}.Build())
	if err != nil {
		return
	}
	for wait := first; ; wait = beatEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
			caller.Call(bus.SubjectBeat(node), data, beatEvery)
		}
	}
}

// untilFull waits until every node that was filled in is in use.
func untilFull(ctx context.Context, c Reader, size Size) error {
	for {
		r, err := c.ListJobs(ctx, apiv1.ListJobsRequest_builder{Phase: new("starting"), PageSize: new(uint32(1))}.Build())
		if err != nil {
			return err
		}
		if int(r.GetTotal()) >= min(size.Nodes, size.Jobs) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// residentBytes is the memory of this process.
func residentBytes() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	w := strings.Fields(string(b))
	pages, err := strconv.ParseInt(w[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

// bars of Replay.
const (
	replayBar    = 0.6
	restartBar   = 1500 * time.Millisecond
	tailRecords  = 50_000
	replayNodes  = 64
	factsARecord = 8 // of the ledger that Replay writes
)

// Replay measures what it takes to read a ledger: the whole of it, beside a reader that only fetches, decodes and hashes
// the same records; and a start from a snapshot with a tail behind it. The ledger holds the whole lives of many jobs.
func Replay(ctx context.Context, w io.Writer, jobs int, judge bool) error {
	dir, err := os.MkdirTemp("", "weft-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	srv, err := bus.StartServer(bus.ServerConfig{Dir: dir})
	if err != nil {
		return err
	}
	defer srv.Shutdown()
	core, err := prepared(ctx, srv)
	if err != nil {
		return err
	}
	defer core.Close()
	snaps, err := natsledger.OpenSnapshots(ctx, core, bus.StreamLedger)
	if err != nil {
		return err
	}
	live, records, err := write(ctx, core, snaps, jobs)
	if err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}

	begin := time.Now()
	if err := fetchAll(ctx, core, records); err != nil {
		return err
	}
	raw := time.Since(begin)
	ours, err := fold(ctx, core, nil, live)
	if err != nil {
		return err
	}
	restart, err := fold(ctx, core, snaps, live)
	if err != nil {
		return err
	}
	rate := func(d time.Duration) float64 { return float64(records) / d.Seconds() }
	ratio := rate(ours) / rate(raw)
	for _, f := range []Figure{
		{Name: "replay", Ours: rate(ours), Anchor: rate(raw), Unit: "records/s", Bar: ">= 0.6 x", Pass: ratio >= replayBar,
			Note: fmt.Sprintf("%d records, %d facts each at most, %d jobs; anchor: fetch, decode the facts and hash; same state as live", records, factsARecord, jobs)},
		{Name: "restart_from_snapshot", Ours: ms(restart), Unit: "ms", Bar: "<= 1500 ms", Pass: restart <= restartBar,
			Note: fmt.Sprintf("a snapshot and %d records behind it", min(tailRecords, records))},
	} {
		if err := f.Print(w); err != nil {
			return err
		}
	}
	if judge && (ratio < replayBar || restart > restartBar) {
		return errors.New("a figure misses its bar")
	}
	return nil
}

// prepared makes the streams and connects as the services do.
func prepared(ctx context.Context, srv *bus.Embedded) (*bus.Conn, error) {
	coreInit, err := srv.Conn(ctx, bus.RoleCoreInit)
	if err != nil {
		return nil, err
	}
	defer coreInit.Close()
	nodesInit, err := srv.Conn(ctx, bus.RoleNodesInit)
	if err != nil {
		return nil, err
	}
	defer nodesInit.Close()
	if err := bus.Apply(ctx, coreInit, nodesInit, bus.ApplyOptions{}); err != nil {
		return nil, err
	}
	return srv.Conn(ctx, bus.RoleCore)
}

// write commits the lives of jobs on a small cell, a snapshot tailRecords before the end, and returns the encoded state.
func write(ctx context.Context, core *bus.Conn, snaps ledger.Snapshots, jobs int) (state []byte, records uint64, err error) {
	b, done, err := openBook(ctx, core, factsARecord)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	proof, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		return nil, 0, err
	}
	defer proof.Close()
	var nodes []string
	for i := range replayNodes {
		nodes = append(nodes, fmt.Sprintf("node-%04d", i))
	}
	spec, err := b.furnish(ctx, nodes, "spec: {gpus: 1, command: [\"true\"]}")
	if err != nil {
		return nil, 0, err
	}
	const slots = 8 * replayNodes
	facts := 0
	for i := range jobs {
		n, err := b.live(ctx, spec, i, nodes[i%slots/8], uint32(i%8))
		if err != nil {
			return nil, 0, err
		}
		facts += n
		if left := (jobs - i) * facts / (i + 1) / factsARecord; left <= tailRecords && snaps != nil {
			if err := b.commit(ctx); err != nil {
				return nil, 0, err
			}
			if _, _, err := b.proj.Step(ctx, time.Now()); err != nil { // it knows that it is at the end
				return nil, 0, err
			}
			s := ledger.NewSnapshotter(b.proj, proof, snaps, ledger.SnapshotterOptions{Every: 1})
			if _, _, err := s.Step(ctx, time.Now()); err != nil {
				return nil, 0, err
			}
			snaps = nil
		}
	}
	if err := b.commit(ctx); err != nil {
		return nil, 0, err
	}
	b.proj.View(func(s *cell.State, at ledger.Position) { state, records = cell.Encode(s), at.Seq })
	return state, records, nil
}

// live takes one job from its submission to its success on one device, and returns how many facts that took.
func (b *book) live(ctx context.Context, spec *jobSpec, i int, node string, device uint32) (int, error) {
	submit := spec.submit(i)
	count := 0
	for _, c := range []func() lifecycle.Command{
		func() lifecycle.Command { return submit },
		func() lifecycle.Command {
			return lifecycle.Place{Plan: "bench", Start: weftv1.Start_builder{Job: &submit.Job, Placements: []*weftv1.Placement{
				weftv1.Placement_builder{Node: &node, Generation: new(uint64(1)), Count: new(uint32(1)), Devices: []uint32{device}, Milli: new(int64(1000))}.Build(),
			}}.Build()}
		},
		func() lifecycle.Command {
			return lifecycle.Report{Report: report(node, func(r *weftv1.Report) {
				r.SetRanksStarted(weftv1.RanksStarted_builder{Job: &submit.Job, Attempt: new(uint32(1))}.Build())
			})}
		},
		func() lifecycle.Command {
			return lifecycle.Report{Report: report(node, func(r *weftv1.Report) {
				r.SetAttemptReleased(weftv1.AttemptReleased_builder{Job: &submit.Job, Attempt: new(uint32(1)), Completed: new(true)}.Build())
			})}
		},
	} {
		n, err := b.decide(ctx, c())
		if err != nil {
			return count, fmt.Errorf("job %d: %w", i, err)
		}
		count += n
	}
	return count, nil
}

// fetchAll reads, decodes and hashes every record, its facts included, and does nothing with it.
func fetchAll(ctx context.Context, core *bus.Conn, records uint64) error {
	log, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		return err
	}
	defer log.Close()
	for next := uint64(1); next <= records; {
		recs, err := log.Read(ctx, next, 512)
		if err != nil {
			return err
		}
		for _, r := range recs {
			c, err := ledger.Decode(r.Data)
			if err != nil {
				return err
			}
			for _, e := range c.GetEntries() {
				if e.GetKind() == ledger.KindLeaderElected { // the library's own
					continue
				}
				if _, err := cell.Fact(e, r.Seq); err != nil {
					return err
				}
			}
			ledger.Hash(r.Data)
			next = r.Seq + 1
		}
	}
	return nil
}

// fold reads the ledger as a service does, says how long that took, and compares the state.
func fold(ctx context.Context, core *bus.Conn, snaps ledger.Snapshots, want []byte) (time.Duration, error) {
	begin := time.Now()
	log, err := natsledger.Open(ctx, core, bus.StreamLedger)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	proj := ledger.NewProjection(log, cellfold.Fold(), snaps)
	if _, err := proj.CatchUp(ctx, time.Now()); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	same := false
	proj.View(func(s *cell.State, _ ledger.Position) { same = bytes.Equal(cell.Encode(s), want) })
	if !same {
		return 0, errors.New("the state that was read is not the state that was written")
	}
	return took, nil
}

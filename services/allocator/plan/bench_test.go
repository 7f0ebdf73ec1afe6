package plan

import (
	"fmt"
	"testing"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// BenchmarkPlan plans a backlog of 1000 jobs of eight tenants onto 1000 nodes of eight cards in 32 racks.
//
//	empty: nothing runs, so nearly every job starts.
//	full:  the cell is taken and no job can start: what a plan costs while everybody waits.
func BenchmarkPlan(b *testing.B) {
	empty := newWorld()
	for i := range 1000 {
		empty.node(fmt.Sprintf("n%04d", i), machine{cards: 8, cliques: 2, rack: fmt.Sprintf("r%02d", i/32), block: fmt.Sprintf("b%d", i/256)})
	}
	for i := range 8 {
		empty.queue(fmt.Sprintf("t%d", i), weighs(int64(1+i)))
	}
	full := &world{State: empty.Overlay(), at: empty.at}
	for i := range 1000 {
		full.submit(fmt.Sprintf("held-%04d", i), spec{queue: "t0", groups: []*weftv1.Group{gang(1, 8)}})
	}
	full.run(b)
	for _, w := range []*world{empty, full} {
		for i := range 1000 {
			w.submit(fmt.Sprintf("job-%04d", i), spec{queue: fmt.Sprintf("t%d", i%8), priority: int32(i % 5), groups: []*weftv1.Group{gang(1<<(i%7), 1<<(i%4))}})
		}
	}
	for _, c := range []struct {
		name string
		w    *world
	}{{"empty", empty}, {"full", full}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.w.plan()
			}
			b.ReportMetric(float64(1000)*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}

// A long queue before a full cell: what a plan costs although nothing can start.
func BenchmarkPlanLongQueue(b *testing.B) {
	w := newWorld()
	for i := range 1000 {
		w.node(fmt.Sprintf("n%04d", i), machine{cards: 8, cliques: 2})
	}
	for i := range 8 {
		w.queue(fmt.Sprintf("t%d", i), weighs(int64(1+i)))
	}
	for i := range 1000 {
		w.submit(fmt.Sprintf("held-%04d", i), spec{queue: "t0", groups: []*weftv1.Group{gang(1, 8)}})
	}
	w.run(b)
	for i := range 100_000 {
		w.submit(fmt.Sprintf("job-%06d", i), spec{queue: fmt.Sprintf("t%d", i%8), priority: int32(i % 5), groups: []*weftv1.Group{gang(1<<(i%7), 1<<(i%4))}})
	}
	b.Run("plan", func(b *testing.B) {
		for b.Loop() {
			w.plan()
		}
	})
	b.Run("explain", func(b *testing.B) {
		for b.Loop() {
			New(w.State, 7, w.at, DefaultPolicy()).Explain("job-099999")
		}
	})
}

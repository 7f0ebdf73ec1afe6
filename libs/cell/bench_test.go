package cell

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// lives builds the commits of n jobs that are submitted, placed, run and succeed, one fact group a commit as a fabric
// under load makes them, on nodes of 8 devices. The last keep jobs stay queued.
func lives(n, keep int) []*weftv1.Commit {
	var out []*weftv1.Commit
	at := int64(1)
	commit := func(facts ...weftv1.Fact_builder) {
		at++
		b := weftv1.Commit_builder{TimeNs: new(at)}
		for _, f := range facts {
			data, err := proto.Marshal(f.Build())
			if err != nil {
				panic(err)
			}
			b.Entries = append(b.Entries, weftv1.Entry_builder{Kind: new("fact"), Fact: data}.Build())
		}
		out = append(out, b.Build())
	}
	commit(weftv1.Fact_builder{QueueSet: weftv1.QueueSet_builder{Queue: new("demo/vision")}.Build()})
	for i := range 100 {
		name := fmt.Sprintf("n%03d", i)
		commit(weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: &name, BootId: new("b")}.Build()})
	}
	for i := range n {
		id, node := fmt.Sprintf("01j%023d", i), fmt.Sprintf("n%03d", i%100)
		commit(weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{
			Job: &id, Tenant: new("demo"), SpecHash: new("b3-0123456789abcdef"), Spec: weftv1.JobSpec_builder{
				Name: new(fmt.Sprintf("job-%d", i)), Queue: new("demo/vision"), Groups: []*weftv1.Group{weftv1.Group_builder{
					Name: new("worker"), Min: new(uint32(1)), Max: new(uint32(1)), GpuMilli: new(int64(1000)), CpuMilli: new(int64(1000)),
					MemoryBytes: new(int64(1 << 30)), Command: []string{"python3", "train.py"},
				}.Build()},
			}.Build(),
		}.Build()})
		if i >= n-keep {
			continue
		}
		commit(weftv1.Fact_builder{JobPlaced: weftv1.JobPlaced_builder{
			Job: &id, Attempt: new(uint32(1)), Size: new(uint32(1)), Placements: []*weftv1.Placement{weftv1.Placement_builder{
				Node: &node, Count: new(uint32(1)), Devices: []uint32{0}, Milli: new(int64(1000)),
			}.Build()},
		}.Build()})
		commit(weftv1.Fact_builder{NodeStarted: weftv1.NodeStarted_builder{Job: &id, Attempt: new(uint32(1)), Node: &node}.Build()},
			weftv1.Fact_builder{AttemptRunning: weftv1.AttemptRunning_builder{Job: &id, Attempt: new(uint32(1))}.Build()})
		commit(weftv1.Fact_builder{Released: weftv1.Released_builder{Job: &id, Attempt: new(uint32(1)), Node: &node, Completed: new(true)}.Build()},
			weftv1.Fact_builder{AttemptEnded: weftv1.AttemptEnded_builder{Job: &id, Attempt: new(uint32(1))}.Build()},
			weftv1.Fact_builder{JobSucceeded: weftv1.JobSucceeded_builder{Job: &id}.Build()})
	}
	return out
}

func BenchmarkReplay(b *testing.B) {
	commits := lives(20_000, 0)
	b.ReportAllocs()
	for b.Loop() {
		s := NewState()
		for i, c := range commits {
			if err := Apply(s, c, uint64(i+1)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(20_000*7)*float64(b.N)/b.Elapsed().Seconds(), "facts/s")
}

func of100k(b *testing.B) *State {
	s := NewState()
	for i, c := range lives(100_000, 50_000) {
		if err := Apply(s, c, uint64(i+1)); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func BenchmarkOf100kJobs(b *testing.B) {
	s := of100k(b)
	enc := Encode(s)
	b.Run("Encode", func(b *testing.B) {
		b.SetBytes(int64(len(enc)))
		for b.Loop() {
			Encode(s)
		}
	})
	b.Run("Decode", func(b *testing.B) {
		b.SetBytes(int64(len(enc)))
		for b.Loop() {
			if _, err := Decode(enc); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("Overlay and one fact", func(b *testing.B) {
		b.ReportAllocs()
		f := weftv1.Fact_builder{JobCancelled: weftv1.JobCancelled_builder{Job: new(fmt.Sprintf("01j%023d", 77_000))}.Build()}.Build()
		for b.Loop() {
			Evolve(s.Overlay(), f, 1)
		}
	})
	b.Run("First 500 waiting", func(b *testing.B) {
		for b.Loop() {
			n := 0
			for range s.WaitingJobs() {
				if n++; n == 500 {
					break
				}
			}
		}
	})
	b.Run("Job", func(b *testing.B) {
		id := fmt.Sprintf("01j%023d", 77_000)
		for b.Loop() {
			s.Job(id)
		}
	})
}

package busnats_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/testkit"
)

// The steps of the path from submit to running that the bus answers for.
func BenchmarkPath(b *testing.B) {
	eb := testkit.Bus(b, "n1")
	agent := eb.Conn(b, bus.NodeRole("n1"))
	spec := bytes.Repeat([]byte("s"), 2<<10)
	ctx := b.Context()
	b.Run("synced-publish", func(b *testing.B) {
		out := busnats.NewOutbox(eb.Core, bus.StreamRequests)
		for b.Loop() {
			if _, err := out.Publish(ctx, bus.Message{Subject: bus.SubjectRequest("acme", "submit"), Data: spec}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("assignment", func(b *testing.B) {
		out := busnats.NewOutbox(eb.Nodes, bus.StreamAssignments)
		_, at, _, err := out.Get(ctx, bus.SubjectAssign("n1"))
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if at, err = out.Put(ctx, at, bus.Message{Subject: bus.SubjectAssign("n1"), Data: spec}); err != nil {
				b.Fatal(err)
			}
		}
	})
	objects := busnats.NewObjects(eb.Nodes, bus.BucketBundles)
	b.Run("put-spec", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n++
			if err := objects.Put(ctx, fmt.Sprint("spec-", n), bytes.NewReader(spec)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("has-spec", func(b *testing.B) {
		for b.Loop() {
			if ok, err := objects.Has(ctx, "spec-1"); err != nil || !ok {
				b.Fatal(ok, err)
			}
		}
	})
	b.Run("get-spec", func(b *testing.B) {
		own := busnats.NewObjects(agent, bus.BucketBundles)
		for b.Loop() {
			r, err := own.Get(ctx, "spec-1")
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, r); err != nil || n != int64(len(spec)) {
				b.Fatal(n, err)
			}
		}
	})
}

package operate

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/busnats"
	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/natsledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// stopped opens a new data directory.
func stopped(t *testing.T) *Bus {
	t.Helper()
	b, err := Open(t.Context(), Options{Data: filepath.Join(t.TempDir(), "data"), Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// written is a cell with a queue, a job with a secret in its environment, and a bundle.
func written(t *testing.T) (*Bus, *ledger.Projection[*cell.State]) {
	t.Helper()
	b := stopped(t)
	log, err := natsledger.Open(t.Context(), b.Core, bus.StreamLedger)
	if err != nil {
		t.Fatal(err)
	}
	b.close = append(b.close, log.Close)
	p := ledger.NewProjection(log, cellfold.Fold(), nil)
	w := ledger.NewWriter(log, p, "scheduler", "a")
	if err := w.Lead(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	spec := weftv1.JobSpec_builder{Queue: new("demo"), Groups: []*weftv1.Group{weftv1.Group_builder{
		Name: new("worker"), Min: new(uint32(1)), Max: new(uint32(1)), Env: []*weftv1.KeyValue{weftv1.KeyValue_builder{Key: new("KEY_NAME"), Value: new("hunter2")}.Build()},
	}.Build()}}.Build()
	facts := []*weftv1.Fact{
		weftv1.Fact_builder{QueueSet: weftv1.QueueSet_builder{Queue: new("demo"), Weight: new(int64(1))}.Build()}.Build(),
		weftv1.Fact_builder{JobSubmitted: weftv1.JobSubmitted_builder{Job: new("01j00000000000000000000001"), Tenant: new("demo"), Spec: spec}.Build()}.Build(),
	}
	for range 3 {
		if _, err := w.Commit(t.Context(), time.Now(), ledger.FactEntries(facts), nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := busnats.NewObjects(b.Nodes, bus.BucketBundles).Put(t.Context(), "spec-1", strings.NewReader("the spec")); err != nil {
		t.Fatal(err)
	}
	return b, p
}

func TestExportHidesEnvironments(t *testing.T) {
	b, _ := written(t)
	books, err := b.Books(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var seqs []uint64
	var text strings.Builder
	if err := books[0].Export(t.Context(), 2, 3, func(l Line) error {
		seqs = append(seqs, l.Seq)
		for _, f := range l.Facts {
			text.Write(f)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(seqs) != 2 || seqs[0] != 2 || seqs[1] != 3 {
		t.Fatalf("records %v", seqs)
	}
	if s := text.String(); strings.Contains(s, "hunter2") || !strings.Contains(s, "KEY_NAME") || !strings.Contains(s, `"queue_set"`) {
		t.Fatal(s)
	}
}

// A trimmed ledger with its snapshots comes back at its own places; a backup that is cut short does not.
func TestBackupOfATrimmedLedger(t *testing.T) {
	b, _ := written(t)
	books, err := b.Books(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, ok, err := books[0].Snapshot(t.Context())
	if err != nil || !ok {
		t.Fatal(err)
	}
	if err := books[0].Log.(ledger.Trimmable).TrimBefore(t.Context(), m.Seq); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := b.Backup(t.Context(), &file); err != nil {
		t.Fatal(err)
	}
	before, err := books[0].Verify(t.Context())
	if err != nil || len(before.Faults) > 0 {
		t.Fatal(before, err)
	}

	for _, cut := range []int{0, 100, file.Len() / 2, file.Len() - 9} {
		if _, err := stopped(t).Restore(t.Context(), bytes.NewReader(file.Bytes()[:cut])); err == nil {
			t.Fatalf("a backup cut at %d of %d was taken", cut, file.Len())
		}
	}
	c := stopped(t)
	n, err := c.Restore(t.Context(), bytes.NewReader(file.Bytes()))
	if err != nil || n.Bundles != 1 || n.Snapshots != 1 || n.Records[bus.StreamLedger] != 1 {
		t.Fatalf("%+v, %v", n, err)
	}
	again, err := c.Books(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	after, err := again[0].Verify(t.Context())
	if err != nil || len(after.Faults) > 0 || after.Tail.First != m.Seq || after.Start != m.Seq {
		t.Fatalf("%+v, %v", after, err)
	}
	var full *NotEmpty
	if _, err := c.Restore(t.Context(), bytes.NewReader(file.Bytes())); !errors.As(err, &full) {
		t.Fatalf("put over another: %v", err)
	}
	if ok, err := busnats.NewObjects(c.Nodes, bus.BucketBundles).Has(context.Background(), "spec-1"); err != nil || !ok {
		t.Fatal("the bundle is missing", err)
	}
}

// Package ledgertest is the contract of a ledger: what every adapter of ledger.Log must do, and what projection, writer
// and leadership make of it when logs, leaders and disks misbehave.
package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Harness is one fresh, empty log and the ways to hurt it.
type Harness struct {
	// Open returns another handle on the log, as another process would have.
	Open func(t testing.TB) ledger.Log
	// Force stores data behind the end without any check, as a stranger on the bus can.
	Force func(t testing.TB, data []byte)
	// Image copies the log's disk; restore puts the copy back, so that the log forgets what was appended since and gives
	// the same sequences again.
	Image func(t testing.TB) (restore func())
	// Trim removes the records before seq.
	Trim func(t testing.TB, seq uint64)
	// Recreate replaces the log by an empty one of the same name.
	Recreate func(t testing.TB)
	// Snapshots opens the log's snapshots.
	Snapshots func(t testing.TB) ledger.Snapshots
}

// Run runs the whole contract; fresh makes a new empty log for each part.
func Run(t *testing.T, fresh func(t testing.TB) Harness) {
	parts := []struct {
		name string
		f    func(t *testing.T, h Harness)
	}{
		{"EmptyLog", emptyLog},
		{"Order", order},
		{"Conflict", conflict},
		{"DuplicateIsOurs", duplicate},
		{"LostAck", lostAck},
		{"PipelinedRival", pipelinedRival},
		{"Wake", wake},
		{"BigRecords", bigRecords},
		{"Trimmed", trimmed},
		{"Recreated", recreated},
		{"SnapshotsPort", snapshotsPort},
		{"Commit", commitAndFold},
		{"ZombieLeader", zombieLeader},
		{"PausedLeader", pausedLeader},
		{"ZombieAfterTailLoss", zombieAfterTailLoss},
		{"TailLossRefusesToLead", tailLoss},
		{"TailLossBeyondSnapshot", lossBeyondSnapshot},
		{"TailMisreported", tailMisreported},
		{"StrangersAreVoid", strangers},
		{"UnknownKind", unknownKind},
		{"SnapshotAndTail", snapshotAndTail},
		{"CorruptSnapshot", corruptSnapshot},
		{"SnapshotOfLostBranch", snapshotOfLostBranch},
		{"SlowReader", slowReader},
		{"SharedReaders", sharedReaders},
		{"Takeover", takeover},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.f(t, fresh(t)) })
	}
}

var epoch = time.Unix(1_700_000_000, 0)

func ctxOf(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// raw is a commit as an adapter sees it: bytes with an id.
func raw(t testing.TB, id string, size int) []byte {
	t.Helper()
	e := weftv1.Entry_builder{Kind: new(KindNote), Fact: bytes.Repeat([]byte{7}, size)}.Build()
	b, err := ledger.Encode(weftv1.Commit_builder{Id: &id, Entries: []*weftv1.Entry{e}}.Build())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustAppend(t testing.TB, l ledger.Log, expected uint64, id string) {
	t.Helper()
	seq, err := l.Append(ctxOf(t), expected, id, raw(t, id, 8))
	if err != nil || seq != expected+1 {
		t.Fatalf("append %s after %d: got %d, %v", id, expected, seq, err)
	}
}

// readAll reads from a place to the tail as it is now.
func readAll(t testing.TB, l ledger.Log, from uint64) []ledger.Record {
	t.Helper()
	ctx := ctxOf(t)
	tail, err := l.Tail(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var out []ledger.Record
	for from <= tail.Last {
		recs, err := l.Read(ctx, from, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(recs) == 0 {
			t.Fatalf("nothing read from %d, though the log ends at %d", from, tail.Last)
		}
		out = append(out, recs...)
		from = recs[len(recs)-1].Seq + 1
	}
	return out
}

func ids(t testing.TB, recs []ledger.Record) []string {
	t.Helper()
	var out []string
	for _, r := range recs {
		c, err := ledger.Decode(r.Data)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%d:%s", r.Seq, c.GetId()))
	}
	return out
}

func wantIDs(t testing.TB, recs []ledger.Record, want ...string) {
	t.Helper()
	if got := ids(t, recs); !slices.Equal(got, want) {
		t.Fatalf("records %v, want %v", got, want)
	}
}

func emptyLog(t *testing.T, h Harness) {
	l, ctx := h.Open(t), ctxOf(t)
	tail, err := l.Tail(ctx)
	if err != nil || tail.First != 1 || tail.Last != 0 || tail.CreatedNS == 0 {
		t.Fatalf("tail of an empty log: %+v, %v", tail, err)
	}
	if recs, err := l.Read(ctx, 1, 10); err != nil || len(recs) != 0 {
		t.Fatalf("read an empty log: %v, %v", recs, err)
	}
	if _, err := l.Append(ctx, 1, "a", raw(t, "a", 8)); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("append beyond the end: %v", err)
	}
	mustAppend(t, l, 0, "a")
	if _, err := l.Append(ctx, 0, "b", raw(t, "b", 8)); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("append to a log no longer empty: %v", err)
	}
}

func order(t *testing.T, h Harness) {
	l, other := h.Open(t), h.Open(t)
	var want []string
	for i := range uint64(10) {
		id := fmt.Sprintf("c%d", i+1)
		mustAppend(t, l, i, id)
		want = append(want, fmt.Sprintf("%d:%s", i+1, id))
	}
	wantIDs(t, readAll(t, l, 1), want...)
	wantIDs(t, readAll(t, other, 1), want...)
	wantIDs(t, readAll(t, other, 8), want[7:]...)
	wantIDs(t, readAll(t, other, 2), want[1:]...) // back again: readers rebuild
	if recs, err := l.Read(ctxOf(t), 11, 5); err != nil || len(recs) != 0 {
		t.Fatalf("read at the tail: %v, %v", recs, err)
	}
}

func conflict(t *testing.T, h Harness) {
	a, b, ctx := h.Open(t), h.Open(t), ctxOf(t)
	mustAppend(t, a, 0, "a1")
	mustAppend(t, b, 1, "b2")
	if _, err := a.Append(ctx, 1, "a2", raw(t, "a2", 8)); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("append behind the rival's record: %v", err)
	}
	wantIDs(t, readAll(t, a, 1), "1:a1", "2:b2")
	mustAppend(t, a, 2, "a3")
}

func duplicate(t *testing.T, h Harness) {
	l := h.Open(t)
	mustAppend(t, l, 0, "a")
	mustAppend(t, l, 0, "a") // the same commit again is the same commit
	mustAppend(t, l, 1, "b")
	mustAppend(t, l, 0, "a")
	wantIDs(t, readAll(t, l, 1), "1:a", "2:b")
}

func lostAck(t *testing.T, h Harness) {
	l := h.Open(t)
	mustAppend(t, l, 0, "a")
	h.Force(t, raw(t, "b", 8)) // stored by a try whose acknowledgement was lost
	mustAppend(t, l, 1, "b")
	h.Force(t, raw(t, "c", 8)) // and here a rival follows before the next try
	h.Force(t, raw(t, "rival", 8))
	mustAppend(t, l, 2, "c")
	if _, err := l.Append(ctxOf(t), 3, "d", raw(t, "d", 8)); !errors.Is(err, ledger.ErrConflict) {
		t.Fatalf("append where the rival's record stands: %v", err)
	}
	wantIDs(t, readAll(t, l, 1), "1:a", "2:b", "3:c", "4:rival")
}

// pipelinedRival pins why one append is in flight, ever: the log alone does not stop the second of two.
func pipelinedRival(t *testing.T, h Harness) {
	l, rival, ctx := h.Open(t), h.Open(t), ctxOf(t)
	mustAppend(t, l, 0, "a")
	mustAppend(t, rival, 1, "rival")
	_, err1 := l.Append(ctx, 1, "p1", raw(t, "p1", 8))
	_, err2 := l.Append(ctx, 2, "p2", raw(t, "p2", 8))
	if !errors.Is(err1, ledger.ErrConflict) || err2 != nil {
		t.Fatalf("the first of two pipelined appends: %v, the second: %v", err1, err2)
	}
	wantIDs(t, readAll(t, l, 1), "1:a", "2:rival", "3:p2")
}

func wake(t *testing.T, h Harness) {
	l, other := h.Open(t), h.Open(t)
	w := l.Wake()
	if recs, err := l.Read(ctxOf(t), 1, 10); err != nil || len(recs) != 0 {
		t.Fatalf("read an empty log: %v, %v", recs, err)
	}
	for i := range uint64(3) {
		id := fmt.Sprintf("c%d", i+1)
		mustAppend(t, other, i, id)
		wantIDs(t, awaitRecords(t, l, w, i+1), fmt.Sprintf("%d:%s", i+1, id))
	}
}

// awaitRecords reads from a place, waiting for wakes only: a wake that never comes fails the test.
func awaitRecords(t testing.TB, l ledger.Log, w <-chan struct{}, from uint64) []ledger.Record {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		recs, err := l.Read(ctxOf(t), from, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(recs) > 0 {
			return recs
		}
		select {
		case <-w:
		case <-deadline:
			t.Fatalf("not woken for record %d", from)
		}
	}
}

func bigRecords(t *testing.T, h Harness) {
	l, ctx := h.Open(t), ctxOf(t)
	var want []string
	for i := range uint64(6) {
		id := fmt.Sprintf("big%d", i+1)
		if _, err := l.Append(ctx, i, id, raw(t, id, ledger.MaxCommit-64)); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%d:%s", i+1, id))
	}
	recs := readAll(t, h.Open(t), 1)
	wantIDs(t, recs, want...)
	if n := len(recs[3].Data); n < ledger.MaxCommit-64 {
		t.Fatalf("record of %d bytes", n)
	}
}

func trimmed(t *testing.T, h Harness) {
	l := h.Open(t)
	for i := range uint64(5) {
		mustAppend(t, l, i, fmt.Sprintf("c%d", i+1))
	}
	h.Trim(t, 4)
	fresh := h.Open(t)
	if tail, err := fresh.Tail(ctxOf(t)); err != nil || tail.First != 4 || tail.Last != 5 {
		t.Fatalf("tail of a trimmed log: %+v, %v", tail, err)
	}
	recs, err := fresh.Read(ctxOf(t), 1, 10)
	if err != nil || len(recs) == 0 || recs[0].Seq != 4 {
		t.Fatalf("read from before the first: %v, %v", recs, err)
	}
	h.Trim(t, 6) // all gone: the position stays
	fresh = h.Open(t)
	if tail, err := fresh.Tail(ctxOf(t)); err != nil || tail.First != 6 || tail.Last != 5 {
		t.Fatalf("tail of a log trimmed empty: %+v, %v", tail, err)
	}
	mustAppend(t, fresh, 5, "c6")
	wantIDs(t, readAll(t, fresh, 6), "6:c6")
}

func recreated(t *testing.T, h Harness) {
	l := h.Open(t)
	mustAppend(t, l, 0, "a")
	before, err := l.Tail(ctxOf(t))
	if err != nil {
		t.Fatal(err)
	}
	h.Recreate(t)
	after, err := l.Tail(ctxOf(t))
	if err != nil || after.Last != 0 || after.CreatedNS == before.CreatedNS {
		t.Fatalf("tail of a log made anew: %+v (before %+v), %v", after, before, err)
	}
}

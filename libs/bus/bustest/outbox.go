package bustest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/weft-fabric/weft/libs/bus"
)

// OutboxFixture is three empty streams.
type OutboxFixture struct {
	Events bus.Outbox // subjects weft.event.*.*
	Assign bus.Outbox // subjects weft.assign.*, one message each
	Tiny   bus.Outbox // subject weft.tiny, holds less than 64 KiB, then refuses

	TinyReader bus.Inbox // the reader of Tiny, which may trim it
}

func event(n int) bus.Message {
	return bus.Message{
		Subject: bus.SubjectEvent("acme", "job-placed"), Data: fmt.Appendf(nil, "event %d", n),
		Header: map[string]string{"Weft-Ledger": fmt.Sprintf("%d/0", n)},
	}
}

func assign(node, what string) bus.Message {
	return bus.Message{Subject: bus.SubjectAssign(node), Data: []byte(what)}
}

// RunOutbox holds an adapter of bus.Outbox to its contract.
func RunOutbox(t *testing.T, open func(t *testing.T) OutboxFixture) {
	t.Run("append only at the end", func(t *testing.T) {
		f := open(t)
		ctx := t.Context()
		if _, seq, ok, err := f.Events.Last(ctx); ok || seq != 0 || err != nil {
			t.Fatalf("Last of an empty stream: %d, %v, %v", seq, ok, err)
		}
		for i := range 3 {
			if seq, err := f.Events.Append(ctx, uint64(i), event(i)); err != nil || seq != uint64(i+1) {
				t.Fatalf("append %d: %d, %v", i, seq, err)
			}
		}
		for _, expected := range []uint64{0, 1, 2, 4, 99} {
			if _, err := f.Events.Append(ctx, expected, event(100)); !errors.Is(err, bus.ErrPosition) {
				t.Fatalf("append at %d: %v, want ErrPosition", expected, err)
			}
		}
		m, seq, ok, err := f.Events.Last(ctx)
		if err != nil || !ok || seq != 3 || m.Header["Weft-Ledger"] != "2/0" || string(m.Data) != "event 2" || len(m.Header) != 1 {
			t.Fatalf("Last: %+v, %d, %v, %v", m, seq, ok, err)
		}
	})
	t.Run("an equal message at its place is stored already", func(t *testing.T) {
		f := open(t)
		ctx := t.Context()
		for i := range 3 {
			if _, err := f.Events.Append(ctx, uint64(i), event(i)); err != nil {
				t.Fatal(err)
			}
		}
		if seq, err := f.Events.Append(ctx, 1, event(1)); err != nil || seq != 2 {
			t.Fatalf("append of what stands there: %d, %v", seq, err)
		}
		if _, seq, _, _ := f.Events.Last(ctx); seq != 3 {
			t.Fatalf("the repeat was stored: last is %d", seq)
		}
		other := event(1)
		other.Header["Weft-Ledger"] = "7/0"
		if _, err := f.Events.Append(ctx, 1, other); !errors.Is(err, bus.ErrPosition) {
			t.Fatalf("append with another header: %v", err)
		}
	})
	t.Run("put replaces a subject's one message if nobody did since", func(t *testing.T) {
		f := open(t)
		ctx := t.Context()
		if _, _, ok, err := f.Assign.Get(ctx, bus.SubjectAssign("n1")); ok || err != nil {
			t.Fatalf("Get of nothing: %v, %v", ok, err)
		}
		first, err := f.Assign.Put(ctx, 0, assign("n1", "a"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Assign.Put(ctx, 0, assign("n2", "x")); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Assign.Put(ctx, 0, assign("n1", "b")); !errors.Is(err, bus.ErrPosition) {
			t.Fatalf("put as if none was there: %v", err)
		}
		second, err := f.Assign.Put(ctx, first, assign("n1", "b"))
		if err != nil || second <= first {
			t.Fatalf("put: %d, %v", second, err)
		}
		if _, err := f.Assign.Put(ctx, first, assign("n1", "c")); !errors.Is(err, bus.ErrPosition) {
			t.Fatalf("put behind a rival: %v", err)
		}
		if seq, err := f.Assign.Put(ctx, first, assign("n1", "b")); err != nil || seq != second {
			t.Fatalf("put of what stands there: %d, %v", seq, err)
		}
		m, seq, ok, err := f.Assign.Get(ctx, bus.SubjectAssign("n1"))
		if err != nil || !ok || seq != second || string(m.Data) != "b" {
			t.Fatalf("Get: %+v, %d, %v, %v", m, seq, ok, err)
		}
		if m, _, _, _ := f.Assign.Get(ctx, bus.SubjectAssign("n2")); string(m.Data) != "x" {
			t.Fatalf("the other subject: %+v", m)
		}
	})
	t.Run("a full stream refuses, keeps what it has, and takes more once it is trimmed", func(t *testing.T) {
		f := open(t)
		ctx := t.Context()
		m := func(n uint64) bus.Message {
			return bus.Message{Subject: "weft.tiny", Data: append(make([]byte, 8<<10), fmt.Sprint(n)...)}
		}
		var last uint64
		for full := false; !full; {
			if last == 16 {
				t.Fatal("never full")
			}
			seq, err := f.Tiny.Publish(ctx, m(last+1))
			switch {
			case errors.Is(err, bus.ErrFull):
				full = true
			case err != nil || seq != last+1:
				t.Fatalf("message %d: %d, %v", last+1, seq, err)
			default:
				last = seq
			}
		}
		// However it is written, the writer learns that it is full and not that a rival was faster.
		for what, write := range map[string]func() (uint64, error){
			"publish": func() (uint64, error) { return f.Tiny.Publish(ctx, m(last+1)) },
			"append":  func() (uint64, error) { return f.Tiny.Append(ctx, last, m(last+1)) },
			"put":     func() (uint64, error) { return f.Tiny.Put(ctx, last, m(last+1)) },
		} {
			if seq, err := write(); !errors.Is(err, bus.ErrFull) {
				t.Fatalf("%s to a full stream: %d, %v; want ErrFull", what, seq, err)
			}
		}
		if _, seq, ok, err := f.Tiny.Last(ctx); err != nil || !ok || seq != last {
			t.Fatalf("Last of the full stream: %d, %v, %v; want %d", seq, ok, err, last)
		}
		for i, in := range read(t, f.TinyReader, int(last)) {
			if want := m(uint64(i + 1)); in.Seq != uint64(i+1) || !bytes.Equal(in.Data, want.Data) {
				t.Fatalf("message %d of the full stream is %d, %q", i+1, in.Seq, in.Data[8<<10:])
			}
		}
		if err := f.TinyReader.Trim(ctx, last-1); err != nil {
			t.Fatal(err)
		}
		if seq, err := f.Tiny.Append(ctx, last, m(last+1)); err != nil || seq != last+1 {
			t.Fatalf("after Trim: %d, %v", seq, err)
		}
		if got := read(t, f.TinyReader, 1); got[0].Seq != last+1 {
			t.Fatalf("after Trim the reader got %d", got[0].Seq)
		}
	})
	t.Run("headers that the server acts on are refused", func(t *testing.T) {
		f := open(t)
		for _, h := range []string{"Nats-Expected-Last-Msg-Id", "nats-rollup", "NATS-TTL"} {
			m := event(1)
			m.Header = map[string]string{h: "zz"}
			if seq, err := f.Events.Publish(t.Context(), m); err == nil {
				t.Fatalf("%s was stored at %d", h, seq)
			}
			if seq, err := f.Events.Append(t.Context(), 0, m); err == nil {
				t.Fatalf("%s was stored at %d", h, seq)
			}
			m.Subject = bus.SubjectAssign("n1")
			if seq, err := f.Assign.Put(t.Context(), 0, m); err == nil {
				t.Fatalf("%s was stored at %d", h, seq)
			}
		}
		// And the streams live: the first of these stops a replicated stream for good if it gets through.
		if seq, err := f.Events.Append(t.Context(), 0, event(0)); seq != 1 || err != nil {
			t.Fatalf("after refused headers: %d, %v", seq, err)
		}
		if seq, err := f.Assign.Put(t.Context(), 0, assign("n1", "a")); seq != 1 || err != nil {
			t.Fatalf("after refused headers: %d, %v", seq, err)
		}
	})
	t.Run("an ended context writes nothing", func(t *testing.T) {
		f := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.Events.Append(ctx, 0, event(0)); !errors.Is(err, context.Canceled) {
			t.Fatalf("append: %v", err)
		}
		if _, seq, _, err := f.Events.Last(t.Context()); seq != 0 || err != nil {
			t.Fatalf("stored %d, %v", seq, err)
		}
	})
}

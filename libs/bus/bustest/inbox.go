// Package bustest holds the contract suites of the bus's ports, which every adapter passes.
package bustest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/testkit"
)

// Patience bounds every wait of the suites; an adapter that works needs a fraction of it.
const Patience = 15 * time.Second

// InboxFixture is one stream, empty, whose subjects match weft.report.*.
type InboxFixture struct {
	Outbox   bus.Outbox
	Inbox    func(filter string) bus.Inbox
	Recreate func() // deletes the stream and makes it anew
}

func report(node string, n int) bus.Message {
	return bus.Message{Subject: bus.SubjectReport(node), Data: fmt.Appendf(nil, "%s-%d", node, n)}
}

// read takes n inputs, waiting by Wake alone, so that a missing wake fails the test.
func read(t *testing.T, in bus.Inbox, n int) []bus.Input {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	var out []bus.Input
	for {
		got, err := in.Next(ctx, n-len(out))
		if err != nil {
			t.Fatal(err)
		}
		if out = append(out, got...); len(out) == n {
			return out
		}
		select {
		case <-in.Wake():
		case <-ctx.Done():
			t.Fatalf("read %d of %d inputs, then no wake", len(out), n)
		}
	}
}

func publish(t *testing.T, out bus.Outbox, msgs ...bus.Message) (last uint64) {
	t.Helper()
	for _, m := range msgs {
		seq, err := out.Publish(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		last = seq
	}
	return last
}

// RunInbox holds an adapter of bus.Inbox to its contract.
func RunInbox(t *testing.T, open func(t *testing.T) InboxFixture) {
	t.Run("in order, once, with all that was written", func(t *testing.T) {
		f := open(t)
		in := f.Inbox("")
		name, created, err := in.Stream(t.Context())
		if err != nil || name == "" || created == 0 {
			t.Fatalf("Stream() = %q, %d, %v", name, created, err)
		}
		for i := range 50 {
			m := report("n1", i)
			m.Header = map[string]string{"Weft-Kind": "started"}
			publish(t, f.Outbox, m)
		}
		for i, m := range read(t, in, 50) {
			if m.Seq != uint64(i+1) || string(m.Data) != fmt.Sprintf("n1-%d", i) || m.Subject != "weft.report.n1" ||
				m.Header["Weft-Kind"] != "started" || len(m.Header) != 1 || m.Stream != name || m.CreatedNS != created {
				t.Fatalf("input %d: %+v", i, m)
			}
		}
		if more, err := in.Next(t.Context(), 10); err != nil || len(more) != 0 {
			t.Fatalf("at the end Next gave %v, %v", more, err)
		}
	})
	t.Run("wakes for what comes later, within max", func(t *testing.T) {
		f := open(t)
		in := f.Inbox("")
		if got, err := in.Next(t.Context(), 10); err != nil || len(got) != 0 {
			t.Fatalf("empty stream gave %v, %v", got, err)
		}
		for i := range 10 {
			publish(t, f.Outbox, report("n1", i))
			if got := read(t, in, 1); got[0].Seq != uint64(i+1) {
				t.Fatalf("got %+v", got)
			}
		}
		publish(t, f.Outbox, report("n1", 10), report("n1", 11), report("n1", 12))
		read(t, in, 2) // the third must wake the reader again
		read(t, in, 1)
	})
	t.Run("a filter", func(t *testing.T) {
		f := open(t)
		in := f.Inbox(bus.SubjectReport("n2"))
		publish(t, f.Outbox, report("n1", 1), report("n2", 2), report("n1", 3), report("n2", 4))
		got := read(t, in, 2)
		if got[0].Seq != 2 || got[1].Seq != 4 {
			t.Fatalf("got %+v", got)
		}
	})
	t.Run("seek goes on after a sequence, forward and back", func(t *testing.T) {
		f := open(t)
		for i := range 10 {
			publish(t, f.Outbox, report("n1", i))
		}
		in := f.Inbox("")
		in.Seek(7)
		if got := read(t, in, 3); got[0].Seq != 8 || got[2].Seq != 10 {
			t.Fatalf("after Seek(7): %+v", got)
		}
		in.Seek(2)
		if got := read(t, in, 8); got[0].Seq != 3 || got[7].Seq != 10 {
			t.Fatalf("after Seek(2): %+v", got)
		}
		in.Seek(10)
		publish(t, f.Outbox, report("n1", 10))
		if got := read(t, in, 1); got[0].Seq != 11 {
			t.Fatalf("after Seek(10): %+v", got)
		}
	})
	t.Run("trim removes up to a sequence and disturbs nobody", func(t *testing.T) {
		f := open(t)
		for i := range 10 {
			publish(t, f.Outbox, report("n1", i))
		}
		in := f.Inbox("")
		read(t, in, 6)
		if err := in.Trim(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		if got := read(t, in, 4); got[0].Seq != 7 {
			t.Fatalf("own reader after Trim: %+v", got)
		}
		if got := read(t, f.Inbox(""), 5); got[0].Seq != 6 {
			t.Fatalf("new reader after Trim: %+v", got)
		}
		if seq := publish(t, f.Outbox, report("n1", 10)); seq != 11 {
			t.Fatalf("sequence after Trim: %d", seq)
		}
	})
	t.Run("a slow reader misses and repeats nothing", func(t *testing.T) {
		f := open(t)
		in := f.Inbox("")
		publish(t, f.Outbox, report("n1", 0))
		read(t, in, 1)
		const n = 30 // with their bytes more than an adapter may read ahead
		for i := 1; i < n; i++ {
			m := report("n1", i)
			m.Data = append(make([]byte, 900<<10), m.Data...)
			publish(t, f.Outbox, m)
		}
		for i := 1; i < n; i++ {
			got := read(t, in, 1)[0]
			if want := fmt.Sprintf("n1-%d", i); got.Seq != uint64(i+1) || string(got.Data[900<<10:]) != want {
				t.Fatalf("input %d is %d, %q; want %q", i+1, got.Seq, got.Data[900<<10:], want)
			}
		}
	})
	t.Run("a stream made anew is read from its start", func(t *testing.T) {
		f := open(t)
		in := f.Inbox("")
		publish(t, f.Outbox, report("n1", 0), report("n1", 1), report("n1", 2))
		created := read(t, in, 3)[0].CreatedNS
		f.Recreate()
		testkit.Eventually(t, Patience, func() error {
			_, err := f.Outbox.Publish(t.Context(), report("n1", 9))
			return err
		})
		got := read(t, in, 1)[0]
		if got.Seq != 1 || got.CreatedNS == created || string(got.Data) != "n1-9" {
			t.Fatalf("got %+v; the old stream was of %d", got, created)
		}
		if _, now, err := in.Stream(t.Context()); err != nil || now != got.CreatedNS {
			t.Fatalf("Stream() says %d, %v; the input %d", now, err, got.CreatedNS)
		}
	})
}

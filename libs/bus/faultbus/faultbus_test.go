package faultbus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/bustest"
	"github.com/weft-fabric/weft/libs/bus/faultbus"
	"github.com/weft-fabric/weft/libs/bus/membus"
)

// Without a fault the wrappers are what they wrap; with delays and short reads an inbox is still what its contract says.
func TestContract(t *testing.T) {
	for what, faults := range map[string][]faultbus.Fault{
		"no faults": nil, "delays": {faultbus.Delay, faultbus.None}, "short reads": {faultbus.Short, faultbus.Delay, faultbus.Short},
	} {
		t.Run("inbox, "+what, func(t *testing.T) {
			bustest.RunInbox(t, func(t *testing.T) bustest.InboxFixture {
				b := membus.New()
				return bustest.InboxFixture{
					Outbox: faultbus.WrapOutbox(b.Outbox(bus.StreamReports)),
					Inbox: func(filter string) bus.Inbox {
						in := faultbus.WrapInbox(b.Inbox(bus.StreamReports, filter))
						in.PlanReads(slices.Repeat(faults, 200)...)
						return in
					},
					Recreate: func() { b.Recreate(bus.StreamReports) },
				}
			})
		})
	}
	t.Run("outbox", func(t *testing.T) {
		bustest.RunOutbox(t, func(t *testing.T) bustest.OutboxFixture {
			b := membus.New()
			b.Limit("TINY", 64<<10)
			return bustest.OutboxFixture{
				Events: faultbus.WrapOutbox(b.Outbox(bus.StreamEvents)), Assign: faultbus.WrapOutbox(b.Outbox(bus.StreamAssignments)),
				Tiny: faultbus.WrapOutbox(b.Outbox("TINY")), TinyReader: faultbus.WrapInbox(b.Inbox("TINY", "")),
			}
		})
	})
}

// all is what stands in a stream.
func all(t *rapid.T, b *membus.Bus, stream string) []bus.Input {
	got, err := b.Inbox(stream, "").Next(context.Background(), 10_000)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

var writeFaults = []faultbus.Fault{faultbus.Drop, faultbus.LoseAck, faultbus.Late}

// Two writers, one of them always deposed, tell the same history by compare-and-append: whatever is lost, late or doubled,
// each message stands there once and in its place.
func TestAppendTellsAHistoryOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx, b := context.Background(), membus.New()
		event := func(n uint64) bus.Message {
			return bus.Message{Subject: bus.SubjectEvent("acme", "x"), Data: fmt.Append(nil, n)}
		}
		writers := []*faultbus.Outbox{faultbus.WrapOutbox(b.Outbox(bus.StreamEvents)), faultbus.WrapOutbox(b.Outbox(bus.StreamEvents))}
		at := make([]int64, len(writers)) // where each believes the end to be; -1 = it must look
		told := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, 1).Draw(t, "writer")
			w := writers[i]
			switch rapid.SampledFrom([]string{"write", "write", "write", "fault", "read fault", "land", "forget"}).Draw(t, "action") {
			case "write":
				if at[i] < 0 {
					_, seq, _, err := w.Last(ctx)
					if err != nil {
						continue
					}
					at[i] = int64(seq)
				}
				seq, err := w.Append(ctx, uint64(at[i]), event(uint64(at[i])+1))
				switch {
				case err == nil && seq != uint64(at[i])+1:
					t.Fatalf("stored at %d, expected %d", seq, at[i]+1)
				case err == nil:
					at[i], told = at[i]+1, max(told, seq)
				case errors.Is(err, bus.ErrPosition), errors.Is(err, bus.ErrUnavailable):
					at[i] = -1
				default:
					t.Fatal(err)
				}
			case "fault":
				w.PlanWrites(rapid.SampledFrom(writeFaults).Draw(t, "fault"))
			case "read fault":
				w.PlanReads(faultbus.Drop)
			case "land":
				w.Land(ctx)
			case "forget": // another process
				at[i] = -1
			}
		}
		for _, w := range writers {
			w.Land(ctx)
		}
		got := all(t, b, bus.StreamEvents)
		if uint64(len(got)) < told {
			t.Fatalf("%d were acknowledged, %d stand there", told, len(got))
		}
		for i, m := range got {
			if m.Seq != uint64(i+1) || string(m.Data) != fmt.Sprint(i+1) {
				t.Fatalf("message %d is %d, %s", i+1, m.Seq, m.Data)
			}
		}
	})
}

// One key is written by writers that look first and never write a lower number: what stands there never goes back, though
// acknowledgements are lost and writes of a deposed one land late.
func TestPutNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx, b := context.Background(), membus.New()
		subject := bus.SubjectAssign("n1")
		writers := []*faultbus.Outbox{faultbus.WrapOutbox(b.Outbox(bus.StreamAssignments)), faultbus.WrapOutbox(b.Outbox(bus.StreamAssignments))}
		stands := func(o bus.Outbox) (n int, at uint64, err error) {
			m, at, ok, err := o.Get(ctx, subject)
			if ok {
				n, err = strconv.Atoi(string(m.Data))
			}
			return n, at, err
		}
		newest, was := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			w := writers[rapid.IntRange(0, 1).Draw(t, "writer")]
			switch rapid.SampledFrom([]string{"put", "put", "put", "fault", "read fault", "land"}).Draw(t, "action") {
			case "put":
				n, at, err := stands(w)
				if err != nil {
					continue
				}
				newest++
				if n >= newest {
					t.Fatalf("%d stands there, and %d is the newest", n, newest)
				}
				_, err = w.Put(ctx, at, bus.Message{Subject: subject, Data: fmt.Append(nil, newest)})
				if n, _, _ := stands(b.Outbox(bus.StreamAssignments)); err == nil && n != newest {
					t.Fatalf("%d was acknowledged, %d stands there", newest, n)
				}
			case "fault":
				w.PlanWrites(rapid.SampledFrom(writeFaults).Draw(t, "fault"))
			case "read fault":
				w.PlanReads(faultbus.Drop)
			case "land":
				w.Land(ctx)
			}
			n, _, err := stands(b.Outbox(bus.StreamAssignments))
			if err != nil || n < was {
				t.Fatalf("%d stood there, now %d, %v", was, n, err)
			}
			was = n
		}
	})
}

// A reader that keeps its cursor elsewhere, and dies now and then, commits each input once and in order. A publisher that
// tries again stores a message twice: those are two inputs.
func TestAReaderTakesEachInputOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx, b := context.Background(), membus.New()
		out := faultbus.WrapOutbox(b.Outbox(bus.StreamReports))
		in := faultbus.WrapInbox(b.Inbox(bus.StreamReports, ""))
		var committed []bus.Input
		cursor := func() uint64 {
			if n := len(committed); n > 0 {
				return committed[n-1].Seq
			}
			return 0
		}
		trimmed, published := uint64(0), 0
		take := func() {
			got, err := in.Next(ctx, rapid.IntRange(1, 4).Draw(t, "max"))
			if err != nil && !errors.Is(err, bus.ErrUnavailable) {
				t.Fatal(err)
			}
			committed = append(committed, got...)
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"publish", "publish", "write fault", "read", "read", "read fault", "die", "trim", "land"}).Draw(t, "action") {
			case "publish":
				published++
				_, _ = out.Publish(ctx, bus.Message{Subject: bus.SubjectReport("n1"), Data: fmt.Append(nil, published)})
			case "write fault":
				out.PlanWrites(rapid.SampledFrom(append(writeFaults, faultbus.Twice)).Draw(t, "fault"))
			case "read":
				take()
			case "read fault":
				in.PlanReads(rapid.SampledFrom([]faultbus.Fault{faultbus.Drop, faultbus.Delay, faultbus.Short}).Draw(t, "fault"))
			case "die":
				in = faultbus.WrapInbox(b.Inbox(bus.StreamReports, ""))
				in.Seek(cursor())
			case "trim":
				in.PlanTrims(rapid.SampledFrom([]faultbus.Fault{faultbus.None, faultbus.Drop, faultbus.LoseAck}).Draw(t, "fault"))
				_ = in.Trim(ctx, cursor())
				trimmed = cursor()
			case "land":
				out.Land(ctx)
			}
		}
		out.Land(ctx)
		in = faultbus.WrapInbox(b.Inbox(bus.StreamReports, ""))
		in.Seek(cursor())
		for n := -1; n != len(committed); {
			n = len(committed)
			take()
		}
		for i, m := range committed {
			if m.Seq != uint64(i+1) {
				t.Fatalf("input %d has sequence %d", i+1, m.Seq)
			}
		}
		_, last, _, err := b.Outbox(bus.StreamReports).Last(ctx)
		if err != nil || uint64(len(committed)) != last {
			t.Fatalf("%d of %d inputs (trimmed to %d), %v", len(committed), last, trimmed, err)
		}
	})
}

// A paused writer sends what it had decided when it wakes: too late, if the place is taken.
func TestAPausedWriterWakes(t *testing.T) {
	ctx, b := t.Context(), membus.New()
	a, rival := faultbus.WrapOutbox(b.Outbox(bus.StreamEvents)), b.Outbox(bus.StreamEvents)
	event := func(s string) bus.Message {
		return bus.Message{Subject: bus.SubjectEvent("acme", "x"), Data: []byte(s)}
	}
	for n, c := range []struct {
		fault faultbus.Fault
		other string // what the rival tells there
		want  error
	}{
		{faultbus.Hold, "another", bus.ErrPosition},
		{faultbus.Hold, "mine", nil}, // the same history
		{faultbus.HoldAck, "", nil},  // stored before the pause
	} {
		a.PlanWrites(c.fault)
		ended := make(chan error, 1)
		go func() {
			_, err := a.Append(ctx, uint64(n), event("mine"))
			ended <- err
		}()
		<-a.Held()
		if c.other != "" {
			if _, err := rival.Append(ctx, uint64(n), event(c.other)); err != nil {
				t.Fatal(err)
			}
		}
		a.Resume()
		if err := <-ended; !errors.Is(err, c.want) {
			t.Errorf("fault %d, rival %q: %v", c.fault, c.other, err)
		}
	}
	if _, seq, _, err := rival.Last(ctx); seq != 3 || err != nil {
		t.Errorf("%d messages, %v", seq, err)
	}
}

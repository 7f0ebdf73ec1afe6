package membus_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/bustest"
	"github.com/weft-fabric/weft/libs/bus/membus"
)

func TestContract(t *testing.T) {
	t.Run("inbox", func(t *testing.T) {
		bustest.RunInbox(t, func(t *testing.T) bustest.InboxFixture {
			b := membus.New()
			return bustest.InboxFixture{
				Outbox:   b.Outbox(bus.StreamReports),
				Inbox:    func(filter string) bus.Inbox { return b.Inbox(bus.StreamReports, filter) },
				Recreate: func() { b.Recreate(bus.StreamReports) },
			}
		})
	})
	t.Run("outbox", func(t *testing.T) {
		bustest.RunOutbox(t, func(t *testing.T) bustest.OutboxFixture {
			b := membus.New()
			b.Limit("TINY", 64<<10)
			return bustest.OutboxFixture{
				Events: b.Outbox(bus.StreamEvents), Assign: b.Outbox(bus.StreamAssignments), Tiny: b.Outbox("TINY"), TinyReader: b.Inbox("TINY", ""),
			}
		})
	})
	t.Run("caller", func(t *testing.T) {
		bustest.RunCaller(t, func(t *testing.T) (bus.Caller, bus.Caller) {
			b := membus.New()
			return b.Caller(), b.Caller()
		})
	})
	t.Run("objects", func(t *testing.T) {
		bustest.RunObjects(t, func(t *testing.T) bus.Objects { return membus.New().Objects(bus.BucketBundles) })
	})
}

func TestCallsTimeOutByTheBusClock(t *testing.T) {
	b := membus.New()
	now := time.Unix(1000, 0)
	b.SetClock(func() time.Time { return now })
	s, err := b.Caller().Serve("weft.rpc.a.b", "")
	if err != nil {
		t.Fatal(err)
	}
	p := b.Caller().Call("weft.rpc.a.b", nil, time.Second)
	now = now.Add(999 * time.Millisecond)
	if _, done := p.Poll(); done {
		t.Fatal("timed out early")
	}
	now = now.Add(time.Millisecond)
	if r, done := p.Poll(); !done || !errors.Is(r.Err, bus.ErrNoAnswer) {
		t.Fatalf("%+v, %v", r, done)
	}
	s.Next(1)[0].Respond([]byte("late"), nil)
	if r, _ := p.Poll(); !errors.Is(r.Err, bus.ErrNoAnswer) {
		t.Fatalf("a late answer changed the reply: %+v", r)
	}
}

func TestDown(t *testing.T) {
	b := membus.New()
	in, out := b.Inbox("S", ""), b.Outbox("S")
	b.SetDown(true)
	if _, err := out.Publish(t.Context(), bus.Message{Subject: "x"}); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("publish: %v", err)
	}
	if _, err := in.Next(t.Context(), 1); !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("next: %v", err)
	}
	b.SetDown(false)
	select {
	case <-in.Wake():
	default:
		t.Fatal("not woken when the bus came back")
	}
}

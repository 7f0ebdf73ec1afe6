package bustest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
)

// take waits for n requests, by Wake alone.
func take(t *testing.T, s bus.Server, n int) []bus.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	var out []bus.Request
	for {
		if out = append(out, s.Next(n-len(out))...); len(out) == n {
			return out
		}
		select {
		case <-s.Wake():
		case <-ctx.Done():
			t.Fatalf("%d of %d requests, then no wake", len(out), n)
		}
	}
}

func serve(t *testing.T, c bus.Caller, subject, queue string) bus.Server {
	t.Helper()
	s, err := c.Serve(subject, queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// RunCaller holds an adapter of bus.Caller to its contract. open gives two parties of one bus, both services.
func RunCaller(t *testing.T, open func(t *testing.T) (a, b bus.Caller)) {
	plan := bus.SubjectRPC("allocator", "plan")
	t.Run("call and answer", func(t *testing.T) {
		a, b := open(t)
		s := serve(t, a, plan, "allocator")
		p := b.Call(plan, []byte("q"), Patience)
		if _, done := p.Poll(); done {
			t.Fatal("done before it was answered")
		}
		r := take(t, s, 1)[0]
		if r.Subject != plan || string(r.Data) != "q" {
			t.Fatalf("request %+v", r)
		}
		r.Respond([]byte("a"), nil)
		r.Respond([]byte("b"), nil) // the first one counts
		select {
		case <-p.Done():
		case <-time.After(Patience):
			t.Fatal("Done was not closed")
		}
		if got, done := p.Poll(); !done || got.Err != nil || string(got.Data) != "a" {
			t.Fatalf("reply %+v, %v", got, done)
		}
		if got := p.Wait(t.Context()); string(got.Data) != "a" {
			t.Fatalf("second look: %+v", got)
		}
	})
	t.Run("a refusal keeps code and message", func(t *testing.T) {
		a, b := open(t)
		s := serve(t, a, plan, "allocator")
		p := b.Call(plan, nil, Patience)
		take(t, s, 1)[0].Respond(nil, &bus.Refusal{Code: bus.CodeBehind, Message: "at 7, asked for 9"})
		<-p.Done()
		got, _ := p.Poll()
		var refusal *bus.Refusal
		if !errors.As(got.Err, &refusal) || refusal.Code != bus.CodeBehind || refusal.Message != "at 7, asked for 9" {
			t.Fatalf("reply %+v", got)
		}
	})
	t.Run("an empty answer is an answer", func(t *testing.T) {
		a, b := open(t)
		s := serve(t, a, plan, "")
		p := b.Call(plan, nil, Patience)
		take(t, s, 1)[0].Respond(nil, nil)
		if got := p.Wait(t.Context()); got.Err != nil || len(got.Data) != 0 {
			t.Fatalf("reply %+v", got)
		}
	})
	t.Run("nobody there, or nobody answers", func(t *testing.T) {
		a, b := open(t)
		start := time.Now()
		if got := b.Call(plan, nil, Patience).Wait(t.Context()); !errors.Is(got.Err, bus.ErrNoAnswer) {
			t.Fatalf("without a server: %+v", got)
		}
		if took := time.Since(start); took > Patience/2 {
			t.Fatalf("it took %v to learn that nobody is there", took)
		}
		serve(t, a, plan, "")
		if got := b.Call(plan, nil, 50*time.Millisecond).Wait(t.Context()); !errors.Is(got.Err, bus.ErrNoAnswer) {
			t.Fatalf("without an answer: %+v", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if got := b.Call(plan, nil, Patience).Wait(ctx); !errors.Is(got.Err, context.Canceled) {
			t.Fatalf("ended context: %+v", got)
		}
	})
	t.Run("a queue shares, others all hear", func(t *testing.T) {
		a, b := open(t)
		q1, q2 := serve(t, a, "weft.rpc.x.*", "x"), serve(t, b, "weft.rpc.x.*", "x")
		all := serve(t, a, "weft.rpc.x.>", "")
		for i := range 20 {
			if err := b.Send(bus.Message{Subject: bus.SubjectRPC("x", "m"), Data: fmt.Append(nil, i), Header: map[string]string{"K": "v"}}); err != nil {
				t.Fatal(err)
			}
		}
		for i, r := range take(t, all, 20) {
			if string(r.Data) != fmt.Sprint(i) || r.Header["K"] != "v" {
				t.Fatalf("message %d: %+v", i, r)
			}
			r.Respond([]byte("ignored"), nil)
		}
		var shared int
		ctx, cancel := context.WithTimeout(t.Context(), Patience)
		defer cancel()
		for shared < 20 {
			n := len(q1.Next(100)) + len(q2.Next(100))
			if shared += n; n > 0 {
				continue
			}
			select {
			case <-q1.Wake():
			case <-q2.Wake():
			case <-ctx.Done():
				t.Fatalf("the queue got %d of 20", shared)
			}
		}
		if shared != 20 || len(q1.Next(1))+len(q2.Next(1)) != 0 {
			t.Fatalf("the queue got more than each once: %d", shared)
		}
	})
	t.Run("a closed server gets nothing", func(t *testing.T) {
		a, b := open(t)
		s, err := a.Serve(plan, "")
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if got := b.Call(plan, nil, 200*time.Millisecond).Wait(t.Context()); !errors.Is(got.Err, bus.ErrNoAnswer) {
			t.Fatalf("reply %+v", got)
		}
		if left := s.Next(10); len(left) != 0 {
			t.Fatalf("got %v", left)
		}
	})
}

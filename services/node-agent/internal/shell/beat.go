package shell

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

// Beat gives signs of life. Only an answered one is contact, and it counts from when it was sent: the leader cannot have
// given the node up before that.
type Beat struct {
	caller  bus.Caller
	every   time.Duration
	data    []byte
	subject string
	contact *Contact
	hello   func() // the leader does not know this node

	due     time.Time
	pending bus.Pending
	sent    int64
	missed  int // beats in a row that were not answered
}

// aloneAfter is how many beats in a row may go unanswered before that is news. One is lost now and then, and at a start
// there is no leader for some seconds; the leader itself calls a node silent only after 15 s.
const aloneAfter = 5

// NewBeat makes the shell.
func NewBeat(caller bus.Caller, every time.Duration, node, boot string, c *Contact, hello func()) (*Beat, error) {
	data, err := proto.Marshal(weftv1.Beat_builder{Node: &node, BootId: &boot}.Build())
	if err != nil {
		return nil, fmt.Errorf("beat: %w", err)
	}
	return &Beat{caller: caller, every: every, data: data, subject: bus.SubjectBeat(node), contact: c, hello: hello}, nil
}

// Name for logs.
func (b *Beat) Name() string { return "node-agent beat" }

// Wakes implements run.Shell.
func (b *Beat) Wakes() []<-chan struct{} {
	if b.pending == nil {
		return nil
	}
	return []<-chan struct{}{b.pending.Done()}
}

// Step implements run.Shell.
func (b *Beat) Step(_ context.Context, now time.Time) (bool, time.Time, error) {
	did := false
	if b.pending != nil {
		r, done := b.pending.Poll()
		if !done {
			// A call ends by itself; look again in case its end wakes nobody.
			return false, now.Add(b.every), nil
		}
		b.pending, did = nil, true
		if err := b.answered(r); err != nil {
			return false, time.Time{}, err
		}
	}
	if !now.Before(b.due) {
		b.sent = proc.SinceBoot()
		b.pending = b.caller.Call(b.subject, b.data, b.every)
		b.due = now.Add(b.every)
		did = true
	}
	return did, b.due, nil
}

func (b *Beat) answered(r bus.Reply) error {
	var a weftv1.BeatAnswer
	err := r.Err
	if err == nil {
		err = proto.Unmarshal(r.Data, &a)
	}
	if err != nil {
		if b.missed++; b.missed == aloneAfter {
			slog.Warn("no contact: the scheduler does not answer beats; ranks run on until the fence", "error", err)
		}
		return nil
	}
	if b.missed >= aloneAfter {
		slog.Info("contact again")
	}
	b.missed = 0
	if err := b.contact.Had(b.sent); err != nil {
		return err
	}
	if a.GetUnknown() {
		b.hello()
	}
	return nil
}

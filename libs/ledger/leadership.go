package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"

	"github.com/weft-fabric/weft/libs/bus"
)

// Leader is what Leadership drives; a *Writer.
type Leader interface {
	Lead(ctx context.Context, now time.Time) error
	Leading() bool
	Resign()
	Term() uint64
	Service() string
	Replica() string
}

// LeadershipOptions tune Leadership; the zero value is the default.
type LeadershipOptions struct {
	// Alone: no other replica can exist (one process owns the data directory), so lead at once.
	Alone bool
	Beat  time.Duration // between beats of a leader; 1 s
	Miss  time.Duration // silence after which a standby takes over; 4 s
	Probe time.Duration // silence at start after which a replica concludes that nobody leads; 1.5 s
}

// Leadership decides when this replica tries to lead. Beats only say when trying is useful: who leads is a fact in the
// ledger, so a lost or forged beat costs an election, never a second leader. It is a run.Shell.
type Leadership struct {
	caller  bus.Caller
	leader  Leader
	subject string
	opts    LeadershipOptions

	beats   bus.Server
	started bool
	led     bool      // it led at the step before
	ledTerm uint64    // in this term
	quietAt time.Time // when to try unless a beat comes
	beatAt  time.Time // next beat while leading
}

// NewLeadership returns the shell; subject is bus.SubjectLeader(service). caller may be nil if Alone.
func NewLeadership(caller bus.Caller, leader Leader, subject string, opts LeadershipOptions) *Leadership {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&opts.Beat, time.Second)
	def(&opts.Miss, 4*time.Second)
	def(&opts.Probe, 1500*time.Millisecond)
	return &Leadership{caller: caller, leader: leader, subject: subject, opts: opts}
}

// Wakes are the beats of others.
func (l *Leadership) Wakes() []<-chan struct{} {
	if l.serve() != nil || l.beats == nil {
		return nil
	}
	return []<-chan struct{}{l.beats.Wake()}
}

func (l *Leadership) serve() error {
	if l.beats != nil || l.caller == nil {
		return nil
	}
	s, err := l.caller.Serve(l.subject, "")
	if err != nil {
		return fmt.Errorf("listen for the leader's beats: %w", err)
	}
	l.beats = s
	return nil
}

// Step beats while this replica leads, and tries to lead when nobody else does.
func (l *Leadership) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	if err := l.serve(); err != nil && !l.opts.Alone {
		return false, time.Time{}, err
	}
	if !l.started {
		l.started = true
		l.quietAt = now
		if !l.opts.Alone {
			l.quietAt = now.Add(l.opts.Probe)
			_ = l.send(0) // lost: the wait is as long as a beat
		}
	}
	heard, asked := l.listen()
	leading := l.leader.Leading()
	if l.led && !leading {
		// A conflict alone is no rival: only a higher term is. Without one this replica may try again at once.
		l.quietAt = now
		if l.leader.Term() > l.ledTerm {
			l.quietAt = now.Add(l.opts.Miss)
		}
	}
	l.led = leading
	if leading {
		if asked || !now.Before(l.beatAt) {
			l.beatAt = now.Add(l.opts.Beat)
			if err := l.send(l.leader.Term()); err != nil {
				return true, l.beatAt, err
			}
		}
		return false, l.beatAt, nil
	}
	if heard {
		l.quietAt = now.Add(l.opts.Miss)
	}
	if now.Before(l.quietAt) {
		return false, l.quietAt, nil
	}
	switch err := l.leader.Lead(ctx, now); {
	case errors.Is(err, ErrConflict):
		l.quietAt = now.Add(l.opts.Miss)
		if l.opts.Alone {
			l.quietAt = now.Add(l.opts.Beat)
		}
		return true, l.quietAt, nil
	case err != nil:
		l.quietAt = now.Add(l.opts.Beat)
		return false, l.quietAt, fmt.Errorf("lead %s: %w", l.leader.Service(), err)
	}
	l.led, l.ledTerm, l.beatAt = true, l.leader.Term(), now
	return true, now, nil
}

// listen takes what has arrived: heard = a leader of no older term than ours beats, asked = a replica wants to know.
func (l *Leadership) listen() (heard, asked bool) {
	if l.beats == nil {
		return false, false
	}
	for {
		reqs := l.beats.Next(64)
		if len(reqs) == 0 {
			return heard, asked
		}
		for _, r := range reqs {
			b := &weftv1.LeaderElected{}
			if proto.Unmarshal(r.Data, b) != nil || b.GetLeader() == l.leader.Replica() {
				continue
			}
			switch {
			case b.GetTerm() == 0:
				asked = true
			case b.GetTerm() >= l.leader.Term(): // an older one is a deposed leader that doesn't know it yet
				heard = true
			}
		}
	}
}

// send says which term this replica leads; term 0 asks who leads.
func (l *Leadership) send(term uint64) error {
	if l.caller == nil {
		return nil
	}
	replica := l.leader.Replica()
	data, err := marshal.Marshal(weftv1.LeaderElected_builder{Term: &term, Leader: &replica}.Build())
	if err != nil {
		return fmt.Errorf("encode a beat: %w", err)
	}
	if err := l.caller.Send(bus.Message{Subject: l.subject, Data: data}); err != nil {
		return fmt.Errorf("send a beat: %w", err)
	}
	return nil
}

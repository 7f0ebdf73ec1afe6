// Package membus is the bus in memory: deterministic, synchronous, without goroutines, for tests.
// A message is visible to every reader when the call that wrote it returns.
//
// It keeps to the limits that bus/streams.go declares for a stream of that name (subjects, one message per subject, bytes with
// refusal when full); age is not simulated. Streams of other names have no limits.
package membus

import (
	"sync"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
)

// Bus holds streams, calls and objects. All methods are safe for concurrent use.
type Bus struct {
	mu      sync.Mutex
	now     func() time.Time
	down    bool
	created int64
	streams map[string]*stream
	servers []*server
	robin   map[string]int // next member per subject pattern and queue
	buckets map[string]map[string][]byte
}

// New makes an empty bus.
func New() *Bus {
	return &Bus{
		now: time.Now, created: 1,
		streams: map[string]*stream{}, robin: map[string]int{}, buckets: map[string]map[string][]byte{},
	}
}

// SetClock gives the bus a virtual clock, by which calls time out.
func (b *Bus) SetClock(now func() time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = now
}

// SetDown cuts everybody off (or back): writes and reads fail with bus.ErrUnavailable, calls and messages are lost.
func (b *Bus) SetDown(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = down
	if !down {
		for _, s := range b.streams {
			s.wakeAll()
		}
	}
}

// Recreate empties a stream and gives it a new creation time, as if it had been deleted and made anew.
func (b *Bus) Recreate(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stream(name)
	b.created++
	s.created, s.msgs, s.last, s.bytes = b.created, nil, 0, 0
	s.wakeAll()
}

// Limit bounds a stream's bytes; more is refused with bus.ErrFull. 0 = no limit.
func (b *Bus) Limit(name string, maxBytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stream(name).maxBytes = maxBytes
}

// stream finds or makes a stream; b.mu is held.
func (b *Bus) stream(name string) *stream {
	s := b.streams[name]
	if s == nil {
		s = &stream{name: name, created: b.created}
		if d, ok := bus.Declared(name); ok {
			s.perSubject = d.OnePerSubject
			s.discardOld = d.DiscardOld
			s.maxBytes = d.MaxBytes
			s.subjects = d.Subjects
		}
		b.streams[name] = s
	}
	return s
}

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

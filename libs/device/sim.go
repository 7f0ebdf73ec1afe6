package device

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Sim is a simulated machine. Its measurements are a function of profile, seed, and the times and order of the calls;
// it never asks a clock.
type Sim struct {
	profile Profile
	seed    uint64
	closed  chan struct{}
	wake    chan struct{}

	mu     sync.Mutex
	start  time.Time // of the script: the first time seen
	now    time.Time
	script []Fault // not yet applied, in order of time
	chips  []*chip
	events []Event
	shut   bool
}

type chip struct {
	index  int
	uuid   string
	failed bool
	hidden bool
	hung   bool // the next call that touches it does not return
	reason string
	load   load
	entry  *weftv1.Device // as listed now
}

// NewSim returns a simulated machine; see ParseProfile for the names. Machines with different seeds have different
// devices.
func NewSim(profile string, seed uint64) (*Sim, error) {
	p, err := ParseProfile(profile)
	if err != nil {
		return nil, err
	}
	s := &Sim{profile: p, seed: seed, closed: make(chan struct{}), wake: make(chan struct{}, 1)}
	for i := range p.Count {
		c := &chip{index: i, uuid: simUUID(p.Name, seed, i)}
		c.load = load{profile: &s.profile, seed: seed ^ uint64(i+1)*0x9e3779b97f4a7c15}
		c.list(p)
		s.chips = append(s.chips, c)
	}
	return s, nil
}

func simUUID(profile string, seed uint64, i int) string {
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "weft simulated device\x00%s\x00%d\x00%d", profile, seed, i)
	b := h.Sum(nil)
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// list makes the device's entry anew: entries given out are never changed.
func (c *chip) list(p Profile) {
	health, reason := weftv1.DeviceHealth_DEVICE_HEALTH_OK, ""
	if c.failed || c.hidden {
		health, reason = weftv1.DeviceHealth_DEVICE_HEALTH_FAILED, c.reason
	}
	c.entry = weftv1.Device_builder{
		Uuid: new(c.uuid), Pci: new(fmt.Sprintf("0000:%02x:00.0", p.bus(c.index))), Minor: new(p.minor(c.index)),
		Model: new(p.Model), MemoryBytes: new(p.MemoryBytes), Numa: new(p.numa(c.index)), Clique: new(p.clique(c.index)),
		PcieSwitch: new(p.pcieSwitch(c.index)), MigCapable: new(p.MIG), Health: new(health), HealthReason: new(reason),
	}.Build()
}

// Profile returns what is simulated.
func (s *Sim) Profile() Profile { return s.profile }

// Simulated implements Provider.
func (s *Sim) Simulated() bool { return true }

// Wake implements Provider.
func (s *Sim) Wake() <-chan struct{} { return s.wake }

// Close implements Provider; it also ends calls that never return.
func (s *Sim) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shut {
		s.shut = true
		close(s.closed)
	}
	return nil
}

// Inventory implements Provider.
func (s *Sim) Inventory(ctx context.Context) ([]*weftv1.Device, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil, "", ErrClosed
	}
	out := make([]*weftv1.Device, len(s.chips))
	for i, c := range s.chips {
		out[i] = c.entry
	}
	return out, s.profile.Driver, nil
}

// Sample implements Provider.
func (s *Sim) Sample(ctx context.Context, now time.Time) ([]Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.shut {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.advance(now)
	var out []Sample
	var stuck *chip
	for _, c := range s.chips {
		switch {
		case c.failed || c.hidden:
		case c.hung:
			if stuck == nil {
				stuck = c
			}
		default:
			v := c.load.read(now)
			if v.Len() > 0 {
				out = append(out, Sample{UUID: c.uuid, At: now, Values: v})
			}
		}
	}
	s.mu.Unlock()
	if stuck == nil {
		return out, nil
	}
	select { // the call on this device never returns by itself
	case <-ctx.Done():
	case <-s.closed:
		return out, ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stuck.hung = false
	s.fail(stuck, 0, "does not answer")
	return out, fmt.Errorf("%w: %s", ErrHung, stuck.uuid)
}

// Events implements Provider.
func (s *Sim) Events(ctx context.Context, now time.Time) ([]Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		return nil, ErrClosed
	}
	s.advance(now)
	out := s.events
	s.events = nil
	return out, nil
}

// Use implements Usage.
func (s *Sim) Use(uuids []string) {
	busy := make(map[string]bool, len(uuids))
	for _, u := range uuids {
		busy[u] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.chips {
		c.load.busy = busy[c.uuid]
	}
}

// advance moves the simulated time on and applies what the script has due.
func (s *Sim) advance(now time.Time) {
	if s.start.IsZero() {
		s.start = now
	}
	if now.After(s.now) {
		s.now = now
	}
	for len(s.script) > 0 && !s.start.Add(s.script[0].After).After(now) {
		f := s.script[0]
		s.script = s.script[1:]
		s.apply(f)
	}
}

func (s *Sim) apply(f Fault) {
	if f.Device < 0 || f.Device >= len(s.chips) {
		return
	}
	c := s.chips[f.Device]
	switch f.Kind {
	case FaultFail:
		reason := f.Reason
		if reason == "" && f.XID != 0 {
			reason = fmt.Sprintf("XID %d", f.XID)
		}
		if reason == "" {
			reason = "failed"
		}
		s.fail(c, f.XID, reason)
	case FaultNote:
		s.emit(Event{UUID: c.uuid, At: s.now, Kind: Noted, XID: f.XID, Reason: f.Reason})
	case FaultHide:
		if !c.hidden && !c.failed {
			c.hidden, c.reason = true, "missing: the driver no longer lists it"
			c.list(s.profile)
			s.emit(Event{UUID: c.uuid, At: s.now, Kind: Failed, Reason: c.reason})
		}
	case FaultRecover:
		if c.failed || c.hidden || c.hung {
			was := c.failed || c.hidden
			c.failed, c.hidden, c.hung, c.reason = false, false, false, ""
			c.list(s.profile)
			if was {
				s.emit(Event{UUID: c.uuid, At: s.now, Kind: Recovered, Reason: "answers again"})
			}
		}
	case FaultHang:
		c.hung = true
	}
}

func (s *Sim) fail(c *chip, xid uint32, reason string) {
	if c.failed {
		return
	}
	c.failed, c.hidden, c.reason = true, false, reason
	c.list(s.profile)
	s.emit(Event{UUID: c.uuid, At: s.now, Kind: Failed, XID: xid, Reason: reason})
}

func (s *Sim) emit(e Event) {
	s.events = append(s.events, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// noise is in [0,1), the same for the same arguments on every machine.
func noise(seed uint64, what uint64, tick int64) float64 {
	x := seed ^ what*0xd6e8feb86659fd93 ^ uint64(tick)*0xa0761d6478bd642f
	x += 0x9e3779b97f4a7c15 // splitmix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return float64(x>>11) / (1 << 53)
}

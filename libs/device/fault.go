package device

import (
	"sort"
	"time"
)

// Fault is one thing that the simulator makes happen.
type Fault struct {
	After  time.Duration // since the first call that told the time
	Device int           // position in the inventory
	Kind   FaultKind
	XID    uint32
	Reason string
}

// FaultKind is what happens.
type FaultKind string

// The kinds of faults.
const (
	FaultFail    FaultKind = "fail"    // the device fails
	FaultRecover FaultKind = "recover" // whatever was wrong with it is over
	FaultHide    FaultKind = "hide"    // the driver no longer lists it: the count blips
	FaultHang    FaultKind = "hang"    // the next call that touches it never returns
	FaultNote    FaultKind = "note"    // an event that fails nothing
)

// Script adds faults to come.
func (s *Sim) Script(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = append(s.script, faults...)
	sort.SliceStable(s.script, func(i, j int) bool { return s.script[i].After < s.script[j].After })
}

// Inject makes a fault happen now; After is ignored.
func (s *Sim) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apply(f)
}

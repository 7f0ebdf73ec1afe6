package device

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
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

// ParseFaults reads a script: one fault a line or between semicolons, written AFTER KIND DEVICE [xid=N] [reason…], such
// as "30s fail 3 xid=79". Empty lines and lines that begin with # are left out.
func ParseFaults(text string) ([]Fault, error) {
	var out []Fault
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == ';' }) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f, err := parseFault(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("device: fault %q: %w; write AFTER KIND DEVICE [xid=N] [reason], such as 30s fail 3 xid=79", line, err)
		}
		out = append(out, f)
	}
	return out, nil
}

func parseFault(w []string) (Fault, error) {
	if len(w) < 3 {
		return Fault{}, fmt.Errorf("%d words are too few", len(w))
	}
	after, err := time.ParseDuration(w[0])
	if err != nil || after < 0 {
		return Fault{}, fmt.Errorf("%q is no duration", w[0])
	}
	kind := FaultKind(w[1])
	switch kind {
	case FaultFail, FaultRecover, FaultHide, FaultHang, FaultNote:
	default:
		return Fault{}, fmt.Errorf("no kind %q: there are fail, recover, hide, hang and note", w[1])
	}
	n, err := strconv.Atoi(w[2])
	if err != nil || n < 0 || n >= maxSimulated {
		return Fault{}, fmt.Errorf("%q is no device", w[2])
	}
	f := Fault{After: after, Device: n, Kind: kind}
	rest := w[3:]
	if len(rest) > 0 && strings.HasPrefix(rest[0], "xid=") {
		x, err := strconv.ParseUint(rest[0][4:], 10, 32)
		if err != nil {
			return Fault{}, fmt.Errorf("%q is no error number", rest[0])
		}
		f.XID, rest = uint32(x), rest[1:]
	}
	f.Reason = strings.Join(rest, " ")
	return f, nil
}

package lifecycle

import (
	"time"

	"github.com/weft-fabric/weft/libs/jobspec"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Policy holds the times that the rules use.
type Policy struct {
	Silent         time.Duration // without a beat for this long a node is silent; measured by the shell
	Fence          time.Duration // silent for this long, a node is lost and its ranks are dead; 0 = never by itself
	Claim          time.Duration // how long a gang that was refused too often holds its nodes
	EvictClaim     time.Duration // how long, beyond the victims' grace, a beneficiary holds what was freed for it
	ArchiveAfter   time.Duration // how long an ended job stays in the state
	DefaultGrace   time.Duration // SIGTERM to SIGKILL where the spec says nothing
	DefaultBackoff time.Duration // before the first charged restart where the spec says nothing
	MaxBackoff     time.Duration // the doubling ends here, unless the spec asks for more
	PortBackoff    time.Duration // before the next attempt after a busy port
	CauseWindow    time.Duration // how long after the first failure a better cause may replace it
	DefaultMax     uint32        // charged restarts where the spec says nothing
	ArchiveBatch   int           // jobs archived by one fact
}

// DefaultPolicy is what a cell runs with unless it is configured otherwise.
func DefaultPolicy() Policy {
	return Policy{
		Silent: 15 * time.Second, Fence: 10 * time.Minute, Claim: 5 * time.Second, EvictClaim: time.Minute,
		ArchiveAfter: 24 * time.Hour, DefaultGrace: jobspec.DefaultGrace, DefaultBackoff: jobspec.DefaultBackoff,
		MaxBackoff: 5 * time.Minute, PortBackoff: time.Second, CauseWindow: time.Second, DefaultMax: jobspec.DefaultRestarts, ArchiveBatch: 1000,
	}
}

func (p Policy) grace(spec *weftv1.JobSpec) int64 {
	if c := spec.GetCheckpoint(); c.HasGraceNs() {
		return c.GetGraceNs()
	}
	return int64(p.DefaultGrace)
}

func (p Policy) restarts(spec *weftv1.JobSpec) uint32 {
	if r := spec.GetRestart(); r.HasMax() {
		return r.GetMax()
	}
	return p.DefaultMax
}

// backoff before the restart that follows so many charged ones: doubled each time, up to MaxBackoff.
func (p Policy) backoff(spec *weftv1.JobSpec, charged uint32) int64 {
	base := int64(p.DefaultBackoff)
	if r := spec.GetRestart(); r.HasBackoffNs() {
		base = r.GetBackoffNs()
	}
	for range min(charged, 32) {
		if base >= int64(p.MaxBackoff) {
			break
		}
		base = min(2*base, int64(p.MaxBackoff))
	}
	return base
}

// Charged says whether an attempt that ended for this reason costs one of the job's restarts.
func Charged(k weftv1.CauseKind) bool {
	switch k {
	case weftv1.CauseKind_CAUSE_KIND_EXIT, weftv1.CauseKind_CAUSE_KIND_SIGNAL, weftv1.CauseKind_CAUSE_KIND_HUNG,
		weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED, weftv1.CauseKind_CAUSE_KIND_UNSPECIFIED:
		return true
	}
	return false
}

// rankOf orders causes of one attempt's end: the lower is nearer to the root. A signal or a fault of the machine comes
// before an exit code, because peers of a dead rank exit by themselves.
func rankOf(k weftv1.CauseKind) int {
	switch k {
	case weftv1.CauseKind_CAUSE_KIND_DEVICE_FAULT, weftv1.CauseKind_CAUSE_KIND_NODE_LOST, weftv1.CauseKind_CAUSE_KIND_REBOOT:
		return 0
	case weftv1.CauseKind_CAUSE_KIND_SIGNAL, weftv1.CauseKind_CAUSE_KIND_RESTORE_FAILED, weftv1.CauseKind_CAUSE_KIND_PORT_BUSY,
		weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED:
		return 1
	case weftv1.CauseKind_CAUSE_KIND_EXIT:
		return 2
	case weftv1.CauseKind_CAUSE_KIND_HUNG: // whatever else is heard says more
		return 3
	}
	return -1 // asked for by somebody: nothing replaces it
}

// better says whether a is nearer to the root of the failure than b.
func better(a, b *weftv1.Cause) bool {
	ra, rb := rankOf(a.GetKind()), rankOf(b.GetKind())
	switch {
	case ra < 0 || rb < 0:
		return false
	case ra != rb:
		return ra < rb
	}
	return a.GetTimeNs() != 0 && b.GetTimeNs() != 0 && a.GetTimeNs() < b.GetTimeNs()
}

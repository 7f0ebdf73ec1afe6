package device

import (
	"context"
	"errors"
	"time"

	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Provider is one machine's accelerators. Implementations are safe for concurrent use and pass devicetest.
//
// Every call returns when its context ends, at the latest, even if the hardware never answers; a call without a
// deadline may take for ever. A device that does not answer costs itself, not its neighbours: it is listed as failed
// and later calls leave it out.
type Provider interface {
	// Inventory returns the devices, ordered by PCI address. A device once listed stays listed, in its place and as
	// failed, while it is missing: a count that blips must not renumber its neighbours. The caller may keep the result
	// and must not change it.
	Inventory(ctx context.Context) (devices []*weftv1.Device, driver string, err error)
	// Sample reads what can be read of each healthy device now. A device that yields nothing has no Sample, a metric
	// that the device lacks or that has nothing new has no value.
	Sample(ctx context.Context, now time.Time) ([]Sample, error)
	// Events returns what happened since it was last called, oldest first, without waiting.
	Events(ctx context.Context, now time.Time) ([]Event, error)
	// Wake receives (capacity one) when Events may have more.
	Wake() <-chan struct{}
	// Simulated says that there is no hardware behind this; every listing must say so too.
	Simulated() bool
	Close() error
}

// Sample is one reading of one device.
type Sample struct {
	UUID   string
	At     time.Time // when the hardware was asked
	Values metric.Values
}

// Event is one thing that happened to a device.
type Event struct {
	UUID   string
	At     time.Time
	Kind   EventKind
	XID    uint32 // NVIDIA's error number; 0 = none
	Reason string // for people
}

// EventKind says what an event means for the device's health.
type EventKind uint8

// The kinds of events.
const (
	Noted     EventKind = iota // worth recording; the device works on
	Failed                     // the device must not be used
	Recovered                  // proved to work again
	Changed                    // the inventory differs in another way
)

func (k EventKind) String() string {
	return [...]string{"noted", "failed", "recovered", "changed"}[k]
}

// Usage is implemented by providers whose measurements depend on being told what is in use: simulators.
type Usage interface {
	// Use names the devices in use from now on; all others are idle.
	Use(uuids []string)
}

// Helper is implemented by providers that work through other processes.
type Helper interface {
	// HelperCPU is the processor time that those processes have used so far, ended ones included.
	HelperCPU() time.Duration
}

// Use tells p what is in use if p wants to know.
func Use(p Provider, uuids []string) {
	if u, ok := p.(Usage); ok {
		u.Use(uuids)
	}
}

var (
	// ErrNoLibrary: this machine has no driver library; the error's text says what to install.
	ErrNoLibrary = errors.New("device: no accelerator library")
	// ErrHung: the hardware did not answer in time.
	ErrHung = errors.New("device: no answer from the hardware")
	// ErrClosed: the provider was closed.
	ErrClosed = errors.New("device: closed")
)

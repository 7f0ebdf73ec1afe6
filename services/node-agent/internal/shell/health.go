package shell

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/weft-fabric/weft/libs/device"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Health reports what happens to devices. Whether that ends a job is the scheduler's to decide.
type Health struct {
	device  device.Provider
	index   map[string]uint32 // by UUID
	reports *Reports
	changed func(ctx context.Context) // the inventory differs
}

// deviceTimeout bounds a question to the hardware.
const deviceTimeout = 5 * time.Second

// NewHealth makes the shell for a provider whose inventory lists devices.
func NewHealth(p device.Provider, devices []*weftv1.Device, r *Reports, changed func(ctx context.Context)) *Health {
	h := &Health{device: p, index: map[string]uint32{}, reports: r, changed: changed}
	for i, d := range devices {
		h.index[d.GetUuid()] = uint32(i)
	}
	return h
}

// Name for logs.
func (h *Health) Name() string { return "node-agent health" }

// Wakes implements run.Shell.
func (h *Health) Wakes() []<-chan struct{} { return []<-chan struct{}{h.device.Wake()} }

// Step implements run.Shell.
func (h *Health) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, deviceTimeout)
	defer cancel()
	events, err := h.device.Events(ctx, now)
	for _, e := range events {
		slog.Warn("device", "uuid", e.UUID, "event", e.Kind.String(), "xid", e.XID, "reason", e.Reason)
		switch e.Kind {
		case device.Failed, device.Recovered:
			i, ok := h.index[e.UUID]
			if !ok {
				continue
			}
			reason := e.Reason
			if e.XID != 0 {
				reason = fmt.Sprintf("%s (XID %d)", reason, e.XID)
			}
			if err := h.reports.say(now, func(m *weftv1.Report) {
				m.SetDeviceFault(weftv1.DeviceFault_builder{
					Device: &i, Uuid: &e.UUID, Reason: &reason, Recovered: new(e.Kind == device.Recovered),
				}.Build())
			}); err != nil {
				return false, time.Time{}, err
			}
		case device.Changed:
			h.changed(ctx)
		}
	}
	if err != nil {
		return false, time.Time{}, fmt.Errorf("device events: %w", err)
	}
	return false, time.Time{}, nil
}

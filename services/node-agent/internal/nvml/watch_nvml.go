//go:build cgo && linux && !nonvml

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// waitMillis is how long one wait for an event lasts.
const waitMillis = 1000

// watch starts the wait for one device's events. Each device has an event set of its own: with a shared one a lost
// device could not be told from its neighbours.
func (r *real) watch(uuid string, c *card) answer {
	if c.watched {
		return answer{}
	}
	mask, ret := c.GetSupportedEventTypes()
	if ret != nvml.SUCCESS {
		return failed("event types", ret)
	}
	mask &= nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError
	if mask == 0 {
		return answer{}
	}
	set, ret := r.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return failed("event set", ret)
	}
	if ret := c.RegisterEvents(mask, set); ret != nvml.SUCCESS {
		_ = set.Free()
		return failed("register events", ret)
	}
	c.watched = true
	go r.wait(uuid, set)
	return answer{}
}

func (r *real) wait(uuid string, set nvml.EventSet) {
	for {
		e, ret := set.Wait(waitMillis)
		switch ret {
		case nvml.ERROR_TIMEOUT:
		case nvml.SUCCESS:
			a := answer{UUID: uuid}
			if e.EventType == nvml.EventTypeXidCriticalError {
				a.XID = uint32(e.EventData)
			} else {
				a.XID = 48 // the driver's number for a double-bit error
			}
			r.sink(a)
		default:
			// The wait ends with the device: the code tells whether it is the device's fault.
			a := failed("wait", ret)
			a.UUID = uuid
			r.sink(a)
			_ = set.Free()
			return
		}
	}
}

package device

import (
	"math"
	"time"

	"github.com/weft-fabric/weft/libs/metric"
)

// load makes one simulated device's measurements. Levels follow whether the device is in use, with the time constants
// of the real thing; counters integrate the levels between calls.
type load struct {
	profile *Profile
	seed    uint64
	busy    bool

	last     time.Time // zero until the first reading
	due      [3]time.Time
	memory   float64 // bytes in use
	celsius  float64
	watts    float64
	energy   float64 // joules
	pcie     [2]float64
	nvlink   [2]float64
	powerCap float64 // seconds
}

const (
	stepPeriod   = 800 * time.Millisecond // one training step of the pretended job
	driverMemory = 4 << 20
	fillSeconds  = 3.0  // to allocate what the pretended job needs
	heatSeconds  = 25.0 // time constant of the heat sink
)

// read advances the device to now and returns what is due.
func (l *load) read(now time.Time) metric.Values {
	dt := 0.0
	if l.last.IsZero() {
		l.memory, l.celsius, l.watts = driverMemory, 30+4*noise(l.seed, 1, 0), l.profile.IdleWatts
		l.energy = 1e6 * noise(l.seed, 2, 0)
	} else if dt = now.Sub(l.last).Seconds(); dt < 0 {
		dt = 0
	}
	l.last = now
	sm, tensor, dram := l.advance(now, dt)

	var v metric.Values
	due := func(c metric.Class) bool {
		if now.Before(l.due[c]) {
			return false
		}
		l.due[c] = now.Truncate(c.Every()).Add(c.Every())
		return true
	}
	if due(metric.Fast) {
		l.fast(&v, sm, tensor, dram)
	}
	if due(metric.Level) {
		l.level(&v, sm)
	}
	if due(metric.Slow) {
		l.slow(&v)
	}
	return v
}

// advance moves the physics on by dt seconds and returns the activity at now.
func (l *load) advance(now time.Time, dt float64) (sm, tensor, dram float64) {
	p := l.profile
	tick := now.UnixNano() / int64(100*time.Millisecond)
	if l.busy {
		// Each step ends with a trough, in which the ranks exchange gradients and the loader feeds the next batch.
		phase := float64(now.UnixNano()%int64(stepPeriod)) / float64(stepPeriod)
		sm = 0.86 + 0.1*noise(l.seed, 3, tick)
		if phase > 0.85 {
			sm *= 0.35
		}
		tensor, dram = sm*0.58, sm*0.52
	}
	target := float64(driverMemory)
	if l.busy {
		target = float64(p.MemoryBytes) * (0.72 + 0.16*noise(l.seed, 4, 0))
	}
	if fill := dt / fillSeconds * float64(p.MemoryBytes); l.memory < target {
		l.memory = math.Min(target, l.memory+fill)
	} else {
		l.memory = target
	}
	l.energy += l.watts * dt
	l.watts = p.IdleWatts + 2*noise(l.seed, 5, tick)
	if l.busy {
		l.watts += (p.MaxWatts - p.IdleWatts) * (0.2 + 0.8*sm)
	}
	if l.watts > p.MaxWatts {
		l.watts = p.MaxWatts
		l.powerCap += dt
	}
	hot := 32 + 42*(l.watts-p.IdleWatts)/(p.MaxWatts-p.IdleWatts)
	l.celsius += (hot - l.celsius) * (1 - math.Exp(-dt/heatSeconds))
	if l.busy {
		l.pcie[0] += 0.4e9 * sm * dt
		l.pcie[1] += 1.8e9 * sm * dt
		if p.clique(0) != 0 {
			for i := range l.nvlink {
				l.nvlink[i] += float64(p.Links) * 9e9 * (1 - 0.7*sm) * dt
			}
		}
	} else {
		l.pcie[0] += 2e3 * dt
		l.pcie[1] += 2e3 * dt
	}
	return sm, tensor, dram
}

func (l *load) fast(v *metric.Values, sm, tensor, dram float64) {
	v.Set(metric.MemoryUsage, math.Floor(l.memory))
	v.Set(metric.Power, l.watts)
	v.Set(metric.Energy, l.energy)
	v.Set(metric.PCIeTransmit, math.Floor(l.pcie[0]))
	v.Set(metric.PCIeReceive, math.Floor(l.pcie[1]))
	v.Set(metric.ThrottleSWPower, l.powerCap)
	v.Set(metric.ThrottleHWThermal, 0)
	v.Set(metric.ThrottleHWPowerBrake, 0)
	v.Set(metric.ThrottleSWThermal, 0)
	if l.profile.clique(0) != 0 {
		v.Set(metric.NVLinkTransmit, math.Floor(l.nvlink[0]))
		v.Set(metric.NVLinkReceive, math.Floor(l.nvlink[1]))
	}
	if l.profile.Activity {
		v.Set(metric.SMActive, sm)
		v.Set(metric.SMOccupancy, sm*0.45)
		v.Set(metric.TensorActive, tensor)
		v.Set(metric.DRAMActive, dram)
		v.Set(metric.GraphicsActive, math.Min(1, sm*1.05))
	}
}

func (l *load) level(v *metric.Values, sm float64) {
	util, clock := 0.0, 0.15
	if l.busy {
		util, clock = math.Min(1, 0.9+sm/8), 0.96
	}
	v.Set(metric.Utilization, util)
	v.Set(metric.Temperature, math.Round(l.celsius))
	v.Set(metric.MemoryTemperature, math.Round(l.celsius+6))
	v.Set(metric.SMClock, math.Round(l.profile.SMClock*clock/1e6)*1e6)
	v.Set(metric.MemoryClock, l.profile.MemoryClock)
}

func (l *load) slow(v *metric.Values) {
	v.Set(metric.MemoryLimit, float64(l.profile.MemoryBytes))
	v.Set(metric.PowerLimit, l.profile.MaxWatts)
	v.Set(metric.PCIeReplays, 0)
	v.Set(metric.ErrorsCorrected, 0)
	v.Set(metric.ErrorsUncorrected, 0)
	v.Set(metric.RowsRemapPending, 0)
	v.Set(metric.RowsRemapFailed, 0)
	if l.profile.clique(0) != 0 {
		v.Set(metric.NVLinkLinks, float64(l.profile.Links))
	}
}

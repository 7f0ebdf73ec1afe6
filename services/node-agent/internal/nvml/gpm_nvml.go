//go:build cgo && linux && !nonvml

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/weft-fabric/weft/libs/metric"
)

// gpm is the state of one device's activity counters: pairs of samples, of which the older is kept for the next pair.
type gpm struct {
	asked     bool
	supported bool
	last      nvml.GpmSample
	next      nvml.GpmSample
	primed    bool
}

var activities = []struct {
	id     nvml.GpmMetricId
	metric metric.ID
}{
	{nvml.GPM_METRIC_GRAPHICS_UTIL, metric.GraphicsActive},
	{nvml.GPM_METRIC_SM_UTIL, metric.SMActive},
	{nvml.GPM_METRIC_SM_OCCUPANCY, metric.SMOccupancy},
	{nvml.GPM_METRIC_ANY_TENSOR_UTIL, metric.TensorActive},
	{nvml.GPM_METRIC_DRAM_BW_UTIL, metric.DRAMActive},
}

// activity reads the activity since the last call. Two samples must be more than 100 ms apart, so it is measured at
// every second fast tick by default: the parent asks for it with the fast class, and a pair too close yields nothing.
func (r *real) activity(c *card, put func(metric.ID, float64)) {
	g := &c.gpm
	if !g.asked {
		g.asked = true
		g.supported = r.gpmSupported(c)
	}
	if !g.supported || g.next.Get(c.Device) != nvml.SUCCESS {
		return
	}
	if !g.primed {
		g.last, g.next, g.primed = g.next, g.last, true
		return
	}
	get := nvml.GpmMetricsGetType{NumMetrics: uint32(len(activities)), Sample1: g.last, Sample2: g.next}
	for i, a := range activities {
		get.Metrics[i].MetricId = uint32(a.id)
	}
	if r.lib.GpmMetricsGet(&get) != nvml.SUCCESS {
		return // too close: keep the older sample, so that the next pair is further apart
	}
	for i, a := range activities {
		if m := get.Metrics[i]; nvml.Return(m.NvmlReturn) == nvml.SUCCESS && m.Value >= 0 && m.Value <= 100.5 {
			put(a.metric, min(m.Value/100, 1))
		}
	}
	g.last, g.next = g.next, g.last
}

func (r *real) gpmSupported(c *card) bool {
	for _, s := range []string{"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"} {
		if !r.has(s) {
			return false
		}
	}
	if s, ret := c.GpmQueryDeviceSupport(); ret != nvml.SUCCESS || s.IsSupportedDevice == 0 {
		return false
	}
	var ret1, ret2 nvml.Return
	c.gpm.last, ret1 = r.lib.GpmSampleAlloc()
	c.gpm.next, ret2 = r.lib.GpmSampleAlloc()
	return ret1 == nvml.SUCCESS && ret2 == nvml.SUCCESS
}

package metric

import (
	"strings"
	"time"
)

// ID names one metric of the catalogue. The numbers are for this process only; the wire carries names.
type ID uint8

// Kind says how values of a metric relate to each other.
type Kind uint8

// The kinds of metrics.
const (
	Gauge   Kind = iota // a level at an instant
	Counter             // a total since some start; it only falls when its source restarted
)

// Class is the cadence at which a metric can truly change; reading it faster only repeats numbers.
type Class uint8

// The cadence classes.
const (
	Fast  Class = iota // every tick, 100 ms by default
	Level              // every second
	Slow               // every 30 seconds
)

// Every returns the interval of a class at the default cadence.
func (c Class) Every() time.Duration {
	switch c {
	case Fast:
		return 100 * time.Millisecond
	case Level:
		return time.Second
	default:
		return 30 * time.Second
	}
}

// Scope says what a metric is measured on.
type Scope uint8

// The scopes.
const (
	Device Scope = iota // one accelerator
	Host                // the node itself
)

// The metrics of an accelerator.
const (
	Utilization ID = iota
	SMActive
	SMOccupancy
	TensorActive
	DRAMActive
	GraphicsActive
	MemoryUsage
	MemoryLimit
	Power
	PowerLimit
	Energy
	Temperature
	MemoryTemperature
	SMClock
	MemoryClock
	PCIeTransmit
	PCIeReceive
	NVLinkTransmit
	NVLinkReceive
	NVLinkLinks
	PCIeReplays
	ThrottleSWPower
	ThrottleHWThermal
	ThrottleHWPowerBrake
	ThrottleSWThermal
	ErrorsCorrected
	ErrorsUncorrected
	RowsRemapPending
	RowsRemapFailed
	RecoveryAction
	deviceEnd
)

// The metrics of a node.
const (
	HostCPUs ID = iota + deviceEnd
	HostCPUBusy
	HostCPUIOWait
	HostLoad1
	HostMemoryLimit
	HostMemoryAvailable
	HostNetworkReceive
	HostNetworkTransmit
	HostDiskRead
	HostDiskWrite
	HostDiskBusy
	HostPSICPUSome
	HostPSIIOFull
	HostPSIMemoryFull
	AgentCPU
	AgentSampleErrors
	AgentBatchesDropped
	end
)

// DeviceMetrics is how many metrics of an accelerator there are; their IDs are 0 .. DeviceMetrics-1.
const DeviceMetrics = int(deviceEnd)

// Count is how many metrics there are in all; their IDs are 0 .. Count-1.
const Count = int(end)

// Def describes one metric.
type Def struct {
	ID    ID
	Name  string // on /metrics and on the wire
	OTel  string // OpenTelemetry name and attributes; our own where the conventions have none
	Unit  string // UCUM
	Kind  Kind
	Class Class
	Scope Scope
	// Scale is the resolution on the wire: value = integer × scale.
	Scale float64
	// Rollup says whether telemetry keeps 15 minutes of one-second rollups of it.
	Rollup bool
	NVML   string // field id or call; empty for host metrics
	DCGM   string // field ids
	Help   string
}

const (
	ratio  = 1e-4
	millis = 1e-3
	micros = 1e-6
	whole  = 1
)

var catalogue = [Count]Def{
	Utilization: {Name: "weft_gpu_utilization_ratio", OTel: "hw.gpu.utilization{hw.gpu.task=general}", Unit: "1", Class: Level, Scale: ratio, Rollup: true,
		NVML: "nvmlDeviceGetUtilizationRates.gpu", DCGM: "203", Help: "Share of time with any kernel running: says awake, not busy."},
	SMActive: {Name: "weft_gpu_sm_active_ratio", OTel: "gpu.sm.active", Unit: "1", Class: Fast, Scale: ratio, Rollup: true,
		NVML: "GPM 2", DCGM: "1002", Help: "Share of SM time with a warp resident."},
	SMOccupancy: {Name: "weft_gpu_sm_occupancy_ratio", OTel: "gpu.sm.occupancy", Unit: "1", Class: Fast, Scale: ratio,
		NVML: "GPM 3", DCGM: "1003", Help: "Resident warps as a share of what the SMs can hold."},
	TensorActive: {Name: "weft_gpu_tensor_active_ratio", OTel: "gpu.tensor.active", Unit: "1", Class: Fast, Scale: ratio, Rollup: true,
		NVML: "GPM 5", DCGM: "1004", Help: "Share of cycles with the tensor pipes busy: the main sign of training."},
	DRAMActive: {Name: "weft_gpu_dram_active_ratio", OTel: "gpu.dram.active", Unit: "1", Class: Fast, Scale: ratio, Rollup: true,
		NVML: "GPM 10", DCGM: "1005", Help: "Share of device memory bandwidth in use."},
	GraphicsActive: {Name: "weft_gpu_graphics_active_ratio", OTel: "gpu.graphics.active", Unit: "1", Class: Fast, Scale: ratio,
		NVML: "GPM 1", DCGM: "1001", Help: "Share of time with the compute engine busy."},
	MemoryUsage: {Name: "weft_gpu_memory_usage_bytes", OTel: "hw.gpu.memory.usage", Unit: "By", Class: Fast, Scale: whole, Rollup: true,
		NVML: "nvmlDeviceGetMemoryInfo_v2.used", DCGM: "252", Help: "Device memory in use, without what the driver reserves."},
	MemoryLimit: {Name: "weft_gpu_memory_limit_bytes", OTel: "hw.gpu.memory.limit", Unit: "By", Class: Slow, Scale: whole,
		NVML: "nvmlDeviceGetMemoryInfo_v2.total", DCGM: "250", Help: "Device memory in all."},
	Power: {Name: "weft_gpu_power_watts", OTel: "hw.power", Unit: "W", Class: Fast, Scale: millis, Rollup: true,
		NVML: "field 186", DCGM: "155", Help: "Power drawn at an instant."},
	PowerLimit: {Name: "weft_gpu_power_limit_watts", OTel: "hw.power.limit", Unit: "W", Class: Slow, Scale: millis,
		NVML: "nvmlDeviceGetEnforcedPowerLimit", DCGM: "160", Help: "Power limit in force."},
	Energy: {Name: "weft_gpu_energy_joules_total", OTel: "hw.energy", Unit: "J", Kind: Counter, Class: Fast, Scale: millis,
		NVML: "field 83", DCGM: "156", Help: "Energy used since the driver was loaded."},
	Temperature: {Name: "weft_gpu_temperature_celsius", OTel: "hw.temperature", Unit: "Cel", Class: Level, Scale: whole, Rollup: true,
		NVML: "nvmlDeviceGetTemperature", DCGM: "150", Help: "Temperature of the die."},
	MemoryTemperature: {Name: "weft_gpu_memory_temperature_celsius", OTel: "hw.temperature{hw.sensor_location=memory}", Unit: "Cel", Class: Level, Scale: whole,
		NVML: "field 82", DCGM: "140", Help: "Temperature of the device memory."},
	SMClock: {Name: "weft_gpu_sm_clock_hertz", OTel: "gpu.sm.clock", Unit: "Hz", Class: Level, Scale: 1e6,
		NVML: "nvmlDeviceGetClockInfo(SM)", DCGM: "100", Help: "Clock of the SMs."},
	MemoryClock: {Name: "weft_gpu_memory_clock_hertz", OTel: "gpu.memory.clock", Unit: "Hz", Class: Level, Scale: 1e6,
		NVML: "nvmlDeviceGetClockInfo(MEM)", DCGM: "101", Help: "Clock of the device memory."},
	PCIeTransmit: {Name: "weft_gpu_pcie_transmit_bytes_total", OTel: "hw.gpu.io{link=pcie,network.io.direction=transmit}", Unit: "By", Kind: Counter, Class: Fast, Scale: whole,
		NVML: "field 197", DCGM: "1009, 1091", Help: "Bytes from the device over PCIe, headers included."},
	PCIeReceive: {Name: "weft_gpu_pcie_receive_bytes_total", OTel: "hw.gpu.io{link=pcie,network.io.direction=receive}", Unit: "By", Kind: Counter, Class: Fast, Scale: whole,
		NVML: "field 198", DCGM: "1010, 1092", Help: "Bytes to the device over PCIe, headers included."},
	NVLinkTransmit: {Name: "weft_gpu_nvlink_transmit_bytes_total", OTel: "hw.gpu.io{link=nvlink,network.io.direction=transmit}", Unit: "By", Kind: Counter, Class: Fast, Scale: 1024,
		NVML: "field 138, scope all links", DCGM: "1011, 449", Help: "Data bytes from the device over NVLink."},
	NVLinkReceive: {Name: "weft_gpu_nvlink_receive_bytes_total", OTel: "hw.gpu.io{link=nvlink,network.io.direction=receive}", Unit: "By", Kind: Counter, Class: Fast, Scale: 1024,
		NVML: "field 139, scope all links", DCGM: "1012, 449", Help: "Data bytes to the device over NVLink."},
	NVLinkLinks: {Name: "weft_gpu_nvlink_active_links", OTel: "gpu.nvlink.links{state=active}", Unit: "{link}", Class: Slow, Scale: whole,
		NVML: "nvmlDeviceGetNvLinkState", DCGM: "", Help: "NVLink links that are up."},
	PCIeReplays: {Name: "weft_gpu_pcie_replays_total", OTel: "gpu.pcie.replays", Unit: "{replay}", Kind: Counter, Class: Slow, Scale: whole,
		NVML: "field 94", DCGM: "202", Help: "PCIe packets sent again."},
	ThrottleSWPower: {Name: "weft_gpu_clock_event_power_cap_seconds_total", OTel: "gpu.clock.event.time{reason=sw_power_cap}", Unit: "s", Kind: Counter, Class: Fast, Scale: micros,
		NVML: "field 74", DCGM: "1420", Help: "Time with clocks held down by the power cap; normal at full load."},
	ThrottleHWThermal: {Name: "weft_gpu_clock_event_hw_thermal_seconds_total", OTel: "gpu.clock.event.time{reason=hw_thermal}", Unit: "s", Kind: Counter, Class: Fast, Scale: micros,
		NVML: "field 270", DCGM: "1423", Help: "Time with clocks held down by the hardware because of heat."},
	ThrottleHWPowerBrake: {Name: "weft_gpu_clock_event_power_brake_seconds_total", OTel: "gpu.clock.event.time{reason=hw_power_brake}", Unit: "s", Kind: Counter, Class: Fast, Scale: micros,
		NVML: "field 271", DCGM: "1424", Help: "Time with clocks held down by the server's power brake."},
	ThrottleSWThermal: {Name: "weft_gpu_clock_event_sw_thermal_seconds_total", OTel: "gpu.clock.event.time{reason=sw_thermal}", Unit: "s", Kind: Counter, Class: Fast, Scale: micros,
		NVML: "field 269", DCGM: "1422", Help: "Time with clocks held down by the driver because of heat."},
	ErrorsCorrected: {Name: "weft_gpu_errors_corrected_total", OTel: "hw.errors{error.type=corrected}", Unit: "{error}", Kind: Counter, Class: Slow, Scale: whole,
		NVML: "field 3", DCGM: "310", Help: "Memory errors corrected since the driver was loaded."},
	ErrorsUncorrected: {Name: "weft_gpu_errors_uncorrected_total", OTel: "hw.errors{error.type=uncorrected}", Unit: "{error}", Kind: Counter, Class: Slow, Scale: whole,
		NVML: "field 4", DCGM: "311", Help: "Memory errors not corrected since the driver was loaded."},
	RowsRemapPending: {Name: "weft_gpu_rows_remap_pending", OTel: "gpu.rows.remapped.pending", Unit: "1", Class: Slow, Scale: whole,
		NVML: "field 144", DCGM: "396", Help: "1 if a row remap waits for a reset."},
	RowsRemapFailed: {Name: "weft_gpu_rows_remap_failed", OTel: "gpu.rows.remapped.failure", Unit: "1", Class: Slow, Scale: whole,
		NVML: "field 145", DCGM: "395", Help: "1 if a row remap failed: the card is to be replaced."},
	RecoveryAction: {Name: "weft_gpu_recovery_action", OTel: "gpu.recovery.action", Unit: "1", Class: Slow, Scale: whole,
		NVML: "field 230", DCGM: "", Help: "What the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset, 7 system reboot."},

	HostCPUs: {Name: "weft_host_cpus", OTel: "system.cpu.logical.count", Unit: "{cpu}", Class: Slow, Scope: Host, Scale: whole,
		Help: "Logical processors."},
	HostCPUBusy: {Name: "weft_host_cpu_busy_seconds_total", OTel: "system.cpu.time", Unit: "s", Kind: Counter, Class: Level, Scope: Host, Scale: 1e-2,
		Help: "Processor time spent neither idle nor waiting for I/O, over all processors."},
	HostCPUIOWait: {Name: "weft_host_cpu_iowait_seconds_total", OTel: "system.cpu.time{cpu.mode=iowait}", Unit: "s", Kind: Counter, Class: Level, Scope: Host, Scale: 1e-2,
		Help: "Processor time spent idle while I/O was outstanding, over all processors."},
	HostLoad1: {Name: "weft_host_load1", OTel: "system.cpu.load_average.1m", Unit: "{thread}", Class: Level, Scope: Host, Scale: 1e-2,
		Help: "Load average over one minute."},
	HostMemoryLimit: {Name: "weft_host_memory_limit_bytes", OTel: "system.memory.limit", Unit: "By", Class: Slow, Scope: Host, Scale: 1024,
		Help: "Main memory in all."},
	HostMemoryAvailable: {Name: "weft_host_memory_available_bytes", OTel: "system.memory.linux.available", Unit: "By", Class: Level, Scope: Host, Scale: 1024,
		Help: "Main memory that new work can have without swapping."},
	HostNetworkReceive: {Name: "weft_host_network_receive_bytes_total", OTel: "system.network.io{network.io.direction=receive}", Unit: "By", Kind: Counter, Class: Level, Scope: Host, Scale: whole,
		Help: "Bytes received on all interfaces but loopback and those that only stand for others."},
	HostNetworkTransmit: {Name: "weft_host_network_transmit_bytes_total", OTel: "system.network.io{network.io.direction=transmit}", Unit: "By", Kind: Counter, Class: Level, Scope: Host, Scale: whole,
		Help: "Bytes sent on all interfaces but loopback and those that only stand for others."},
	HostDiskRead: {Name: "weft_host_disk_read_bytes_total", OTel: "system.disk.io{disk.io.direction=read}", Unit: "By", Kind: Counter, Class: Level, Scope: Host, Scale: 512,
		Help: "Bytes read from all whole disks."},
	HostDiskWrite: {Name: "weft_host_disk_write_bytes_total", OTel: "system.disk.io{disk.io.direction=write}", Unit: "By", Kind: Counter, Class: Level, Scope: Host, Scale: 512,
		Help: "Bytes written to all whole disks."},
	HostDiskBusy: {Name: "weft_host_disk_busy_seconds_total", OTel: "system.disk.io_time", Unit: "s", Kind: Counter, Class: Level, Scope: Host, Scale: millis,
		Help: "Time with I/O outstanding, summed over all whole disks."},
	HostPSICPUSome: {Name: "weft_host_psi_cpu_some_ratio", OTel: "system.psi{resource=cpu,stall=some}", Unit: "1", Class: Level, Scope: Host, Scale: ratio,
		Help: "Share of the last 10 s in which some task waited for a processor."},
	HostPSIIOFull: {Name: "weft_host_psi_io_full_ratio", OTel: "system.psi{resource=io,stall=full}", Unit: "1", Class: Level, Scope: Host, Scale: ratio,
		Help: "Share of the last 10 s in which every runnable task waited for I/O."},
	HostPSIMemoryFull: {Name: "weft_host_psi_memory_full_ratio", OTel: "system.psi{resource=memory,stall=full}", Unit: "1", Class: Level, Scope: Host, Scale: ratio,
		Help: "Share of the last 10 s in which every runnable task waited for memory."},
	AgentCPU: {Name: "weft_agent_cpu_seconds_total", OTel: "process.cpu.time", Unit: "s", Kind: Counter, Class: Level, Scope: Host, Scale: 1e-2,
		Help: "Processor time used by the process that the agent is part of, and by its helpers."},
	AgentSampleErrors: {Name: "weft_agent_sample_errors_total", OTel: "weft.agent.sample.errors", Unit: "{error}", Kind: Counter, Class: Level, Scope: Host, Scale: whole,
		Help: "Reads of the devices or of the host that failed since the agent started."},
	AgentBatchesDropped: {Name: "weft_agent_batches_dropped_total", OTel: "weft.agent.batches.dropped", Unit: "{batch}", Kind: Counter, Class: Level, Scope: Host, Scale: whole,
		Help: "Batches that the agent gave up sending since it started."},
}

var byName = func() map[string]ID {
	m := make(map[string]ID, 2*Count)
	for i := range catalogue {
		d := &catalogue[i]
		d.ID = ID(i)
		m[d.Name] = d.ID
		m[strings.TrimPrefix(d.Name, "weft_")] = d.ID
	}
	return m
}()

// Of returns the definition of a metric.
func Of(id ID) Def { return catalogue[id] }

// All returns every definition, by ID.
func All() []Def { return append([]Def(nil), catalogue[:]...) }

// ByName finds a metric by its name on /metrics; recorded signals may leave the prefix weft_ out.
func ByName(name string) (ID, bool) {
	id, ok := byName[name]
	return id, ok
}

// Values holds at most one value for each metric of an accelerator or of a node. The zero Values holds none.
type Values struct {
	have uint64
	v    [Count]float64
}

// Set records a value.
func (x *Values) Set(id ID, v float64) { x.v[id], x.have = v, x.have|1<<id }

// Clear forgets a value.
func (x *Values) Clear(id ID) { x.have &^= 1 << id }

// Get returns a value; ok is false if it was not measured.
func (x *Values) Get(id ID) (v float64, ok bool) {
	if x.have&(1<<id) == 0 {
		return 0, false
	}
	return x.v[id], true
}

// Len returns how many values there are.
func (x *Values) Len() int {
	n := 0
	for m := x.have; m != 0; m &= m - 1 {
		n++
	}
	return n
}

//go:build cgo && linux && !nonvml

package nvml

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/weft-fabric/weft/libs/metric"
)

// Built says whether the library's adapter is in this binary.
const Built = true

// libraryEnv names the library's file to the child, for tests and for unusual installations.
const libraryEnv = "WEFT_NVML_LIBRARY"

// real calls go-nvml. All but the waits for events happen on serve's goroutine.
type real struct {
	lib  nvml.Interface
	sink func(answer)

	mu      sync.Mutex
	symbols map[string]bool
	devices map[string]*card
	order   []string
}

// card is one device that identify has seen.
type card struct {
	nvml.Device
	watched bool
	fields  map[uint32]bool // fields that this device refused; asking again only costs time
	gpm     gpm
}

func newLibrary() library {
	var opts []nvml.LibraryOption
	if path := os.Getenv(libraryEnv); path != "" {
		opts = append(opts, nvml.WithLibraryPath(path))
	}
	return &real{lib: nvml.New(opts...), symbols: map[string]bool{}, devices: map[string]*card{}}
}

func (r *real) events(sink func(answer)) { r.sink = sink }

// has says whether the installed library has a symbol. Calling one that it lacks ends the process at once.
func (r *real) has(symbol string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	ok, known := r.symbols[symbol]
	if !known {
		ok = r.lib.Extensions().LookupSymbol(symbol) == nil
		r.symbols[symbol] = ok
	}
	return ok
}

func failed(op string, ret nvml.Return) answer {
	code := codeOther
	switch ret {
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_FUNCTION_NOT_FOUND:
		code = codeNoLibrary
	case nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNINITIALIZED:
		code = codeDriver
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_NOT_FOUND, nvml.ERROR_UNKNOWN, nvml.ERROR_IRQ_ISSUE, nvml.ERROR_RESET_REQUIRED:
		code = codeLost
	}
	return answer{Code: code, Error: fmt.Sprintf("%s: %s", op, name(ret))}
}

// name is ret in words; before the library is loaded it must not be asked for them.
func name(ret nvml.Return) string {
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return "library not found"
	}
	return fmt.Sprintf("%s (%d)", ret.Error(), int(ret))
}

func (r *real) do(q request) answer {
	switch q.Op {
	case opOpen:
		return r.open()
	case opCount:
		return r.count()
	case opIdentify:
		return r.identify(q.Index)
	}
	c := r.devices[q.UUID]
	if c == nil {
		return answer{Code: codeOther, Error: q.Op + ": no such device"}
	}
	switch q.Op {
	case opPeers:
		return r.peers(q.UUID, c)
	case opSample:
		return r.sample(c, q.Class)
	case opProbe:
		return r.probe(c)
	case opWatch:
		return r.watch(q.UUID, c)
	}
	return answer{Code: codeOther, Error: "unknown operation " + q.Op}
}

func (r *real) open() answer {
	if ret := r.lib.Init(); ret != nvml.SUCCESS {
		return failed("init", ret)
	}
	a := r.count()
	if a.Error != "" {
		return a
	}
	driver, ret := r.lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return failed("driver version", ret)
	}
	a.Driver = driver
	return a
}

func (r *real) count() answer {
	n, ret := r.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return failed("count", ret)
	}
	return answer{Count: n}
}

func (r *real) identify(index int) answer {
	d, ret := r.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return failed("handle", ret)
	}
	var id identity
	if id.UUID, ret = d.GetUUID(); ret != nvml.SUCCESS {
		return failed("uuid", ret)
	}
	bus, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		return failed("pci", ret)
	}
	id.PCI = text(bus.BusId[:])
	if id.Minor, ret = d.GetMinorNumber(); ret != nvml.SUCCESS {
		return failed("minor", ret)
	}
	if id.Name, ret = d.GetName(); ret != nvml.SUCCESS {
		return failed("name", ret)
	}
	total, _, ret := r.memory(d)
	if ret != nvml.SUCCESS {
		return failed("memory", ret)
	}
	id.Memory = total
	if r.has("nvmlDeviceGetMigMode") {
		_, _, ret := d.GetMigMode()
		id.MIG = ret == nvml.SUCCESS
	}
	if c := r.devices[id.UUID]; c != nil {
		c.Device = d
	} else {
		r.devices[id.UUID] = &card{Device: d, fields: map[uint32]bool{}}
		r.order = append(r.order, id.UUID)
	}
	return answer{Identity: &id}
}

func text(b []int8) string {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	return string(out)
}

// memory returns all of it and what is in use, the driver's own reserve left out where the library tells it apart.
func (r *real) memory(d nvml.Device) (total, used uint64, ret nvml.Return) {
	if r.has("nvmlDeviceGetMemoryInfo_v2") {
		m, ret := d.GetMemoryInfo_v2()
		if ret != nvml.ERROR_NOT_SUPPORTED && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			return m.Total, m.Used, ret
		}
	}
	m, ret := d.GetMemoryInfo()
	return m.Total, m.Used, ret
}

func (r *real) peers(uuid string, c *card) answer {
	var a answer
	if !r.has("nvmlDeviceGetP2PStatus") {
		return a
	}
	for _, other := range r.order {
		if other == uuid {
			continue
		}
		if s, ret := c.GetP2PStatus(r.devices[other].Device, nvml.P2P_CAPS_INDEX_NVLINK); ret == nvml.SUCCESS && s == nvml.P2P_STATUS_OK {
			a.Peers = append(a.Peers, other)
		}
	}
	return a
}

// field is one entry of the batch that is read with one call.
type field struct {
	id     uint32
	scope  uint32
	metric metric.ID
	factor float64
}

const allLinks = math.MaxUint32

// Fields by cadence class; numbers as in nvml.h.
var fields = [3][]field{
	metric.Fast: {
		{186, 0, metric.Power, 1e-3},
		{83, 0, metric.Energy, 1e-3},
		{197, 0, metric.PCIeTransmit, 1},
		{198, 0, metric.PCIeReceive, 1},
		{138, allLinks, metric.NVLinkTransmit, 1024},
		{139, allLinks, metric.NVLinkReceive, 1024},
		{74, 0, metric.ThrottleSWPower, 1e-9},
		{269, 0, metric.ThrottleSWThermal, 1e-9},
		{270, 0, metric.ThrottleHWThermal, 1e-9},
		{271, 0, metric.ThrottleHWPowerBrake, 1e-9},
	},
	metric.Level: {
		{82, 0, metric.MemoryTemperature, 1},
	},
	metric.Slow: {
		{94, 0, metric.PCIeReplays, 1},
		{3, 0, metric.ErrorsCorrected, 1},
		{4, 0, metric.ErrorsUncorrected, 1},
		{144, 0, metric.RowsRemapPending, 1},
		{145, 0, metric.RowsRemapFailed, 1},
		{recoveryField, 0, metric.RecoveryAction, 1},
	},
}

const recoveryField = 230

func (r *real) sample(c *card, classes uint8) answer {
	a := answer{Values: map[string]float64{}}
	put := func(id metric.ID, v float64) { a.Values[metric.Of(id).Name] = v }
	if classes&(1<<metric.Fast) != 0 {
		_, used, ret := r.memory(c.Device)
		if ret != nvml.SUCCESS {
			return failed("memory", ret)
		}
		put(metric.MemoryUsage, float64(used))
		r.activity(c, put)
	}
	if classes&(1<<metric.Level) != 0 {
		r.levels(c, put)
	}
	if classes&(1<<metric.Slow) != 0 {
		r.slow(c, put)
	}
	r.fieldValues(c, classes, put)
	return a
}

func (r *real) levels(c *card, put func(metric.ID, float64)) {
	if u, ret := c.GetUtilizationRates(); ret == nvml.SUCCESS && u.Gpu <= 100 {
		put(metric.Utilization, float64(u.Gpu)/100)
	}
	if t, ret := c.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		put(metric.Temperature, float64(t))
	}
	if f, ret := c.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		put(metric.SMClock, float64(f)*1e6)
	}
	if f, ret := c.GetClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
		put(metric.MemoryClock, float64(f)*1e6)
	}
}

func (r *real) slow(c *card, put func(metric.ID, float64)) {
	if total, _, ret := r.memory(c.Device); ret == nvml.SUCCESS {
		put(metric.MemoryLimit, float64(total))
	}
	if w, ret := c.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		put(metric.PowerLimit, float64(w)*1e-3)
	}
	if !r.has("nvmlDeviceGetNvLinkState") {
		return
	}
	links, any := 0, false
	for i := range nvml.NVLINK_MAX_LINKS {
		s, ret := c.GetNvLinkState(i)
		if ret != nvml.SUCCESS {
			break // links are numbered without gaps; past the last one the library refuses
		}
		any = true
		if s == nvml.FEATURE_ENABLED {
			links++
		}
	}
	if any {
		put(metric.NVLinkLinks, float64(links))
	}
}

// fieldValues reads every field of the classes that the device did not refuse before, with one call.
func (r *real) fieldValues(c *card, classes uint8, put func(metric.ID, float64)) {
	if !r.has("nvmlDeviceGetFieldValues") {
		return
	}
	var want []field
	var batch []nvml.FieldValue
	for class, list := range fields {
		if classes&(1<<class) == 0 {
			continue
		}
		for _, f := range list {
			if !c.fields[f.id] {
				want = append(want, f)
				batch = append(batch, nvml.FieldValue{FieldId: f.id, ScopeId: f.scope})
			}
		}
	}
	if len(batch) == 0 || c.GetFieldValues(batch) != nvml.SUCCESS {
		return
	}
	for i, f := range want {
		switch nvml.Return(batch[i].NvmlReturn) {
		case nvml.SUCCESS:
			if v, ok := number(batch[i]); ok {
				put(f.metric, v*f.factor)
			}
		case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT:
			c.fields[f.id] = true
		}
	}
}

// blank is where DCGM's marks for "no value" begin, which some drivers hand out as numbers.
const blank = 0x7ffffffffffffff0

func number(f nvml.FieldValue) (float64, bool) {
	u := binary.NativeEndian.Uint64(f.Value[:])
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_DOUBLE:
		v := math.Float64frombits(u)
		return v, !math.IsNaN(v) && !math.IsInf(v, 0)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(uint32(u)), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(uint32(u))), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return float64(uint16(u)), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(u), u < blank
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(u)), u < blank || int64(u) < 0
	}
	return 0, false
}

// probe is the proof that a device works: it answers, and the driver asks for no recovery.
func (r *real) probe(c *card) answer {
	if _, ret := c.GetUUID(); ret != nvml.SUCCESS {
		return failed("uuid", ret)
	}
	if _, _, ret := r.memory(c.Device); ret != nvml.SUCCESS {
		return failed("memory", ret)
	}
	if _, ret := c.GetTemperature(nvml.TEMPERATURE_GPU); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return failed("temperature", ret)
	}
	var a answer
	if r.has("nvmlDeviceGetFieldValues") {
		batch := []nvml.FieldValue{{FieldId: recoveryField}}
		if c.GetFieldValues(batch) == nvml.SUCCESS && nvml.Return(batch[0].NvmlReturn) == nvml.SUCCESS {
			if v, ok := number(batch[0]); ok {
				a.Action = new(uint32(v))
			}
		}
	}
	return a
}

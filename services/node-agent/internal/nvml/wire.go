package nvml

// Argument is what the child process is started with.
const Argument = "weft-nvml"

// request is one line from parent to child. Requests are answered in order, one at a time.
type request struct {
	ID    uint64 `json:"id"`
	Op    string `json:"op"`
	Index int    `json:"index,omitempty"` // opIdentify
	UUID  string `json:"uuid,omitempty"`  // opPeers, opSample, opProbe, opWatch
	Class uint8  `json:"class,omitempty"` // opSample: bit n asks for cadence class n
}

// The operations.
const (
	opOpen     = "open"     // load the library → Driver, Count
	opCount    = "count"    // → Count
	opIdentify = "identify" // device at Index → Identity
	opPeers    = "peers"    // → Peers: UUIDs joined with this one by NVLink
	opSample   = "sample"   // → Values
	opProbe    = "probe"    // → Action; an error unless the device answers everything that matters
	opWatch    = "watch"    // events of the device come as lines with ID 0 from now on
)

// answer is one line from child to parent. ID 0 is an event.
type answer struct {
	ID       uint64             `json:"id"`
	Error    string             `json:"error,omitempty"`
	Code     string             `json:"code,omitempty"` // one of the codes below, for programs
	Driver   string             `json:"driver,omitempty"`
	Count    int                `json:"count,omitempty"`
	Identity *identity          `json:"identity,omitempty"`
	Peers    []string           `json:"peers,omitempty"`
	Values   map[string]float64 `json:"values,omitempty"` // by name on /metrics
	Action   *uint32            `json:"action,omitempty"` // recovery action; absent = the driver cannot say
	UUID     string             `json:"uuid,omitempty"`
	XID      uint32             `json:"xid,omitempty"`
}

// Codes of errors.
const (
	codeNotBuilt  = "not-built"  // the adapter was left out of the build
	codeNoLibrary = "no-library" // nothing to load
	codeDriver    = "driver"     // the library cannot talk to the kernel driver
	codeLost      = "lost"       // the device is gone or does not work
	codeOther     = "other"
)

type identity struct {
	UUID   string `json:"uuid"`
	PCI    string `json:"pci"` // as the library writes it
	Minor  int    `json:"minor"`
	Name   string `json:"name"`
	Memory uint64 `json:"memory"`
	MIG    bool   `json:"mig"`
}

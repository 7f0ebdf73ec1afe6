package nvml

import "fmt"

// fatal, which follows NVIDIA's catalogue as of 2025-10-29, are the XIDs after which a device must not be used until it is proved to work again, with what they mean. All
// others are noted: most are faults of the program that ran, and the device works on.
var fatal = map[uint32]string{
	46: "GPU stopped processing", 48: "double-bit memory error", 62: "internal micro-controller halt", 64: "row remap failed",
	74: "NVLink error", 79: "fallen off the bus", 95: "uncontained memory error", 109: "context switch timeout",
	110: "security fault", 119: "GSP timeout", 120: "GSP error", 136: "link training failed", 140: "unrecovered memory error",
	143: "GPU initialization failed", 151: "key rotation error", 155: "NVLink software error", 156: "resource retirement",
	158: "GPU fatal timeout",
}

// reason is an XID for people.
func reason(xid uint32) string {
	if what := fatal[xid]; what != "" {
		return fmt.Sprintf("XID %d: %s", xid, what)
	}
	return fmt.Sprintf("XID %d", xid)
}

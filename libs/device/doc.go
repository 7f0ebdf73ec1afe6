// Package device is the port to a machine's accelerators: what there is, what it measures, what goes wrong with it.
//
// It owns the identity of a device (UUID, PCI address and minor number, never an index that a reboot may change), the
// order in which a machine lists its devices, and the simulator that stands in where there is no hardware. Adapters for
// real hardware live with the node agent. It never knows jobs, and never decides what a fault means for one.
package device

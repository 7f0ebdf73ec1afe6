// Package nvml is the adapter of device.Provider to NVIDIA's management library.
//
// The library is called in a child process, the same binary started again with another argument (see MaybeChild), one
// call at a time, each with a deadline. A call that does not return costs the child, which is killed and started anew
// without the device that it was about; a library that ends its process on a missing symbol ends the child, not the
// agent. The parent owns identity, order and health of the devices, and adds from sysfs what the library does not know.
//
// Built with cgo on Linux and without the tag nonvml the child calls go-nvml; otherwise it says what was left out.
package nvml

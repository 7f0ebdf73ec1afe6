package nodeagent

import (
	"context"

	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/services/node-agent/internal/nvml"
)

// OpenNVML opens this machine's NVIDIA devices; WEFT_NVML_LIBRARY may name the library. Where there are none to
// open it fails with device.ErrNoLibrary, in one line with the cure. Main must have called MaybeShim: the library runs
// in a child process of the same binary.
func OpenNVML(ctx context.Context) (device.Provider, error) {
	p, err := nvml.Open(ctx, nvml.Options{})
	if err != nil {
		return nil, err
	}
	return p, nil
}

package nodeagent

import (
	"os"

	"github.com/weft-fabric/weft/services/node-agent/internal/nvml"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// MaybeShim turns this process into a shim, or into the child that talks to the accelerator library, and never returns, if
// its arguments say so. Every binary that contains an agent, and every test binary that runs one, calls it before
// anything else in main: both are the same binary again.
func MaybeShim() {
	nvml.MaybeChild()
	if len(os.Args) >= 2 && os.Args[1] == shim.Arg {
		os.Exit(shim.Main(os.Args[2:]))
	}
}

package nodeagent

import (
	"os"

	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// MaybeShim turns this process into a shim, and never returns, if its arguments say so. Every binary that contains an
// agent, and every test binary that runs one, calls it before anything else in main: a shim is the same binary again.
func MaybeShim() {
	if len(os.Args) >= 2 && os.Args[1] == shim.Arg {
		os.Exit(shim.Main(os.Args[2:]))
	}
}

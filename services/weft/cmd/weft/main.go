// Command weft is the hand of the fabric: the command line, the all-in-one and the demo. The same binary is also the
// shim that parents ranks and the child that talks to NVML, told by its first argument.
package main

import (
	"os"

	nodeagent "github.com/weft-fabric/weft/services/node-agent"
	"github.com/weft-fabric/weft/services/weft/internal/bench"
	"github.com/weft-fabric/weft/services/weft/internal/cli"
)

func main() {
	nodeagent.MaybeShim()
	bench.MaybeRank()
	os.Exit(cli.Main(os.Args[1:]))
}

package nodeagent

import "os"

// MaybeShim turns this process into a shim, and never returns, if its arguments say so. Every binary that contains an
// agent, and every test binary that runs one, calls it before anything else in main: a shim is the same binary again.
func MaybeShim() {
	if len(os.Args) >= 2 && os.Args[1] == "weft-shim" {
		os.Exit(2)
	}
}

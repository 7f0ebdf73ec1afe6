package nodeagent

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/bus"
)

// Whatever a host is called, the node's name may stand in a subject, or there is none.
func TestANodeIsNamedAfterItsHost(t *testing.T) {
	for host, want := range map[string]string{
		"gpu-07": "gpu-07", "GPU-07.rack.example.org": "gpu-07", "my_host": "my-host", "-a-": "a", "…": "", "": "", ".local": "",
	} {
		if got := nodeName(host); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		if name := nodeName(rapid.String().Draw(t, "host")); name != "" && bus.CheckToken(name) != nil {
			t.Fatalf("%q is no name of a node", name)
		}
	})
}

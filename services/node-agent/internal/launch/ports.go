package launch

import (
	"errors"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// BusyPort says that a port that the placement fixed is in use by somebody else.
type BusyPort struct{ Port uint32 }

func (e *BusyPort) Error() string {
	return fmt.Sprintf("port %d, which the placement chose, is in use on this node", e.Port)
}

// CheckPorts finds out, just before ranks start, whether the ports are free that they will listen on: the rendezvous
// port where rank 0 runs, and every rank's own for TensorFlow. Finding it here costs no restart; a rank that found it
// would have failed by itself.
func CheckPorts(a *weftv1.AssignedAttempt, spec *weftv1.JobSpec) error {
	var ports []uint32
	for _, p := range a.GetPlacements() {
		switch {
		case spec.GetFramework() == weftv1.Framework_FRAMEWORK_TENSORFLOW:
			for i := range min(p.GetCount(), p.GetPortCount()) {
				ports = append(ports, p.GetPortBase()+i)
			}
		case p.GetFirstRank() == 0 && p.GetCount() > 0 && a.GetMasterPort() != 0:
			ports = append(ports, a.GetMasterPort())
		}
	}
	for _, port := range ports {
		// On every address, as rendezvous stores listen.
		l, err := net.Listen("tcp", ":"+strconv.FormatUint(uint64(port), 10))
		if errors.Is(err, unix.EADDRINUSE) {
			return &BusyPort{port}
		}
		if err != nil {
			return fmt.Errorf("port %d: %w", port, err)
		}
		_ = l.Close()
	}
	return nil
}

package cell

import (
	"fmt"
	"strconv"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Describe says a cause in words.
func Describe(c *weftv1.Cause) string {
	what := ""
	switch c.GetKind() {
	case weftv1.CauseKind_CAUSE_KIND_EXIT:
		what = fmt.Sprintf("rank %d on %s exited with code %d", c.GetRank(), c.GetNode(), c.GetExitCode())
		if !c.HasExitCode() {
			what = "ranks on " + c.GetNode() + " ended"
		}
	case weftv1.CauseKind_CAUSE_KIND_SIGNAL:
		what = fmt.Sprintf("rank %d on %s was killed by %s", c.GetRank(), c.GetNode(), SignalName(c.GetSignal()))
	case weftv1.CauseKind_CAUSE_KIND_DEVICE_FAULT:
		what = "a device of " + c.GetNode() + " failed"
	case weftv1.CauseKind_CAUSE_KIND_NODE_LOST:
		what = "the ranks on " + c.GetNode() + " were lost"
	case weftv1.CauseKind_CAUSE_KIND_PORT_BUSY:
		what = "a port on " + c.GetNode() + " was busy"
	case weftv1.CauseKind_CAUSE_KIND_LAUNCH_FAILED:
		what = "node " + c.GetNode() + " could not start its ranks"
	case weftv1.CauseKind_CAUSE_KIND_RESTORE_FAILED:
		what = "node " + c.GetNode() + " could not restore the save"
	case weftv1.CauseKind_CAUSE_KIND_REBOOT:
		what = "node " + c.GetNode() + " lost its ranks"
	case weftv1.CauseKind_CAUSE_KIND_HUNG:
		what = "the ranks made no progress"
	}
	switch {
	case what == "":
		return c.GetMessage()
	case c.GetMessage() == "":
		return what
	}
	return what + ": " + c.GetMessage()
}

var signals = map[int32]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL",
	10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
}

// SignalName is the name of a Linux signal.
func SignalName(n int32) string {
	if name, ok := signals[n]; ok {
		return name
	}
	return "signal " + strconv.Itoa(int(n))
}

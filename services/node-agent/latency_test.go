package nodeagent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/testkit"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// BenchmarkAssignedToRunning is the time from an assignment to its rank running (as the shim says), to the report of
// that, and to the release of a rank that ends at once; beside it one start and end of this binary, the anchor.
func BenchmarkAssignedToRunning(b *testing.B) {
	m := inMemory(b, nil)
	key := m.spec([]string{"true"}, nil)
	var again, running, reported, released []time.Duration
	at := 0
	for i := range b.N {
		job := fmt.Sprintf("job-%d", i)
		a := attempt(job, 1, key)
		a.GetPlacements()[0].SetCount(1)
		a.GetPlacements()[0].SetDevices([]uint32{1})
		began := time.Now()
		_ = exec.Command(os.Args[0], shim.Arg).Run()
		again = append(again, time.Since(began))
		// An idle node has a shim waiting: let it get there.
		b.StopTimer()
		testkit.Eventually(b, waitLong, spareWaits)
		b.StartTimer()
		began = time.Now()
		m.assign(a)
		at = m.started(at)
		reported = append(reported, time.Since(began))
		_, at = m.said(at, "released", func(r *weftv1.Report) bool { return r.HasAttemptReleased() })
		released = append(released, time.Since(began))
		var st shim.Started
		if ok, err := shim.ReadFile(filepath.Join(m.dir, "runs", job+"-1"), shim.FileStarted, &st); err != nil || !ok {
			b.Fatal(err)
		}
		running = append(running, time.Unix(0, st.TimeNS).Sub(began))
	}
	for name, ds := range map[string][]time.Duration{"ms-reexec-p50": again, "ms-running-p50": running, "ms-reported-p50": reported, "ms-released-p50": released} {
		slices.Sort(ds)
		b.ReportMetric(float64(ds[len(ds)/2].Microseconds())/1000, name)
	}
}

// spareWaits says that a shim of this process was started ahead.
func spareWaits() bool {
	kids, _ := proc.Children(os.Getpid())
	for _, k := range kids {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", k.Pid)); err == nil && strings.HasSuffix(string(b), shim.Arg+"\x00-\x00") {
			return true
		}
	}
	return false
}

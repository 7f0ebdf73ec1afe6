package api

import (
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// The cause of an exit carries no message of its own; people read it all the same.
func TestReasonNamesTheCause(t *testing.T) {
	exit := weftv1.Cause_builder{
		Kind: new(weftv1.CauseKind_CAUSE_KIND_EXIT), Node: new("gpu-0"), Rank: new(uint32(3)), ExitCode: new(int32(7)),
	}.Build()
	const said = "rank 3 on gpu-0 exited with code 7"
	for _, j := range []*cell.Job{
		{Phase: cell.Backoff, Cause: exit, NotBefore: int64(20 * time.Second)},
		{Phase: cell.Stopping, Attempt: &cell.Attempt{Cause: exit}},
		{Phase: cell.Queued, Degraded: true, Cause: exit},
		{Phase: cell.Failed, Cause: exit},
	} {
		if got := reason(j, 0); !strings.Contains(got, said) {
			t.Errorf("%v: %q; want %q in it", j.Phase, got, said)
		}
	}
}

package allocator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/membus"
	"github.com/weft-fabric/weft/libs/cell/cellfold"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// The service answers while it runs, and leaves the bus when it stops.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core := membus.New().Caller()
		proj := ledger.NewProjection(memledger.New(), cellfold.Fold(), nil)
		svc, err := New(DefaultConfig(), Deps{Proj: proj, Core: core})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- svc.Run(ctx) }()
		ask := func() bus.Reply {
			return core.Call(bus.SubjectRPC("allocator", "plan"), nil, time.Second).Wait(t.Context())
		}
		var p weftv1.Plan
		if r := ask(); r.Err != nil || proto.Unmarshal(r.Data, &p) != nil || len(p.GetSteps()) != 0 {
			t.Fatalf("got %v %v", &p, r.Err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if r := ask(); !errors.Is(r.Err, bus.ErrNoAnswer) || time.Since(start) != 0 {
			t.Fatalf("after the stop: %v in %v, as if it still took questions", r.Err, time.Since(start))
		}
	})
}

func TestWrongConfig(t *testing.T) {
	if _, err := New(Config{}, Deps{}); err == nil || !strings.Contains(err.Error(), "tries must be at least 1") {
		t.Fatalf("got %v", err)
	}
}

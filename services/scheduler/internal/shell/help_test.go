package shell

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/scheduler/lifecycle"
)

const (
	drop    = faultledger.Drop
	loseAck = faultledger.LoseAck
	late    = faultledger.Late
)

func bytesOf(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func placeOf(job string) lifecycle.Command {
	return lifecycle.Place{Start: weftv1.Start_builder{Job: &job}.Build()}
}

var manyDrops = slices.Repeat([]faultledger.Fault{drop}, 10_000)

// ready says whether one of the channels would wake its shell now; it takes that wake.
func ready(wakes []<-chan struct{}) bool {
	for _, w := range wakes {
		select {
		case <-w:
			return true
		default:
		}
	}
	return false
}

// drain takes wakes that are left of what was done already.
func drain(wakes []<-chan struct{}) {
	for _, w := range wakes {
		select {
		case <-w:
		default:
		}
	}
}

func read(out bus.Outbox, node string) (*weftv1.Assignment, error) {
	m, _, ok, err := out.Get(context.Background(), bus.SubjectAssign(node))
	if err != nil || !ok {
		return nil, fmt.Errorf("no assignment of %s: %w", node, err)
	}
	var a weftv1.Assignment
	return &a, proto.Unmarshal(m.Data, &a)
}

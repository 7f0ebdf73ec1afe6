package shell

import (
	"testing"

	"google.golang.org/protobuf/proto"

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

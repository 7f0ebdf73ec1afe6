package cellfold

import (
	"errors"
	"testing"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// The ledger library must recognise an unknown kind as its own error, so that the reader stops with the cure.
func TestUnknownKindIsTheLedgers(t *testing.T) {
	f := Fold()
	s := f.New()
	c := weftv1.Commit_builder{TimeNs: new(int64(1)), Entries: []*weftv1.Entry{
		weftv1.Entry_builder{Kind: new("from_tomorrow"), Fact: []byte{0xfa, 0x3e, 0x00}}.Build(),
	}}.Build()
	var unknown *ledger.UnknownKind
	if err := f.Apply(s, c, 5); !errors.As(err, &unknown) || unknown.Kind != "from_tomorrow" || unknown.Seq != 5 {
		t.Fatalf("got %v", err)
	}
	fact := ledger.FactEntry(weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: new("n"), BootId: new("b")}.Build()}.Build())
	if err := f.Apply(s, weftv1.Commit_builder{TimeNs: new(int64(2)), Entries: []*weftv1.Entry{fact}}.Build(), 6); err != nil {
		t.Fatal(err)
	}
	back, err := f.Decode(f.Encode(s))
	if err != nil || cell.Hash(back) != cell.Hash(s) || back.Node("n") == nil {
		t.Fatalf("the snapshot does not bring the state back: %v", err)
	}
}

package lifecycle

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// A tree of queues goes in one command, in whatever order it is written, with what is new beside it.
func TestATreeOfQueuesIsRemovedInAnyOrder(t *testing.T) {
	tree := []string{"a", "a/b", "a/b/c", "a/d", "e"}
	rapid.Check(t, func(t *rapid.T) {
		s := cell.NewState()
		apply := func(sets []*weftv1.QueueSet) {
			facts, err := Decide(s, ApplyQueues{Queues: sets}, 1, DefaultPolicy())
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range facts {
				cell.Evolve(s, f, 1)
			}
		}
		var add, remove []*weftv1.QueueSet
		for _, q := range tree {
			add = append(add, weftv1.QueueSet_builder{Queue: &q, Weight: new(int64(1))}.Build())
			remove = append(remove, weftv1.QueueSet_builder{Queue: &q, Removed: new(true)}.Build())
		}
		apply(add)
		remove = append(remove, weftv1.QueueSet_builder{Queue: new("new/kid"), Weight: new(int64(1))}.Build())
		apply(rapid.Permutation(remove).Draw(t, "order"))
		for _, q := range tree {
			if s.Queue(q) != nil {
				t.Errorf("%s is still there", q)
			}
		}
		if s.Queue("new/kid") == nil || s.Queue("new") == nil {
			t.Error("what is new is not there")
		}
	})
}

package cell

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Shares are exact in integers, whatever the amounts: two readers that order by them must agree to the last digit.
func TestShareIsExactAndDominant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amounts := func(name string) Amounts {
			v := rapid.OneOf(rapid.Int64Range(-1, 1e6), rapid.Int64Range(0, math.MaxInt64))
			return Amounts{v.Draw(t, name+" gpu"), v.Draw(t, name+" cpu"), v.Draw(t, name+" memory")}
		}
		a, whole := amounts("held"), amounts("whole")
		want := new(big.Int)
		for _, x := range [][2]int64{{a.GPUMilli, whole.GPUMilli}, {a.CPUMilli, whole.CPUMilli}, {a.MemoryBytes, whole.MemoryBytes}} {
			if x[0] <= 0 || x[1] <= 0 {
				continue
			}
			ppm := new(big.Int).Mul(big.NewInt(x[0]), big.NewInt(1e6))
			if ppm.Div(ppm, big.NewInt(x[1])); ppm.Cmp(want) > 0 {
				want = ppm
			}
		}
		if most := big.NewInt(1 << 62); want.Cmp(most) > 0 {
			want = most
		}
		if got := Share(a, whole); got != want.Int64() {
			t.Fatalf("Share(%v, %v) = %d, want %d", a, whole, got, want)
		}
	})
}

// A machine that is lost or being serviced still belongs to the cell: nobody's share jumps with it.
func TestTheWholeKeepsLostAndCordonedNodes(t *testing.T) {
	s := NewState()
	for i, name := range []string{"a", "b", "c"} {
		Evolve(s, weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: &name}.Build()}.Build(), int64(i))
		inv := weftv1.Inventory_builder{CpuMilli: new(int64(4000)), MemoryBytes: new(int64(1 << 30)), Devices: []*weftv1.Device{{}, {}}}.Build()
		Evolve(s, weftv1.Fact_builder{NodeInventory: weftv1.NodeInventory_builder{Node: &name, Generation: new(uint64(1)), Inventory: inv}.Build()}.Build(), int64(i))
	}
	Evolve(s, weftv1.Fact_builder{NodeLost: weftv1.NodeLost_builder{Node: new("a")}.Build()}.Build(), 9)
	Evolve(s, weftv1.Fact_builder{NodeCordoned: weftv1.NodeCordoned_builder{Node: new("b")}.Build()}.Build(), 9)
	if got, want := Whole(s), (Amounts{6000, 12_000, 3 << 30}); got != want {
		t.Errorf("the cell has %+v, want %+v", got, want)
	}
}

package cell

import "math/bits"

// million is one whole, in the millionths that shares are counted in.
const million = 1_000_000

// Share is the dominant share of an amount in a whole, in millionths: the largest over the resources that the whole has
// at all (Ghodsi et al., Dominant Resource Fairness, NSDI 2011). One function, for ordering and for reports.
func Share(a, whole Amounts) int64 {
	return max(part(a.GPUMilli, whole.GPUMilli), part(a.CPUMilli, whole.CPUMilli), part(a.MemoryBytes, whole.MemoryBytes))
}

func part(a, whole int64) int64 {
	if whole <= 0 || a <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), million)
	if hi >= uint64(whole) {
		return 1 << 62
	}
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return int64(min(q, 1<<62))
}

// Whole is what the cell has, lost and cordoned nodes included: shares must not jump when a machine is serviced.
func Whole(s *State) Amounts {
	var w Amounts
	for n := range s.Nodes() {
		w.GPUMilli += 1000 * int64(len(n.Inventory.GetDevices()))
		w.CPUMilli += n.Inventory.GetCpuMilli()
		w.MemoryBytes += n.Inventory.GetMemoryBytes()
	}
	return w
}

package nvml

import "testing"

func TestCanonicalModel(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name string
		mib  uint64
		want string
	}{
		{"NVIDIA A100-SXM4-80GB", 81920, "A100-80G"},
		{"NVIDIA A100-SXM4-40GB", 40960, "A100-40G"},
		{"A100-PCIE-40GB", 40536, "A100-40G"},
		{"NVIDIA H100 80GB HBM3", 81559, "H100-80G"},
		{"NVIDIA H100 PCIe", 81559, "H100-80G"},
		{"NVIDIA H100 NVL", 95830, "H100-NVL-94G"},
		{"NVIDIA H200", 143771, "H200-141G"},
		{"NVIDIA GH200 480GB", 97871, "GH200-96G"},
		{"Tesla V100-SXM2-32GB", 32510, "V100-32G"},
		{"Tesla V100-SXM2-16GB", 16160, "V100-16G"},
		{"Tesla T4", 15360, "T4-16G"},
		{"NVIDIA L4", 23034, "L4-24G"},
		{"NVIDIA L40S", 46068, "L40S-48G"},
		{"NVIDIA A10", 23028, "A10-24G"},
		{"NVIDIA B200", 183359, "B200-180G"},
		{"NVIDIA GeForce RTX 4090", 24564, "RTX-4090-24G"},
		{"", 8192, "UNKNOWN-8G"},
	} {
		if got := canonicalModel(c.name, c.mib*mib); got != c.want {
			t.Errorf("%s with %d MiB: %s, want %s", c.name, c.mib, got, c.want)
		}
	}
}

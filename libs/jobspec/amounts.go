package jobspec

import (
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Bounds far above any machine, so that sums of amounts stay in an int64.
const (
	maxGPUs   = 1024
	maxCores  = 100_000
	minMemory = 1 << 20 // a number without a unit was meant in other units
	maxMemory = 1 << 50 // 1 PiB
	maxRanks  = 65_536
	maxTime   = 10 * 365 * 24 * time.Hour
)

// quantity parses a Kubernetes quantity into units of scale (0 or milli).
func (p *parser) quantity(n *yaml.Node, path string, scale resource.Scale, most int64, example string) int64 {
	s := p.word(n, path, 32)
	if p.err != nil {
		return 0
	}
	q, err := resource.ParseQuantity(s)
	switch {
	case err != nil:
		p.fail(n, path, "%q is not an amount; write one quantity, such as %s", clip(s), example)
		return 0
	case q.Sign() < 0:
		p.fail(n, path, "%s is negative; write an amount such as %s", clip(s), example)
		return 0
	case q.CmpInt64(most) > 0:
		p.fail(n, path, "%s is more than any machine has; write an amount such as %s", clip(s), example)
		return 0
	}
	v := q.ScaledValue(scale)
	if back := resource.NewScaledQuantity(v, scale); back.Cmp(q) != 0 {
		p.fail(n, path, "%s is finer than the fabric counts; write an amount such as %s", clip(s), example)
		return 0
	}
	return v
}

func (p *parser) cpu(n *yaml.Node, path string) int64 {
	return p.quantity(n, path, resource.Milli, maxCores, "4 or 500m")
}

func (p *parser) memory(n *yaml.Node, path string) int64 {
	v := p.quantity(n, path, 0, maxMemory, "16Gi")
	if p.err == nil && v > 0 && v < minMemory {
		p.fail(n, path, "%s is %d bytes, which nothing runs in; write an amount such as 16Gi", clip(n.Value), v)
	}
	return v
}

func (p *parser) gpus(n *yaml.Node, path string) int64 {
	v := p.quantity(n, path, resource.Milli, maxGPUs, "1 (or 0 for none)")
	if p.err == nil && v > 1000 && v%1000 != 0 {
		p.fail(n, path, "%s is neither whole cards nor a part of one; write a whole number", clip(n.Value))
	}
	return v
}

// Totals of a queue span many machines.
func (p *parser) gpuTotal(n *yaml.Node, path string) int64 {
	return p.quantity(n, path, resource.Milli, 1000*maxGPUs, "16")
}

func (p *parser) cpuTotal(n *yaml.Node, path string) int64 {
	return p.quantity(n, path, resource.Milli, 1000*maxCores, "64")
}

func (p *parser) memoryTotal(n *yaml.Node, path string) int64 {
	return p.quantity(n, path, 0, 1000*maxMemory, "256Gi")
}

// duration parses a Go duration between lo and maxTime.
func (p *parser) duration(n *yaml.Node, path string, lo time.Duration, example string) int64 {
	s := p.text(n, path)
	if p.err != nil {
		return 0
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil && isNumber(s) && s != "0":
		p.fail(n, path, "%s has no unit; write %ss, %sm or %sh", clip(s), clip(s), clip(s), clip(s))
	case err != nil && strings.HasSuffix(s, "d") && isNumber(strings.TrimSuffix(s, "d")):
		p.fail(n, path, "%s: days are not a unit; write hours, such as 24h", clip(s))
	case err != nil:
		p.fail(n, path, "%q is not a duration; write one such as %s", clip(s), example)
	case d < 0:
		p.fail(n, path, "%s is negative; write a duration such as %s", clip(s), example)
	case d < lo:
		p.fail(n, path, "%s is too short; write at least %v", clip(s), lo)
	case d > maxTime:
		p.fail(n, path, "%s is longer than ten years; write a duration such as %s", clip(s), example)
	default:
		return int64(d)
	}
	return 0
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(s, 64)
	return err == nil && len(s) <= 20
}

// formatMilli writes thousandths as Parse reads them.
func formatMilli(v int64) string {
	if v%1000 == 0 {
		return strconv.FormatInt(v/1000, 10)
	}
	return strconv.FormatInt(v, 10) + "m"
}

// formatBytes writes bytes in the largest binary unit that loses nothing.
func formatBytes(v int64) string {
	if v == 0 {
		return "0"
	}
	units := []string{"", "Ki", "Mi", "Gi", "Ti"}
	i := 0
	for i < len(units)-1 && v%1024 == 0 {
		v, i = v/1024, i+1
	}
	return strconv.FormatInt(v, 10) + units[i]
}

// formatDuration writes a duration without zero parts: 10m, not 10m0s.
func formatDuration(ns int64) string {
	s := time.Duration(ns).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

package export

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-fabric/weft/libs/metric"
)

var update = flag.Bool("update", false, "rewrite the generated page")

const page = "../../../../docs/metrics.md"

// docs/metrics.md is generated from the definitions, so that it cannot say anything else.
func TestDocsMetrics(t *testing.T) {
	if *update {
		if err := os.WriteFile(page, []byte(table()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil || string(got) != table() {
		t.Fatalf("docs/metrics.md is stale (%v); run: make generate", err)
	}
}

// table is the text of docs/metrics.md.
func table() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- generated from libs/metric/catalogue.go and services/telemetry/internal/export/defs.go by make generate; do not edit -->

Everything here is on /metrics of the telemetry service (127.0.0.1:7403 by default). A value that was not measured is
absent, never zero. ` + "`gpu`" + ` is the device's position in its node's inventory; ` + "`weft_gpu_info`" + ` says which card that is, and
` + "`weft_gpu_allocation_info`" + ` who holds it. Power of the devices of one job, for example:

` + "```promql" + `
sum by (job) (weft_gpu_power_watts * on (node, gpu) group_right weft_gpu_allocation_info)
` + "```" + `

## Measured by the agents

Cadence says how often the value can change: fast is every 100 ms on the wire, level every second, slow every 30 s. DCGM
fields are given by number, since their names change.

| name | type | unit | labels | cadence | OpenTelemetry | NVML | DCGM | meaning |
|---|---|---|---|---|---|---|---|---|
`)
	for _, m := range metric.All() {
		d := sampled[m.ID]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | `%s` | %s | %s | %s |\n", d.name, d.kindName(), d.unit, strings.Join(d.labels, ", "),
			[...]string{"fast", "level", "slow"}[m.Class], m.OTel, dash(m.NVML), dash(m.DCGM), d.help)
	}
	b.WriteString(`
## From the ledger, and about the measuring itself

| name | type | unit | labels | meaning |
|---|---|---|---|---|
`)
	for _, d := range owned {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", d.name, d.kindName(), d.unit, dash(strings.Join(d.labels, ", ")), d.help)
	}
	return b.String()
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func (d *def) kindName() string {
	if d.kind == prometheus.CounterValue {
		return "counter"
	}
	return "gauge"
}

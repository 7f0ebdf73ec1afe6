package export

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/services/telemetry/internal/shell"
	"github.com/weft-fabric/weft/services/telemetry/window"
)

func collector() *Collector {
	proj := ledger.NewProjection(memledger.New(), ledger.Fold[*cell.State]{New: cell.NewState}, nil)
	return NewCollector(shell.NewStore(window.Default()), proj, time.Now)
}

// The table, what is described, and what the rules of names ask for are one set.
func TestTableIsTheRegistry(t *testing.T) {
	descs := make(chan *prometheus.Desc, 1000)
	collector().Describe(descs)
	close(descs)
	table := table()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	n := 0
	for d := range descs {
		n++
		m := name.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("no name in %s", d)
		}
		if strings.Count(table, "| `"+m[1]+"` |") != 1 {
			t.Errorf("%s is not in the table once", m[1])
		}
	}
	if rows := strings.Count(table, "\n| `weft_"); rows != n {
		t.Errorf("%d rows, %d metrics", rows, n)
	}
}

func TestNamesAndLabelsKeepTheRules(t *testing.T) {
	for _, d := range append(append([]*def(nil), sampled...), owned...) {
		if total := strings.HasSuffix(d.name, "_total"); total != (d.kind == prometheus.CounterValue) {
			t.Errorf("%s: name and type disagree", d.name)
		}
		if !strings.HasPrefix(d.name, "weft_") || !strings.HasSuffix(d.help, ".") || len(d.labels) > 7 {
			t.Errorf("%s: prefix, help or too many labels", d.name)
		}
		unit := map[string]string{"By": "_bytes", "W": "_watts", "J": "_joules", "Cel": "_celsius", "Hz": "_hertz", "s": "_seconds"}[d.unit]
		if unit != "" && !strings.Contains(d.name, unit) {
			t.Errorf("%s is in %s and does not say so", d.name, d.unit)
		}
		if info := strings.HasSuffix(d.name, "_info"); !info && len(d.labels) > 3 {
			t.Errorf("%s has %d labels; what describes belongs into an _info series", d.name, len(d.labels))
		}
	}
}

func TestEmptyFabricIsAValidPage(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(collector()); err != nil {
		t.Fatal(err)
	}
	if problems, err := testutil.GatherAndLint(r); err != nil || len(problems) != 0 {
		t.Errorf("%v %v", problems, err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := f.GetName(); n != rejected.name && n != ledgerPosition.name {
			t.Errorf("%s is shown of an empty fabric", n)
		}
	}
}

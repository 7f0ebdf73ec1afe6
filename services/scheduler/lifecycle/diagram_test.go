package lifecycle

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/weft-fabric/weft/libs/cell"
)

var update = flag.Bool("update", false, "rewrite the generated parts of the documentation")

const (
	architecture = "../../../docs/architecture.md"
	begin, end   = "<!-- phases:begin -->", "<!-- phases:end -->"
)

// The state diagram in docs/architecture.md is generated from cell.Moves, so it cannot lie.
func TestDiagramOfPhases(t *testing.T) {
	doc, err := os.ReadFile(architecture)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no block between %s and %s", architecture, begin, end)
	}
	want := head + begin + "\n" + diagram() + end + tail
	if want == string(doc) {
		return
	}
	if !*update {
		t.Fatalf("the diagram in %s differs from cell.Moves; run make generate", architecture)
	}
	if err := os.WriteFile(architecture, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func diagram() string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	for _, from := range append([]cell.Phase{""}, cell.Phases...) {
		name := string(from)
		if from == "" {
			name = "[*]"
		}
		for _, to := range cell.Moves[from] {
			fmt.Fprintf(&b, "    %s --> %s\n", name, to)
		}
		if from.Ended() {
			fmt.Fprintf(&b, "    %s --> [*]\n", name)
		}
	}
	return b.String() + "```\n"
}

// Every phase is in the table and in the listing, and every move leads somewhere that is.
func TestMovesAreClosed(t *testing.T) {
	if len(cell.Moves) != len(cell.Phases)+1 {
		t.Fatalf("%d phases, %d rows of moves", len(cell.Phases), len(cell.Moves))
	}
	for from, tos := range cell.Moves {
		if from.Ended() != (len(tos) == 0) {
			t.Errorf("%q ended: %v, moves %v", from, from.Ended(), tos)
		}
		for _, to := range tos {
			if !slices.Contains(cell.Phases, to) {
				t.Errorf("%q moves to the unknown %q", from, to)
			}
		}
	}
}

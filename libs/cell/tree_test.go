package cell

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A tree behaves as a sorted map, and a copy never sees what happens to the other.
func TestTreeIsASortedMapWithCopies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type pair struct {
			tree  tree[int]
			model map[string]int
		}
		all := []pair{{model: map[string]int{}}}
		own := new(token)
		span := rapid.SampledFrom([]int{8, 200, 5000}).Draw(t, "span")
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
			k := fmt.Sprintf("%05d", rapid.IntRange(0, span).Draw(t, "key"))
			op := rapid.IntRange(0, 9).Draw(t, "op")
			switch {
			case op < 6:
				v := rapid.Int().Draw(t, "value")
				all[i].tree.set(own, k, v)
				all[i].model[k] = v
			case op < 9:
				all[i].tree.del(own, k)
				delete(all[i].model, k)
			case len(all) < 6: // a copy: both go on with tokens of their own
				all = append(all, pair{all[i].tree, maps.Clone(all[i].model)})
				own = new(token)
			}
			if op < 9 && len(all) > 1 {
				own = new(token) // the next change may be to another copy
			}
		}
		from := fmt.Sprintf("%05d", rapid.IntRange(0, span).Draw(t, "from"))
		for _, p := range all {
			var got []string
			for k, v := range p.tree.from("") {
				if p.model[k] != v {
					t.Fatalf("%s is %d, want %d", k, v, p.model[k])
				}
				got = append(got, k)
			}
			want := slices.Sorted(maps.Keys(p.model))
			if !slices.Equal(got, want) || p.tree.size != len(want) {
				t.Fatalf("size %d, keys %v, want %v", p.tree.size, got, want)
			}
			got = nil
			for k := range p.tree.from(from) {
				got = append(got, k)
			}
			want = slices.DeleteFunc(want, func(k string) bool { return k < from })
			if !slices.Equal(got, want) {
				t.Fatalf("from %s: %v, want %v", from, got, want)
			}
			for k, v := range p.model {
				if got, ok := p.tree.get(k); !ok || got != v {
					t.Fatalf("get %s: %d %v", k, got, ok)
				}
			}
		}
	})
}

func TestTreePrefix(t *testing.T) {
	var tr tree[int]
	for i, k := range []string{"a\x00x", "ab\x00y", "a\x00z", "a", "b\x00x"} {
		tr.set(new(token), k, i)
	}
	var got []string
	for k := range tr.prefixed("a\x00") {
		got = append(got, k)
	}
	if s := strings.Join(got, " "); s != "x z" {
		t.Fatalf("under a: %q", s)
	}
}

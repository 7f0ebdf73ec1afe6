package cell

import (
	"iter"
	"slices"
)

// fan is the largest number of entries in one node of a tree: large enough that 100k jobs are four levels deep, small
// enough that copying the path of a change costs about a microsecond.
const fan = 32

// token marks the tree nodes that the change under way made itself and may therefore change in place. It must not have
// size zero: two of those may share one address.
type token struct{ _ byte }

// tree is a sorted map from string to V, a B+ tree that shares structure between copies: assigning a tree copies it in
// constant time, and a change copies only the path to it. Values must be immutable or of value type.
type tree[V any] struct {
	root *branch[V]
	size int
}

// branch is one node: a leaf holds vals beside keys, an inner one holds kids, keys[i] being a lower bound of kids[i].
type branch[V any] struct {
	own  *token
	keys []string
	vals []V
	kids []*branch[V]
}

func (n *branch[V]) leaf() bool { return n.kids == nil }

// slot is the index of the child that holds k.
func (n *branch[V]) slot(k string) int {
	i, found := slices.BinarySearch(n.keys, k)
	if !found && i > 0 {
		i--
	}
	return i
}

// mine returns n itself if this change made it, or a copy with room to grow.
func (n *branch[V]) mine(own *token) *branch[V] {
	if n.own == own {
		return n
	}
	c := &branch[V]{own: own, keys: append(make([]string, 0, len(n.keys)+2), n.keys...)}
	if n.leaf() {
		c.vals = append(make([]V, 0, len(n.vals)+2), n.vals...)
	} else {
		c.kids = append(make([]*branch[V], 0, len(n.kids)+2), n.kids...)
	}
	return c
}

func (t *tree[V]) get(k string) (v V, ok bool) {
	n := t.root
	if n == nil {
		return v, false
	}
	for !n.leaf() {
		n = n.kids[n.slot(k)]
	}
	if i, found := slices.BinarySearch(n.keys, k); found {
		return n.vals[i], true
	}
	return v, false
}

func (t *tree[V]) has(k string) bool { _, ok := t.get(k); return ok }

func (t *tree[V]) set(own *token, k string, v V) {
	if t.root == nil {
		t.root = &branch[V]{own: own, keys: []string{k}, vals: []V{v}}
		t.size = 1
		return
	}
	root, right, added := t.root.set(own, k, v)
	if right != nil {
		root = &branch[V]{own: own, keys: []string{root.keys[0], right.keys[0]}, kids: []*branch[V]{root, right}}
	}
	t.root = root
	if added {
		t.size++
	}
}

func (n *branch[V]) set(own *token, k string, v V) (self, right *branch[V], added bool) {
	n = n.mine(own)
	if n.leaf() {
		i, found := slices.BinarySearch(n.keys, k)
		if found {
			n.vals[i] = v
			return n, nil, false
		}
		n.keys = slices.Insert(n.keys, i, k)
		n.vals = slices.Insert(n.vals, i, v)
		return n, n.split(own, i), true
	}
	i := n.slot(k)
	kid, sib, added := n.kids[i].set(own, k, v)
	n.kids[i] = kid
	n.keys[i] = min(n.keys[i], k)
	if sib != nil {
		n.keys = slices.Insert(n.keys, i+1, sib.keys[0])
		n.kids = slices.Insert(n.kids, i+1, sib)
	}
	return n, n.split(own, i), added
}

// split cuts an overfull node and returns its right part. Keys often arrive in order, so an overflow at the end leaves
// the left node nearly full.
func (n *branch[V]) split(own *token, at int) *branch[V] {
	if len(n.keys) <= fan {
		return nil
	}
	m := len(n.keys) / 2
	if at >= len(n.keys)-2 {
		m = len(n.keys) - 2
	}
	r := &branch[V]{own: own, keys: slices.Clone(n.keys[m:])}
	if n.leaf() {
		r.vals = slices.Clone(n.vals[m:])
		clear(n.vals[m:])
		n.vals = n.vals[:m]
	} else {
		r.kids = slices.Clone(n.kids[m:])
		clear(n.kids[m:])
		n.kids = n.kids[:m]
	}
	n.keys = n.keys[:m]
	return r
}

func (t *tree[V]) del(own *token, k string) {
	if t.root == nil || !t.has(k) {
		return
	}
	t.root = t.root.del(own, k)
	t.size--
	for t.root != nil && !t.root.leaf() && len(t.root.kids) == 1 {
		t.root = t.root.kids[0]
	}
}

// del removes a key that is there and returns nil for a node that became empty. Nodes are not merged: the oldest keys
// leave first in every index that grows without end, and empty nodes are dropped.
func (n *branch[V]) del(own *token, k string) *branch[V] {
	n = n.mine(own)
	if n.leaf() {
		i, _ := slices.BinarySearch(n.keys, k)
		n.keys = slices.Delete(n.keys, i, i+1)
		n.vals = slices.Delete(n.vals, i, i+1)
	} else {
		i := n.slot(k)
		if kid := n.kids[i].del(own, k); kid != nil {
			n.kids[i] = kid
		} else {
			n.keys = slices.Delete(n.keys, i, i+1)
			n.kids = slices.Delete(n.kids, i, i+1)
		}
	}
	if len(n.keys) == 0 {
		return nil
	}
	return n
}

// from iterates in order from the first key that is not below k.
func (t tree[V]) from(k string) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		if t.root != nil {
			t.root.walk(k, yield)
		}
	}
}

func (n *branch[V]) walk(k string, yield func(string, V) bool) bool {
	if n.leaf() {
		i, _ := slices.BinarySearch(n.keys, k)
		for ; i < len(n.keys); i++ {
			if !yield(n.keys[i], n.vals[i]) {
				return false
			}
		}
		return true
	}
	for i := n.slot(k); i < len(n.kids); i++ {
		if !n.kids[i].walk(k, yield) {
			return false
		}
		k = ""
	}
	return true
}

// prefixed iterates over the keys that begin with p, and gives them without it.
func (t tree[V]) prefixed(p string) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for k, v := range t.from(p) {
			if len(k) < len(p) || k[:len(p)] != p || !yield(k[len(p):], v) {
				return
			}
		}
	}
}

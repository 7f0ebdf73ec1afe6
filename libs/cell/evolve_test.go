package cell

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Every kind of fact that the proto declares is one that Evolve knows, whether it says nothing or everything.
func TestEveryKindOfFactPassesEvolve(t *testing.T) {
	kinds := (&weftv1.Fact{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	for i := range kinds.Len() {
		kind := kinds.Get(i)
		t.Run(string(kind.Name()), func(t *testing.T) {
			empty := &weftv1.Fact{}
			empty.ProtoReflect().Mutable(kind)
			if !NewState().evolve(empty, 1) {
				t.Fatalf("Evolve does not know %s", kind.Name())
			}
			rapid.Check(t, func(t *rapid.T) {
				f := &weftv1.Fact{}
				fill(t, f.ProtoReflect().Mutable(kind).Message(), 0)
				s := NewState()
				Evolve(s, f, 5)
				checkDerived(t, s)
			})
		})
	}
}

// Whatever facts come, in whatever order: nothing panics, moves are legal, indexes agree with the jobs, an overlay that
// was taken before never changes, and the snapshot brings the same state back.
func TestAnyFactsKeepTheStateConsistent(t *testing.T) {
	kinds := (&weftv1.Fact{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
	rapid.Check(t, func(t *rapid.T) {
		s := NewState()
		var kept *State
		var keptHash [32]byte
		for step := range rapid.IntRange(1, 80).Draw(t, "steps") {
			f := &weftv1.Fact{}
			kind := kinds.Get(rapid.IntRange(0, kinds.Len()-1).Draw(t, "kind"))
			fill(t, f.ProtoReflect().Mutable(kind).Message(), 0)
			before := phases(s)
			if step%7 == 3 {
				kept, keptHash = s.Overlay(), Hash(s)
			}
			Evolve(s, f, int64(step+1)*1000)
			for id, now := range phases(s) {
				if was := before[id]; was != now && !Allowed(was, now) {
					t.Fatalf("%s moved %q → %q by %s", id, was, now, kind.Name())
				}
			}
			checkDerived(t, s)
		}
		if kept != nil && Hash(kept) != keptHash {
			t.Fatal("an overlay changed")
		}
		again, err := Decode(Encode(s))
		if err != nil {
			t.Fatal(err)
		}
		if Hash(again) != Hash(s) {
			t.Fatalf("decode(encode(s)) differs:\n%s\n%s", text(t, s), text(t, again))
		}
		checkDerived(t, again)
	})
}

func phases(s *State) map[string]Phase {
	m := map[string]Phase{}
	for j := range s.Jobs() {
		m[j.ID] = j.Phase
	}
	return m
}

func text(t *rapid.T, s *State) string {
	snap := &weftv1.Snapshot{}
	if err := proto.Unmarshal(Encode(s), snap); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(snap)
}

// checkDerived recomputes every index from the jobs, nodes and claims.
func checkDerived(t *rapid.T, s *State) {
	fresh := NewState()
	fresh.edit = new(token)
	for j := range s.Jobs() {
		if j.Phase.Active() != (j.Attempt != nil) && j.Phase != Stopping && j.Phase != Running && j.Phase != Starting {
			t.Fatalf("job %s is %s with attempt %v", j.ID, j.Phase, j.Attempt)
		}
		fresh.put(nil, j)
	}
	for n := range s.Nodes() {
		fresh.putNode(nil, n)
	}
	for c := range s.Claims() {
		fresh.putClaim(c.Job, c)
	}
	for name, pair := range map[string][2]string{
		"waiting": {dump(s.waiting), dump(fresh.waiting)},
		"active":  {dump(s.active), dump(fresh.active)},
		"holds":   {dump(s.holds), dump(fresh.holds)},
		"due":     {dump(s.due), dump(fresh.due)},
		"endings": {dump(s.endings), dump(fresh.endings)},
		"totals":  {dump(s.totals), dump(fresh.totals)},
		"live":    {keys(s.live), keys(fresh.live)},
		"ended":   {keys(s.ended), keys(fresh.ended)},
		"names":   {keys(s.names), keys(fresh.names)},
	} {
		if pair[0] != pair[1] {
			t.Fatalf("index %s is\n%s\nwant\n%s", name, pair[0], pair[1])
		}
	}
}

func dump[V any](t tree[V]) string {
	var b strings.Builder
	for k, v := range t.from("") {
		fmt.Fprintf(&b, "%q=%v\n", k, v)
	}
	return b.String()
}

func keys[V any](t tree[V]) string {
	var b strings.Builder
	for k := range t.from("") {
		fmt.Fprintf(&b, "%q\n", k)
	}
	return b.String()
}

// fill sets a message at random from small worlds, so that facts often meet the same job, node and attempt.
func fill(t *rapid.T, m protoreflect.Message, depth int) {
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		f := fs.Get(i)
		if f.ContainingOneof() == nil && rapid.IntRange(0, 9).Draw(t, "set") == 0 {
			continue
		}
		switch {
		case f.IsList():
			l := m.Mutable(f).List()
			for range rapid.IntRange(0, 3).Draw(t, "len") {
				if f.Kind() == protoreflect.MessageKind {
					e := l.NewElement()
					if depth < 4 {
						fill(t, e.Message(), depth+1)
					}
					l.Append(e)
				} else {
					l.Append(scalar(t, f))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			if depth < 4 {
				fill(t, m.Mutable(f).Message(), depth+1)
			}
		default:
			m.Set(f, scalar(t, f))
		}
	}
}

func scalar(t *rapid.T, f protoreflect.FieldDescriptor) protoreflect.Value {
	n := rapid.IntRange(0, 3).Draw(t, string(f.Name()))
	switch f.Kind() {
	case protoreflect.StringKind:
		switch {
		case strings.Contains(string(f.Name()), "queue"):
			return protoreflect.ValueOfString([]string{"a", "a/b", "a/b/c", "d"}[n])
		case strings.HasPrefix(string(f.Name()), "node"):
			return protoreflect.ValueOfString([]string{"n0", "n1", "n2", "n2"}[n])
		}
		return protoreflect.ValueOfString([]string{"x", "y", "x", ""}[n])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(bytes.Repeat([]byte{7}, n*60))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(n == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(n))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(int64(n) * 1000)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	}
	panic("no value for " + f.Kind().String())
}

// The canonical encoding is protobuf's wire format, and what protobuf's own encoder would write in number order.
func TestEncodingIsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := &weftv1.JobSpec{}
		fill(t, spec.ProtoReflect(), 0)
		e := &encoder{}
		e.fields(spec.ProtoReflect())
		back := &weftv1.JobSpec{}
		if err := proto.Unmarshal(e.b, back); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(spec, back) {
			t.Fatalf("got %v, want %v", back, spec)
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(e.b, want) {
			t.Fatalf("got %x\nwant %x", e.b, want)
		}
	})
}

func TestNestedLengths(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 16383, 16384, 1 << 21} {
		e := &encoder{b: []byte("before")}
		e.nested(2, func() { e.b = append(e.b, bytes.Repeat([]byte{9}, n)...) })
		c := &weftv1.Entry{}
		if err := proto.Unmarshal(e.b[len("before"):], c); err != nil || len(c.GetFact()) != n {
			t.Fatalf("length %d: %v, %d bytes", n, err, len(c.GetFact()))
		}
	}
}

// No message that a snapshot carries may have a field without a canonical encoding.
func TestSnapshotFieldsHaveACanonicalEncoding(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	var walk func(d protoreflect.MessageDescriptor)
	walk = func(d protoreflect.MessageDescriptor) {
		if seen[d.FullName()] {
			return
		}
		seen[d.FullName()] = true
		fs := d.Fields()
		for i := range fs.Len() {
			f := fs.Get(i)
			bad := []protoreflect.Kind{protoreflect.FloatKind, protoreflect.DoubleKind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.GroupKind}
			if f.IsMap() || slices.Contains(bad, f.Kind()) {
				t.Errorf("%s has no canonical encoding: maps have no order, floats differ between machines", f.FullName())
			}
			if f.Message() != nil {
				walk(f.Message())
			}
		}
	}
	walk((&weftv1.Snapshot{}).ProtoReflect().Descriptor())
	walk((&weftv1.Fact{}).ProtoReflect().Descriptor())
}

func TestApplyStopsAtWhatItDoesNotKnow(t *testing.T) {
	s := NewState()
	known, err := proto.Marshal(weftv1.Fact_builder{NodeJoined: weftv1.NodeJoined_builder{Node: new("n0"), BootId: new("b")}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	strange := []byte{0xfa, 0x3e, 0x00} // field 1007, empty
	commit := func(ignorable bool) *weftv1.Commit {
		return weftv1.Commit_builder{TimeNs: new(int64(9)), Entries: []*weftv1.Entry{
			weftv1.Entry_builder{Kind: new("leader_elected"), Fact: []byte{0xff}}.Build(),
			weftv1.Entry_builder{Kind: new("node_joined"), Fact: known}.Build(),
			weftv1.Entry_builder{Kind: new("from_tomorrow"), Fact: strange, Ignorable: &ignorable}.Build(),
		}, Cursors: []*weftv1.Cursor{weftv1.Cursor_builder{Stream: new("REPORTS"), Seq: new(uint64(4))}.Build()}}.Build()
	}
	err = Apply(s, commit(false), 7)
	var unknown *UnknownKind
	if !errors.As(err, &unknown) || unknown.Kind != "from_tomorrow" || unknown.Seq != 7 {
		t.Fatalf("got %v", err)
	}
	if s.Node("n0") != nil || s.TimeNS() != 0 {
		t.Fatal("a refused commit changed the state")
	}
	if err := Apply(s, commit(true), 7); err != nil {
		t.Fatal(err)
	}
	if s.Node("n0") == nil || s.TimeNS() != 9 || s.Cursor("REPORTS").GetSeq() != 4 {
		t.Fatal("the commit was not folded whole")
	}
}

// Commits may change in place what no overlay sees, and nothing that one does.
func TestOverlaysNeverChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type kept struct {
			s   *State
			enc []byte
		}
		s := NewState()
		var all []kept
		for i, c := range lives(rapid.IntRange(1, 30).Draw(t, "jobs"), 0) {
			if err := Apply(s, c, uint64(i+1)); err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 3).Draw(t, "look") == 0 {
				o := s.Overlay()
				if rapid.Bool().Draw(t, "of an overlay") {
					o = o.Overlay()
				}
				all = append(all, kept{o, Encode(o)})
			}
		}
		for i, k := range all {
			if !bytes.Equal(Encode(k.s), k.enc) {
				t.Fatalf("overlay %d of %d changed", i, len(all))
			}
		}
	})
}

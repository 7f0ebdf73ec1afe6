package keeper

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// FoldVersion changes whenever the same commits would give another index or other bytes.
const FoldVersion = 2

// Unknown is a fact of a kind that this version does not know and may not pass over.
type Unknown struct{ Kind string }

func (e *Unknown) Error() string { return fmt.Sprintf("keeper: unknown kind of fact %q", e.Kind) }

// Apply folds a commit; nothing has changed if it fails.
func Apply(ix *Index, c *weftv1.Commit) error {
	facts, err := decode(c.GetEntries())
	if err != nil {
		return err
	}
	for _, f := range facts {
		Evolve(ix, f)
	}
	for _, cur := range c.GetCursors() {
		ix.SetCursor(cur)
	}
	return nil
}

func decode(entries []*weftv1.Entry) ([]*weftv1.CheckpointFact, error) {
	var out []*weftv1.CheckpointFact
	for _, e := range entries {
		f := &weftv1.CheckpointFact{}
		err := proto.Unmarshal(e.GetFact(), f)
		switch {
		case err == nil && f.WhichKind() != 0 && kind(f) == e.GetKind():
			out = append(out, f)
		case e.GetIgnorable():
		case err != nil:
			return nil, fmt.Errorf("keeper: fact %s: %w", e.GetKind(), err)
		default:
			return nil, &Unknown{e.GetKind()}
		}
	}
	return out, nil
}

// kind is the name of the field that is set, as the ledger's entries carry it.
func kind(f *weftv1.CheckpointFact) string {
	m := f.ProtoReflect()
	return string(m.WhichOneof(m.Descriptor().Oneofs().Get(0)).Name())
}

// Encode freezes the index as the shortest run of facts that gives it, in a fixed order: a snapshot needs no format of its
// own. Equal indexes give equal bytes.
func Encode(ix *Index) []byte {
	var b weftv1.Commit_builder
	add := func(f *weftv1.CheckpointFact) {
		b.Entries = append(b.Entries, weftv1.Entry_builder{Kind: new(kind(f)), Fact: marshal(f)}.Build())
	}
	for _, id := range ix.Jobs() {
		j := ix.Job(id)
		for s := range j.Saves() {
			for _, f := range s.facts(j) {
				add(f)
			}
		}
	}
	streams := map[string]bool{}
	for at := ix; at != nil; at = at.base {
		for name := range at.cursors {
			streams[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(streams)) {
		b.Cursors = append(b.Cursors, ix.Cursor(name))
	}
	return marshal(b.Build())
}

func (s *Save) facts(j *Job) (out []*weftv1.CheckpointFact) {
	id, name := j.ID, s.Ref.GetSave()
	if s.State == Deleted {
		return []*weftv1.CheckpointFact{weftv1.CheckpointFact_builder{SaveDeleted: weftv1.SaveDeleted_builder{
			Job: &id, Save: &name, Tier: new("local"), Reason: &s.Reason,
		}.Build()}.Build()}
	}
	for _, r := range s.Declared {
		if p := s.Parts[r]; p != nil {
			out = append(out, weftv1.CheckpointFact_builder{PartVerified: p}.Build())
		}
	}
	if s.committed {
		out = append(out, weftv1.CheckpointFact_builder{SaveCommitted: weftv1.SaveCommitted_builder{
			Job: &id, Tenant: &j.Tenant, Save: s.Ref, Copies: s.Copies(), Bytes: &s.Bytes, TimeNs: &s.TimeNS,
		}.Build()}.Build())
	}
	if s.State == Quarantined {
		out = append(out, weftv1.CheckpointFact_builder{SaveQuarantined: weftv1.SaveQuarantined_builder{
			Job: &id, Save: &name, Node: &s.badNode, Reason: &s.Reason,
		}.Build()}.Build())
	}
	return out
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // only text that is not UTF-8 can do that, and every name was checked before it became a fact
		panic(fmt.Sprintf("keeper: encode: %v", err))
	}
	return b
}

// Decode reads what Encode made.
func Decode(b []byte) (*Index, error) {
	c := &weftv1.Commit{}
	if err := proto.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("keeper: snapshot: %w", err)
	}
	ix := NewIndex()
	return ix, Apply(ix, c)
}

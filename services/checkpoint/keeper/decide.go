package keeper

import (
	"fmt"
	"slices"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Refused says why a report changes nothing: it will not do so later either.
type Refused struct{ Reason string }

func (e *Refused) Error() string { return e.Reason }

func refused(format string, a ...any) error { return &Refused{fmt.Sprintf(format, a...)} }

// Report decides what follows from a part that was verified on a node: PartVerified, and SaveCommitted if it was the last.
// A repeat is no error and no fact. node is who reported it, by the bus.
func Report(ix *Index, node string, p *weftv1.PartRef, now int64) ([]*weftv1.CheckpointFact, error) {
	if err := saveid.Check(p); err != nil {
		return nil, refused("%v", err)
	}
	if !saveid.Token(node) {
		return nil, refused("%.70q is no name of a node", node)
	}
	if len(p.GetManifestHash()) != 64 {
		return nil, refused("part %s has no hash of its manifest", p.GetPath())
	}
	for _, f := range p.GetFiles() {
		if len(f.GetBlake3()) != 64 {
			return nil, refused("part %s: file %s was not verified", p.GetPath(), f.GetName())
		}
	}
	if ix.foreign(p.GetJob(), p.GetTenant()) {
		return nil, refused("job %s belongs to tenant %s, the part says %s", p.GetJob(), ix.Job(p.GetJob()).Tenant, p.GetTenant())
	}
	s := ix.Save(p.GetJob(), p.GetSave())
	rank := p.GetRanks()[0]
	if s != nil {
		switch known := s.Parts[rank]; {
		case s.State == Deleted || s.State == Quarantined:
			return nil, nil
		case s.Declared != nil && !slices.Equal(s.Declared, p.GetDeclared()):
			return nil, refused("rank %d declares other ranks for save %s than rank %d did; ranks= must be the same on every rank", rank, p.GetSave(), s.anyRank())
		case known != nil && known.GetPart().GetManifestHash() == p.GetManifestHash():
			return nil, nil
		case known != nil:
			return nil, refused("rank %d published save %s twice, on %s and on %s", rank, p.GetSave(), known.GetNode(), node)
		}
	}
	part := weftv1.CheckpointFact_builder{PartVerified: weftv1.PartVerified_builder{Node: &node, Part: p}.Build()}.Build()
	facts := []*weftv1.CheckpointFact{part}
	after := ix.Overlay()
	Evolve(after, part)
	if s = after.Save(p.GetJob(), p.GetSave()); s.State == Partial && s.complete() {
		var bytes int64
		for _, q := range s.Parts {
			bytes += saveid.Bytes(q.GetPart())
		}
		facts = append(facts, weftv1.CheckpointFact_builder{SaveCommitted: weftv1.SaveCommitted_builder{
			Job: new(p.GetJob()), Tenant: new(p.GetTenant()), Save: s.Ref, Copies: s.Copies(), Bytes: &bytes, TimeNs: &now,
		}.Build()}.Build())
	}
	return facts, nil
}

func (s *Save) anyRank() uint32 {
	for _, r := range s.Declared {
		if s.Parts[r] != nil {
			return r
		}
	}
	return 0
}

// Quarantine decides what follows from damage found in a part of a save, on a node.
func Quarantine(ix *Index, job, save, node, reason string) []*weftv1.CheckpointFact {
	if _, err := saveid.Parse(save); err != nil || !saveid.Token(job) {
		return nil
	}
	if s := ix.Save(job, save); s != nil && (s.State == Quarantined || s.State == Deleted) {
		return nil
	}
	return []*weftv1.CheckpointFact{weftv1.CheckpointFact_builder{SaveQuarantined: weftv1.SaveQuarantined_builder{
		Job: &job, Save: &save, Node: &node, Reason: &reason,
	}.Build()}.Build()}
}

// Unusable says why a save can't be restored; empty if it can. A nil save is unknown.
func (s *Save) Unusable() string {
	switch {
	case s == nil:
		return "nobody ever reported it"
	case s.State == Committed:
		return ""
	case s.State == Partial:
		return fmt.Sprintf("it is incomplete: %d of %d ranks have published their part", len(s.Parts), len(s.Declared))
	}
	return fmt.Sprintf("it is %s: %s", s.State, s.Reason)
}

// List describes a job's saves in restore order.
func List(ix *Index, job string) []*weftv1.SaveState {
	j := ix.Job(job)
	if j == nil {
		return nil
	}
	var out []*weftv1.SaveState
	for s := range j.Saves() {
		b := weftv1.SaveState_builder{
			Save: s.Ref, State: new(string(s.State)), Bytes: &s.Bytes, TimeNs: &s.TimeNS, Copies: s.Copies(), Reason: &s.Reason,
			Declared: new(uint32(len(s.Declared))), Verified: new(uint32(len(s.Parts))),
		}
		if s.State == Partial {
			bytes := int64(0)
			for _, p := range s.Parts {
				bytes += saveid.Bytes(p.GetPart())
			}
			b.Bytes = &bytes
		}
		out = append(out, b.Build())
	}
	return out
}

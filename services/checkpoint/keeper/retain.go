package keeper

import (
	"fmt"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Policy says how much a job keeps.
type Policy struct {
	Full  int // newest committed full saves; 0 = all
	Light int // newest committed light saves; 0 = all
}

// Retain decides which of a job's saves are given up. What must always hold, whatever the policy:
//   - the newest committed save of a class stays, so a restore finds the same save after it as before;
//   - a save goes only if at least as many newer committed saves of its class stay as the policy keeps; damaged and
//     incomplete ones do not count as such;
//   - a leased save stays: somebody is restoring it.
//
// Incomplete and quarantined saves go by the same rule: when enough newer ones are complete, nobody waits for them.
func Retain(ix *Index, job string, pol Policy, leased func(save string) bool) []*weftv1.CheckpointFact {
	j := ix.Job(job)
	if j == nil {
		return nil
	}
	keep := map[weftv1.SaveClass]int{
		weftv1.SaveClass_SAVE_CLASS_FULL:  pol.Full,
		weftv1.SaveClass_SAVE_CLASS_LIGHT: pol.Light,
	}
	newer := map[weftv1.SaveClass]int{}
	var out []*weftv1.CheckpointFact
	for s := range j.Saves() {
		class := s.Ref.GetClass()
		n := keep[class]
		if s.State == Deleted {
			continue
		}
		if n > 0 && newer[class] >= n && !leased(s.Ref.GetSave()) {
			out = append(out, weftv1.CheckpointFact_builder{SaveDeleted: weftv1.SaveDeleted_builder{
				Job: &job, Save: new(s.Ref.GetSave()), Tier: new("local"), Reason: new(fmt.Sprintf("%d newer ones are kept", n)),
			}.Build()}.Build())
			continue
		}
		if s.State == Committed {
			newer[class]++
		}
	}
	return out
}

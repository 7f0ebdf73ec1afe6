package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Unrestorable: this save cannot be restored here; an older one may.
type Unrestorable struct{ Why string }

func (e *Unrestorable) Error() string { return e.Why }

// Resume returns the directory of a save whose bytes the checkpoint service located, after looking that every part is
// there. verify reads one part's bytes; the nodes of an attempt share that work: rank r's part is read where rank
// r mod size runs.
func Resume(n Node, a *weftv1.AssignedAttempt, at *weftv1.LocateReply, verify func(dir string) error) (string, error) {
	if at.GetError() != "" {
		return "", &Unrestorable{at.GetError()}
	}
	save := a.GetResumeFrom().GetSave()
	dir := filepath.Join(n.SaveDir(a.GetTenant(), a.GetJob()), save)
	if len(at.GetCopies()) == 0 {
		return "", &Unrestorable{fmt.Sprintf("save %s has no copy anywhere", save)}
	}
	for _, c := range at.GetCopies() {
		part := filepath.Join(n.SavesDir, filepath.FromSlash(c.GetPath()))
		if !filepath.IsLocal(filepath.FromSlash(c.GetPath())) {
			return "", &Unrestorable{fmt.Sprintf("save %s names a part outside of the tier: %q", save, c.GetPath())}
		}
		if _, err := os.Stat(filepath.Join(part, "part.json")); err != nil {
			return "", &Unrestorable{fmt.Sprintf("save %s: the part %s is not on this node (written on %s): %v; share saves_dir between the nodes", save, c.GetPath(), c.GetNode(), err)}
		}
		if !slices.ContainsFunc(c.GetRanks(), func(r uint32) bool { return runsHere(a, r%max(1, a.GetSize())) }) {
			continue
		}
		if err := verify(part); err != nil {
			return "", &Unrestorable{fmt.Sprintf("save %s: %v", save, err)}
		}
	}
	return dir, nil
}

func runsHere(a *weftv1.AssignedAttempt, rank uint32) bool {
	for _, p := range a.GetPlacements() {
		if rank >= p.GetFirstRank() && rank < p.GetFirstRank()+p.GetCount() {
			return true
		}
	}
	return false
}

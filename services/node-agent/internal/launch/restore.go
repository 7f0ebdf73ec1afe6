package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Unrestorable says that this save cannot be restored here; an older one may.
type Unrestorable struct{ Why string }

func (e *Unrestorable) Error() string { return e.Why }

// Unreadable says that the save could not be read now, which says nothing about it.
type Unreadable struct{ Err error }

func (e *Unreadable) Error() string { return e.Err.Error() }
func (e *Unreadable) Unwrap() error { return e.Err }

// Resume returns the directory of a save whose bytes the checkpoint service located, after looking that every part is
// there. verify reads one part's bytes, and fails with *Unrestorable if they are damaged; the nodes of an attempt share
// that work: rank r's part is read where rank r mod size runs.
func Resume(ctx context.Context, n Node, a *weftv1.AssignedAttempt, at *weftv1.LocateReply, verify func(ctx context.Context, dir string) error) (string, error) {
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
		if _, err := os.Stat(filepath.Join(part, "part.json")); errors.Is(err, fs.ErrNotExist) {
			return "", &Unrestorable{fmt.Sprintf("save %s: the part %s, written on %s, is not on this node; share saves_dir between the nodes", save, c.GetPath(), c.GetNode())}
		} else if err != nil {
			return "", &Unreadable{err}
		}
		if !slices.ContainsFunc(c.GetRanks(), func(r uint32) bool { return runsHere(a, r%max(1, a.GetSize())) }) {
			continue
		}
		var bad *Unrestorable
		if err := verify(ctx, part); errors.As(err, &bad) {
			return "", &Unrestorable{fmt.Sprintf("save %s: %s", save, bad.Why)}
		} else if err != nil {
			return "", &Unreadable{err}
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

package nodeagent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/weft-fabric/weft/libs/manifest"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/launch"
	"github.com/weft-fabric/weft/services/node-agent/internal/shell"
)

// verifyPart reads one part of a save back. Only what is certainly damaged makes the save unrestorable.
func verifyPart(ctx context.Context, dir string) error {
	_, err := manifest.Verify(ctx, dir)
	var bad *manifest.Corrupt
	if errors.As(err, &bad) {
		return &launch.Unrestorable{Why: bad.Error()}
	}
	return err
}

// remember is for how long a job's parts stay known after it was last active here, so that its next attempt does not make
// this node read them all again.
const remember = 10 * time.Minute

const maxRemembered = 64

// scanParts finds what ranks of this node saved.
func scanParts(cfg Config) shell.Scan {
	sc := manifest.NewScanner(cfg.SavesDir, cfg.Node)
	active := map[manifest.Job]time.Time{}
	said := ""
	return func(ctx context.Context, jobs []shell.SaveJob, now time.Time) []*weftv1.PartRef {
		for _, j := range jobs {
			active[manifest.Job{Tenant: j.Tenant, ID: j.Job}] = now
		}
		names := make([]manifest.Job, 0, len(active))
		for j := range active {
			names = append(names, j)
		}
		slices.SortFunc(names, func(a, b manifest.Job) int { return active[b].Compare(active[a]) })
		for i, j := range names {
			if now.Sub(active[j]) > remember || i >= max(len(jobs), maxRemembered) {
				delete(active, j)
			}
		}
		names = names[:len(active)]
		parts, err := sc.Scan(ctx, names)
		if ctx.Err() != nil {
			return parts
		}
		// A file system that is away fails every scan alike: that is news once.
		wrong := ""
		if err != nil {
			wrong = err.Error()
		}
		if wrong != "" && wrong != said {
			slog.Warn("saves are damaged or cannot be read", "error", err)
		}
		said = wrong
		return parts
	}
}

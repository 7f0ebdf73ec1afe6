// Package manifest reads what ranks saved: it finds the parts of saves below a tier's root, reads their part.json without
// trusting it, verifies the bytes, and deletes a save where it is told to. It never writes a save, and never decides
// whether one is complete: that is the checkpoint service's matter.
//
// A part is one rank's contribution to a save, published by one rename (libs/python/weft.py does that). Whoever runs in
// the job may have written anything there: names that lead out, symbolic links, pipes, files of any size. So nothing is
// followed, only regular files are opened, and everything is bounded.
package manifest

import "fmt"

// Corrupt says that a part is definitely not what its rank saved. Any other error means that it could not be read now.
type Corrupt struct {
	Path   string // of the part, below the tier's root
	Reason string
}

func (e *Corrupt) Error() string { return fmt.Sprintf("part %s is corrupt: %s", e.Path, e.Reason) }

// Job names whose saves to look for.
type Job struct{ Tenant, ID string }

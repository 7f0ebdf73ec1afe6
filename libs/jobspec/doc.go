// Package jobspec reads what users write: job manifests and queue files. It owns their words, their validation, the
// defaults, and the hash that says whether two manifests mean the same job.
//
// Every error is one line that names the field and the cure. The package never does I/O, never asks the clock, and knows
// no state of the cell: whether a queue exists or has room is for libs/cell.
package jobspec

import (
	"fmt"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// MaxManifest is the largest manifest in bytes.
const MaxManifest = 64 << 10

// APIVersion is the only version of manifests.
const APIVersion = "weft/v1"

// Manifest is a parsed and valid job manifest.
type Manifest struct {
	// ID is the job's ULID, lower case; empty if the manifest has none.
	ID string
	// Spec is what was written, before defaults: a field not written is not set.
	Spec *weftv1.JobSpec
	// Hash of Spec, as Hash computes it.
	Hash string
	// Files is the directory to ship, relative to the manifest; empty if the job ships none.
	Files string
	// Tenant is the root of the queue path.
	Tenant string

	lines map[string]int // line of each field written, by path
}

// Error is a refusal of a manifest: one line that names the field and the cure.
type Error struct {
	Field   string // path such as spec.gpus; empty if the document itself is wrong
	Line    int    // from 1; 0 if unknown
	Message string // what is wrong and what to write instead
}

func (e *Error) Error() string {
	switch {
	case e.Field == "" && e.Line == 0:
		return "manifest: " + e.Message
	case e.Field == "":
		return fmt.Sprintf("manifest (line %d): %s", e.Line, e.Message)
	case e.Line == 0:
		return e.Field + ": " + e.Message
	}
	return fmt.Sprintf("%s (line %d): %s", e.Field, e.Line, e.Message)
}

// Errorf makes an error about a field of this manifest, with the line where it was written.
func (m *Manifest) Errorf(field, format string, args ...any) *Error {
	return &Error{Field: field, Line: m.lines[field], Message: fmt.Sprintf(format, args...)}
}

// SetBundle puts the digest of the uploaded files into the spec, and recomputes the hash: other files are another job.
func (m *Manifest) SetBundle(digest string) {
	m.Spec.SetBundle(digest)
	m.Hash = Hash(m.Spec)
}

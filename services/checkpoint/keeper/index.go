package keeper

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Index is everything that the checkpoint log says.
type Index struct {
	base    *Index // frozen; what this index has not changed is read there
	jobs    map[string]*Job
	cursors map[string]*weftv1.Cursor
}

// Job is one job's saves.
type Job struct {
	ID     string
	Tenant string // empty while only a deletion is known
	saves  map[string]*Save
	of     *Index // the index that may change it
}

// State of a save.
type State string

// The states. A save moves down this list only.
const (
	Partial     State = "partial"
	Committed   State = "committed"
	Quarantined State = "quarantined" // bytes were found damaged; it is never restored again
	Deleted     State = "deleted"     // its bytes are gone, or going
)

// Save is one save. What hangs below is never changed.
type Save struct {
	Ref       *weftv1.SaveRef
	Declared  []uint32 // ranks that it needs, ascending
	Parts     map[uint32]*weftv1.PartVerified
	State     State
	Bytes     int64
	TimeNS    int64 // when it was committed; for people
	Reason    string
	committed bool // it was complete once, whatever became of it
	badNode   string
	of        *Index
}

// NewIndex is the index of an empty log.
func NewIndex() *Index {
	return &Index{jobs: map[string]*Job{}, cursors: map[string]*weftv1.Cursor{}}
}

// Overlay is a copy that can be changed while ix can't: decisions of one batch are tried on it, and it is dropped.
func (ix *Index) Overlay() *Index {
	o := NewIndex()
	o.base = ix
	return o
}

// Job finds a job; nil if it has no saves.
func (ix *Index) Job(id string) *Job {
	for at := ix; at != nil; at = at.base {
		if j := at.jobs[id]; j != nil {
			return j
		}
	}
	return nil
}

// Jobs are the ids of all jobs, sorted.
func (ix *Index) Jobs() []string {
	ids := map[string]bool{}
	for at := ix; at != nil; at = at.base {
		for id := range at.jobs {
			ids[id] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// Save finds a save; nil if nothing is known of it.
func (ix *Index) Save(job, save string) *Save {
	if j := ix.Job(job); j != nil {
		return j.saves[save]
	}
	return nil
}

// Saves are a job's saves in restore order, the best first.
func (j *Job) Saves() iter.Seq[*Save] {
	return slices.Values(slices.SortedFunc(maps.Values(j.saves), func(a, b *Save) int { return compare(b.Ref, a.Ref) }))
}

// compare orders saves by attempt and step; of the same step the full one is the better.
func compare(a, b *weftv1.SaveRef) int {
	return cmp.Or(cmp.Compare(a.GetAttempt(), b.GetAttempt()), cmp.Compare(a.GetStep(), b.GetStep()), cmp.Compare(a.GetClass(), b.GetClass()))
}

// Cursor is how far an input stream has been consumed; nil = not at all.
func (ix *Index) Cursor(stream string) *weftv1.Cursor {
	for at := ix; at != nil; at = at.base {
		if c := at.cursors[stream]; c != nil {
			return c
		}
	}
	return nil
}

// SetCursor notes a commit's cursor.
func (ix *Index) SetCursor(c *weftv1.Cursor) { ix.cursors[c.GetStream()] = c }

// mutable returns the save for changing, made if it isn't there; nil if the name is none.
func (ix *Index) mutable(job, name string) (*Job, *Save) {
	ref, err := saveid.Parse(name)
	if err != nil || !saveid.Token(job) {
		return nil, nil
	}
	j := ix.Job(job)
	if j == nil {
		j = &Job{ID: job, saves: map[string]*Save{}, of: ix}
		ix.jobs[job] = j
	} else if j.of != ix {
		j = &Job{ID: j.ID, Tenant: j.Tenant, saves: maps.Clone(j.saves), of: ix}
		ix.jobs[job] = j
	}
	s := j.saves[name]
	if s == nil {
		s = &Save{Ref: ref, State: Partial, Parts: map[uint32]*weftv1.PartVerified{}, of: ix}
		j.saves[name] = s
	} else if s.of != ix {
		c := *s
		c.Parts, c.of = maps.Clone(s.Parts), ix
		s = &c
		j.saves[name] = s
	}
	return j, s
}

// Evolve folds one fact. It is total: what makes no sense changes nothing.
func Evolve(ix *Index, f *weftv1.CheckpointFact) {
	switch f.WhichKind() {
	case weftv1.CheckpointFact_PartVerified_case:
		ix.partVerified(f.GetPartVerified())
	case weftv1.CheckpointFact_SaveCommitted_case:
		e := f.GetSaveCommitted()
		if ix.foreign(e.GetJob(), e.GetTenant()) {
			return
		}
		if j, s := ix.mutable(e.GetJob(), e.GetSave().GetSave()); s != nil && s.State == Partial {
			j.Tenant = cmp.Or(j.Tenant, e.GetTenant())
			s.State, s.committed, s.Bytes, s.TimeNS = Committed, true, e.GetBytes(), e.GetTimeNs()
		}
	case weftv1.CheckpointFact_SaveQuarantined_case:
		e := f.GetSaveQuarantined()
		if _, s := ix.mutable(e.GetJob(), e.GetSave()); s != nil && s.State != Deleted && s.State != Quarantined {
			s.State, s.Reason, s.badNode = Quarantined, e.GetReason(), e.GetNode()
		}
	case weftv1.CheckpointFact_SaveDeleted_case:
		e := f.GetSaveDeleted()
		if _, s := ix.mutable(e.GetJob(), e.GetSave()); s != nil && s.State != Deleted {
			*s = Save{Ref: s.Ref, State: Deleted, Reason: e.GetReason(), Parts: map[uint32]*weftv1.PartVerified{}, of: ix}
			ix.forget(e.GetJob())
		}
	}
}

func (ix *Index) partVerified(e *weftv1.PartVerified) {
	p := e.GetPart()
	if saveid.Check(p) != nil || ix.foreign(p.GetJob(), p.GetTenant()) {
		return
	}
	j, s := ix.mutable(p.GetJob(), p.GetSave())
	if s.State != Partial || s.Parts[p.GetRanks()[0]] != nil {
		return
	}
	j.Tenant = cmp.Or(j.Tenant, p.GetTenant())
	if s.Declared == nil {
		s.Declared = p.GetDeclared()
	}
	if slices.Equal(s.Declared, p.GetDeclared()) {
		s.Parts[p.GetRanks()[0]] = e
	}
}

// foreign says whether a job is known to be another tenant's. A job has one tenant, in whatever order its saves are folded.
func (ix *Index) foreign(job, tenant string) bool {
	j := ix.Job(job)
	return j != nil && j.Tenant != "" && j.Tenant != tenant
}

// maxTombstones bounds what is remembered of one job's deleted saves. The oldest are forgotten first: a report of one of
// them, should it ever come, finds that its bytes are gone.
const maxTombstones = 256

func (ix *Index) forget(job string) {
	j := ix.Job(job)
	var dead []*Save
	for s := range j.Saves() {
		if s.State == Deleted {
			dead = append(dead, s)
		}
	}
	for _, s := range dead[min(len(dead), maxTombstones):] {
		delete(j.saves, s.Ref.GetSave())
	}
}

// complete says whether every declared rank has its part.
func (s *Save) complete() bool {
	for _, r := range s.Declared {
		if s.Parts[r] == nil {
			return false
		}
	}
	return len(s.Declared) > 0
}

// Copies says where the parts are, by rank.
func (s *Save) Copies() []*weftv1.SaveCopy {
	var out []*weftv1.SaveCopy
	for _, r := range s.Declared {
		if p := s.Parts[r]; p != nil {
			out = append(out, weftv1.SaveCopy_builder{
				Node: new(p.GetNode()), Tier: new(cmp.Or(p.GetPart().GetTier(), "local")), Path: new(p.GetPart().GetPath()), Ranks: []uint32{r},
			}.Build())
		}
	}
	return out
}

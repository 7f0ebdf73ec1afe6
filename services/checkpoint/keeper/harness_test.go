package keeper

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

const (
	full  = weftv1.SaveClass_SAVE_CLASS_FULL
	light = weftv1.SaveClass_SAVE_CLASS_LIGHT
)

// part is what an agent reports of a rank that it verified; version tells two contents apart.
func part(job string, attempt uint32, step uint64, class weftv1.SaveClass, rank uint32, version string, declared ...uint32) *weftv1.PartRef {
	save := saveid.Name(attempt, step, class)
	return weftv1.PartRef_builder{
		Job: &job, Tenant: new("acme"), Attempt: &attempt, Step: &step, Class: &class, Save: &save, Declared: declared, Ranks: []uint32{rank},
		Path: new(saveid.Path("acme", job, save, rank)), ManifestHash: new(hash(version)),
		Files: []*weftv1.SavedFile{weftv1.SavedFile_builder{Name: new("state.pt"), Bytes: new(int64(10)), Rank: &rank, Blake3: new(hash(version + "f"))}.Build()},
	}.Build()
}

func hash(text string) string { return (fmt.Sprintf("%x", text) + strings.Repeat("0", 64))[:64] }

type fataler interface {
	Helper()
	Fatalf(format string, a ...any)
}

// world is an index together with the log that it was folded from.
type world struct {
	t   fataler
	ix  *Index
	log []*weftv1.CheckpointFact
}

func newWorld(t fataler) *world { return &world{t: t, ix: NewIndex()} }

// commit folds facts by the way that they take through the log.
func (w *world) commit(facts []*weftv1.CheckpointFact) {
	w.t.Helper()
	if err := Apply(w.ix, weftv1.Commit_builder{Entries: ledger.FactEntries(facts)}.Build()); err != nil {
		w.t.Fatalf("apply: %v", err)
	}
	w.log = append(w.log, facts...)
}

func (w *world) report(node string, p *weftv1.PartRef) ([]*weftv1.CheckpointFact, error) {
	w.t.Helper()
	before := Encode(w.ix)
	facts, err := Report(w.ix, node, p, 1)
	if !bytes.Equal(before, Encode(w.ix)) {
		w.t.Fatalf("deciding changed the index")
	}
	w.commit(facts)
	return facts, err
}

// save reports every rank of a save.
func (w *world) save(job string, attempt uint32, step uint64, class weftv1.SaveClass, ranks ...uint32) string {
	w.t.Helper()
	for _, r := range ranks {
		if _, err := w.report("n1", part(job, attempt, step, class, r, "v", ranks...)); err != nil {
			w.t.Fatalf("report: %v", err)
		}
	}
	return saveid.Name(attempt, step, class)
}

func (w *world) retain(job string, pol Policy, leased ...string) []string {
	w.t.Helper()
	facts := Retain(w.ix, job, pol, func(save string) bool { return slices.Contains(leased, save) })
	w.commit(facts)
	gone := []string{}
	for _, f := range facts {
		gone = append(gone, f.GetSaveDeleted().GetSave())
	}
	return gone
}

func kinds(facts []*weftv1.CheckpointFact) string {
	var out []string
	for _, f := range facts {
		out = append(out, kind(f))
	}
	return strings.Join(out, " ")
}

// best is the save that a restore would use, by the order of saves.
func (w *world) best(job string, light bool) string {
	if j := w.ix.Job(job); j != nil {
		for s := range j.Saves() {
			if s.State == Committed && (light || s.Ref.GetClass() == weftv1.SaveClass_SAVE_CLASS_FULL) {
				return s.Ref.GetSave()
			}
		}
	}
	return ""
}

func wantEqual[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// refold folds the whole log anew.
func (w *world) refold() *Index {
	w.t.Helper()
	ix := NewIndex()
	for _, f := range w.log {
		Evolve(ix, proto.CloneOf(f))
	}
	return ix
}

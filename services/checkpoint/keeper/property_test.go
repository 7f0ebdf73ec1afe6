package keeper

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

var jobs = []string{"j1", "j2"}

// drawPart draws few saves, so that reports meet: repeats, other contents, other sets of ranks.
func drawPart(t *rapid.T) *weftv1.PartRef {
	declared := rapid.SampledFrom([][]uint32{{0}, {0, 1}, {0, 1}, {0, 1}, {0, 2, 5}}).Draw(t, "declared")
	return part(
		rapid.SampledFrom(jobs).Draw(t, "job"), rapid.Uint32Range(1, 2).Draw(t, "attempt"), rapid.Uint64Range(0, 4).Draw(t, "step"),
		rapid.SampledFrom([]weftv1.SaveClass{full, light}).Draw(t, "class"), rapid.SampledFrom(declared).Draw(t, "rank"),
		rapid.SampledFrom([]string{"v", "v", "v", "w"}).Draw(t, "version"), declared...)
}

func drawSave(t *rapid.T) string {
	return saveid.Name(rapid.Uint32Range(1, 2).Draw(t, "attempt"), rapid.Uint64Range(0, 4).Draw(t, "step"),
		rapid.SampledFrom([]weftv1.SaveClass{full, light}).Draw(t, "class"))
}

var nodes = rapid.SampledFrom([]string{"n1", "n2"})

// machine does what the service may do, in any order, and checks after every step what must always hold.
type machine struct {
	*world
	reported []*weftv1.PartRef
}

func (m *machine) Report(t *rapid.T) {
	p := drawPart(t)
	if _, err := m.report(nodes.Draw(t, "node"), p); err == nil {
		m.reported = append(m.reported, p)
	}
}

// Save reports whole saves, so that there are enough of them.
func (m *machine) Save(t *rapid.T) {
	job, steps := rapid.SampledFrom(jobs).Draw(t, "job"), rapid.SliceOfN(rapid.Uint64Range(0, 9), 1, 6).Draw(t, "steps")
	class := rapid.SampledFrom([]weftv1.SaveClass{full, light}).Draw(t, "class")
	for _, step := range steps {
		for r := range uint32(2) {
			_, _ = m.report("n1", part(job, 2, step, class, r, "v", 0, 1)) // refused where a drawn report said otherwise
		}
	}
}

func (m *machine) Repeat(t *rapid.T) {
	if len(m.reported) == 0 {
		t.Skip("nothing to repeat")
	}
	p := rapid.SampledFrom(m.reported).Draw(t, "part")
	if facts, err := m.report(nodes.Draw(t, "node"), p); err != nil || len(facts) > 0 {
		t.Fatalf("a repeat: %v, %v", facts, err)
	}
}

func (m *machine) Quarantine(t *rapid.T) {
	m.commit(Quarantine(m.ix, rapid.SampledFrom(jobs).Draw(t, "job"), drawSave(t), nodes.Draw(t, "node"), "damaged"))
}

// Retain checks what retention must never do.
func (m *machine) Retain(t *rapid.T) {
	job := rapid.SampledFrom(jobs).Draw(t, "job")
	pol := Policy{Full: rapid.IntRange(0, 3).Draw(t, "full"), Light: rapid.IntRange(0, 3).Draw(t, "light")}
	var leased []string
	for _, s := range List(m.ix, job) {
		if rapid.Bool().Draw(t, "leased") {
			leased = append(leased, s.GetSave().GetSave())
		}
	}
	before := map[bool]string{true: m.best(job, true), false: m.best(job, false)}
	usable := map[weftv1.SaveClass][]string{}
	for _, s := range List(m.ix, job) {
		if s.GetState() == string(Committed) {
			usable[s.GetSave().GetClass()] = append(usable[s.GetSave().GetClass()], s.GetSave().GetSave())
		}
	}
	gone := m.retain(job, pol, leased...)
	for _, light := range []bool{true, false} {
		if got := m.best(job, light); got != before[light] {
			t.Fatalf("retention changed the save to restore from %q to %q", before[light], got)
		}
	}
	for _, save := range gone {
		if slices.Contains(leased, save) {
			t.Fatalf("%s was deleted while somebody restores it", save)
		}
	}
	for class, keep := range map[weftv1.SaveClass]int{full: pol.Full, light: pol.Light} {
		for i, save := range usable[class] { // newest first
			deleted := slices.Contains(gone, save)
			must := keep == 0 || i < keep || slices.Contains(leased, save)
			if deleted == must {
				t.Fatalf("save %d of %v, keep %d: deleted %v", i, usable[class], keep, deleted)
			}
		}
	}
	if again := m.retain(job, pol, leased...); len(again) > 0 {
		t.Fatalf("retained twice: %v", again)
	}
}

// Restart goes on from a snapshot.
func (m *machine) Restart(t *rapid.T) {
	ix, err := Decode(Encode(m.ix))
	if err != nil {
		t.Fatal(err)
	}
	m.ix = ix
}

// Try decides on an overlay and drops it.
func (m *machine) Try(t *rapid.T) {
	before := Encode(m.ix)
	o := m.ix.Overlay()
	plain, err := Decode(before)
	if err != nil {
		t.Fatal(err)
	}
	for range rapid.IntRange(1, 4).Draw(t, "tries") {
		facts, _ := Report(o, "n1", drawPart(t), 1)
		facts = append(facts, Quarantine(o, rapid.SampledFrom(jobs).Draw(t, "job"), drawSave(t), "n1", "damaged")...)
		for _, f := range facts {
			Evolve(o, f)
			Evolve(plain, f)
		}
	}
	if !bytes.Equal(Encode(o), Encode(plain)) {
		t.Fatal("an overlay says something else than the index with the same facts")
	}
	if !bytes.Equal(before, Encode(m.ix)) {
		t.Fatal("an overlay that was dropped changed the index")
	}
}

// Refold reads the log as a replica does that starts without a snapshot.
func (m *machine) Refold(t *rapid.T) {
	if !bytes.Equal(Encode(m.refold()), Encode(m.ix)) {
		t.Fatal("folded anew it is another index")
	}
}

func (m *machine) Check(t *rapid.T) {
	checkLog(t, m.log)
	for _, job := range m.ix.Jobs() {
		m.checkJob(t, job)
	}
}

// checkLog reads the log as its other readers do: what it announces must be verified by then.
func checkLog(t *rapid.T, log []*weftv1.CheckpointFact) {
	type key struct{ job, save string }
	parts, ended, committed := map[key]map[uint32]*weftv1.PartRef{}, map[key]bool{}, map[key]bool{}
	for _, f := range log {
		switch f.WhichKind() {
		case weftv1.CheckpointFact_PartVerified_case:
			p := f.GetPartVerified().GetPart()
			k := key{p.GetJob(), p.GetSave()}
			if parts[k] == nil {
				parts[k] = map[uint32]*weftv1.PartRef{}
			}
			if parts[k][p.GetRanks()[0]] != nil || ended[k] {
				t.Fatalf("a part of %v twice, or after its end", k)
			}
			parts[k][p.GetRanks()[0]] = p
		case weftv1.CheckpointFact_SaveCommitted_case:
			c := f.GetSaveCommitted()
			k := key{c.GetJob(), c.GetSave().GetSave()}
			if committed[k] || ended[k] {
				t.Fatalf("%v was announced twice, or after its end", k)
			}
			committed[k] = true
			for _, p := range parts[k] {
				have := slices.Sorted(maps.Keys(parts[k]))
				if !slices.Equal(p.GetDeclared(), have) || len(c.GetCopies()) != len(have) || c.GetBytes() != int64(10*len(have)) {
					t.Fatalf("%v was announced with ranks %v of %v: %v", k, have, p.GetDeclared(), c)
				}
			}
			if len(parts[k]) == 0 {
				t.Fatalf("%v was announced without any part", k)
			}
		case weftv1.CheckpointFact_SaveQuarantined_case:
			ended[key{f.GetSaveQuarantined().GetJob(), f.GetSaveQuarantined().GetSave()}] = true
		case weftv1.CheckpointFact_SaveDeleted_case:
			ended[key{f.GetSaveDeleted().GetJob(), f.GetSaveDeleted().GetSave()}] = true
		}
	}
}

func (m *machine) checkJob(t *rapid.T, job string) {
	list := List(m.ix, job)
	for i, s := range list {
		save := m.ix.Save(job, s.GetSave().GetSave())
		if (save.Unusable() == "") != (s.GetState() == string(Committed)) {
			t.Fatalf("%v: %q", s, save.Unusable())
		}
		if s.GetState() == string(Committed) && (s.GetVerified() != s.GetDeclared() || len(s.GetCopies()) == 0) {
			t.Fatalf("usable without all of its parts: %v", s)
		}
		if i > 0 {
			a, b := list[i-1].GetSave(), s.GetSave()
			if a.GetAttempt() < b.GetAttempt() || a.GetAttempt() == b.GetAttempt() && a.GetStep() < b.GetStep() {
				t.Fatalf("%v stands before %v", a, b)
			}
		}
	}
	for _, light := range []bool{true, false} {
		want := ""
		for _, s := range list {
			if s.GetState() == string(Committed) && (light || s.GetSave().GetClass() == full) {
				want = s.GetSave().GetSave()
				break
			}
		}
		if got := m.best(job, light); got != want {
			t.Fatalf("best is %q, listed first is %q", got, want)
		}
	}
}

func TestAlways(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{world: newWorld(t)}
		t.Repeat(rapid.StateMachineActions(m))
		m.Refold(t)
	})
}

// TestOrderOfReportsDoesNotMatter: agents report when they can, twice if they are unsure.
func TestOrderOfReportsDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []*weftv1.PartRef
		for i := range rapid.IntRange(1, 4).Draw(t, "saves") {
			for r := range uint32(3) {
				parts = append(parts, part("j1", uint32(1+i/2), uint64(i), full, r, "v", 0, 1, 2))
			}
		}
		end := func(order []*weftv1.PartRef) string {
			w := newWorld(t)
			for _, p := range order {
				if _, err := w.report("n1", p); err != nil {
					t.Fatal(err)
				}
			}
			checkLog(t, w.log)
			return string(Encode(w.ix))
		}
		order := rapid.Permutation(append(slices.Clone(parts), parts[:len(parts)/2]...)).Draw(t, "order")
		if end(order) != end(parts) {
			t.Fatal("another order gives another index")
		}
	})
}

var rank = map[State]int{Partial: 0, Committed: 1, Quarantined: 2, Deleted: 3}

func states(ix *Index) map[string]State {
	out := map[string]State{}
	for _, job := range ix.Jobs() {
		for _, s := range List(ix, job) {
			out[job+" "+s.GetSave().GetSave()] = State(s.GetState())
		}
	}
	return out
}

// TestEvolveIsTotal folds what no service would write: it never panics, and a snapshot of what comes out gives the same.
func TestEvolveIsTotal(t *testing.T) {
	jobNames := rapid.SampledFrom([]string{"j1", "j1", "j2", "", "..", "x/y"})
	saveNames := rapid.SampledFrom([]string{"a1-s000000000001-full", "a1-s000000000001-full", "a2-s000000000002-light", "", "..", "j1"})
	rapid.Check(t, func(t *rapid.T) {
		ix := NewIndex()
		for i := range rapid.IntRange(1, 20).Draw(t, "facts") {
			f := &weftv1.CheckpointFact{}
			job, save, text := jobNames.Draw(t, "job"), saveNames.Draw(t, "save"), fmt.Sprint(i)
			switch rapid.IntRange(0, 5).Draw(t, "kind") {
			case 0:
				p := drawPart(t)
				if rapid.Bool().Draw(t, "another tenant") {
					p.SetTenant("beta")
					p.SetPath(saveid.Path("beta", p.GetJob(), p.GetSave(), p.GetRanks()[0]))
				}
				f.SetPartVerified(weftv1.PartVerified_builder{Node: new("n1"), Part: p}.Build())
			case 1:
				f.SetSaveCommitted(weftv1.SaveCommitted_builder{Job: &job, Tenant: &text, Save: weftv1.SaveRef_builder{Save: &save}.Build(), Bytes: new(int64(i))}.Build())
			case 2:
				f.SetSaveQuarantined(weftv1.SaveQuarantined_builder{Job: &job, Save: &save, Reason: &text}.Build())
			case 3:
				f.SetSaveDeleted(weftv1.SaveDeleted_builder{Job: &job, Save: &save, Reason: &text}.Build())
			case 4:
				f.SetPartVerified(&weftv1.PartVerified{})
			}
			before := states(ix)
			Evolve(ix, proto.CloneOf(f))
			for k, now := range states(ix) {
				if was, known := before[k]; known && rank[now] < rank[was] {
					t.Fatalf("%s was %s and is %s", k, was, now)
				}
			}
		}
		b := Encode(ix)
		again, err := Decode(b)
		if err != nil || !bytes.Equal(b, Encode(again)) {
			t.Fatalf("a snapshot is read as something else (%v)", err)
		}
		for _, job := range ix.Jobs() {
			List(ix, job)
			Retain(ix, job, Policy{1, 1}, func(string) bool { return false })
		}
	})
}

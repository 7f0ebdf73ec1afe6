package keeper

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestSaveIsCommittedWithItsLastRank(t *testing.T) {
	w := newWorld(t)
	for i, r := range []uint32{7, 0, 3} {
		facts, err := w.report("n1", part("j1", 1, 100, full, r, "v", 0, 3, 7))
		if err != nil {
			t.Fatal(err)
		}
		want := "part_verified"
		if i == 2 {
			want = "part_verified save_committed"
			c := facts[1].GetSaveCommitted()
			if c.GetBytes() != 30 || c.GetTenant() != "acme" || len(c.GetCopies()) != 3 || c.GetTimeNs() != 1 {
				t.Errorf("committed as %v", c)
			}
		}
		wantEqual(t, "facts", kinds(facts), want)
		if i < 2 {
			wantEqual(t, "best while ranks are missing", w.best("j1", true), "")
			if why := w.ix.Save("j1", saveid.Name(1, 100, full)).Unusable(); !strings.Contains(why, "of 3 ranks") {
				t.Error(why)
			}
		}
	}
	wantEqual(t, "best", w.best("j1", false), "a1-s000000000100-full")
	facts, err := w.report("n2", part("j1", 1, 100, full, 3, "v", 0, 3, 7))
	if err != nil || len(facts) > 0 {
		t.Errorf("a repeat: %v, %v", facts, err)
	}
}

// TestCountIsNoSet: as many parts as there are ranks are not all ranks.
func TestCountIsNoSet(t *testing.T) {
	w := newWorld(t)
	w.save("j1", 1, 1, full, 0, 1)
	if facts, err := w.report("n1", part("j1", 1, 2, full, 0, "v", 0, 1)); kinds(facts) != "part_verified" || err != nil {
		t.Fatalf("%v, %v", facts, err)
	}
	if facts, err := w.report("n1", part("j1", 1, 2, full, 5, "v", 0, 5)); len(facts) > 0 || err == nil {
		t.Fatalf("other ranks were declared: %v, %v", facts, err)
	}
	wantEqual(t, "best", w.best("j1", false), "a1-s000000000001-full")
}

func TestRefusedReports(t *testing.T) {
	w := newWorld(t)
	w.save("j1", 1, 1, full, 0)
	_ = must(w.report("n1", part("j1", 1, 2, full, 0, "v", 0, 1)))
	for what, c := range map[string]struct {
		node   string
		change func(p *weftv1.PartRef)
		why    string
	}{
		"no node":           {"", func(*weftv1.PartRef) {}, "no name of a node"},
		"node leads out":    {"../n1", func(*weftv1.PartRef) {}, "no name of a node"},
		"path leads out":    {"n1", func(p *weftv1.PartRef) { p.SetPath("../" + p.GetPath()) }, "its place is"},
		"no manifest hash":  {"n1", func(p *weftv1.PartRef) { p.SetManifestHash("") }, "no hash"},
		"file not verified": {"n1", func(p *weftv1.PartRef) { p.GetFiles()[0].SetBlake3("") }, "not verified"},
		"no files":          {"n1", func(p *weftv1.PartRef) { p.SetFiles(nil) }, "files"},
		"other content":     {"n1", func(p *weftv1.PartRef) { p.SetManifestHash(hash("w")) }, "published save a1-s000000000002-full twice"},
		"other declared":    {"n1", func(p *weftv1.PartRef) { p.SetDeclared([]uint32{0, 1, 2}) }, "declares other ranks"},
		"somebody's else": {"n1", func(p *weftv1.PartRef) {
			p.SetTenant("beta")
			p.SetPath(strings.Replace(p.GetPath(), "acme", "beta", 1))
		}, "belongs to tenant acme"},
		"two ranks":          {"n1", func(p *weftv1.PartRef) { p.SetRanks([]uint32{0, 1}) }, "one rank"},
		"rank not declared":  {"n1", func(p *weftv1.PartRef) { p.SetDeclared([]uint32{1}) }, "not among"},
		"nothing in it":      {"n1", func(p *weftv1.PartRef) { proto.Reset(p) }, "no name of a save"},
		"class not the name": {"n1", func(p *weftv1.PartRef) { p.SetClass(light) }, "says attempt"},
	} {
		p := part("j1", 1, 2, full, 0, "v", 0, 1)
		c.change(p)
		facts, err := w.report(c.node, p)
		if r := (*Refused)(nil); !errors.As(err, &r) || len(facts) > 0 || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v, %v; want a refusal that says %q", what, facts, err, c.why)
		}
	}
	wantEqual(t, "best", w.best("j1", false), "a1-s000000000001-full")
}

func must(facts []*weftv1.CheckpointFact, err error) []*weftv1.CheckpointFact {
	if err != nil {
		panic(err)
	}
	return facts
}

func TestRestoreOrder(t *testing.T) {
	w := newWorld(t)
	wantEqual(t, "without saves", w.best("j1", true), "")
	w.save("j1", 1, 500, full, 0)
	w.save("j1", 2, 100, full, 0) // a later attempt that started from an older step: it is the job's state now
	wantEqual(t, "attempt before step", w.best("j1", false), "a2-s000000000100-full")
	w.save("j1", 2, 150, light, 0)
	wantEqual(t, "light saves serve when asked", w.best("j1", true), "a2-s000000000150-light")
	wantEqual(t, "and only then", w.best("j1", false), "a2-s000000000100-full")
	w.save("j1", 2, 150, full, 0)
	wantEqual(t, "full before light", w.best("j1", true), "a2-s000000000150-full")
	w.save("j1", 1, 900, full, 0) // reported late
	wantEqual(t, "a straggler of an earlier attempt", w.best("j1", false), "a2-s000000000150-full")
	w.save("j2", 9, 900, full, 0)
	wantEqual(t, "another job's", w.best("j1", false), "a2-s000000000150-full")
	var order []string
	for _, s := range List(w.ix, "j1") {
		order = append(order, s.GetSave().GetSave()+" "+s.GetState())
	}
	wantEqual(t, "listed", strings.Join(order, ", "), "a2-s000000000150-full committed, a2-s000000000150-light committed, "+
		"a2-s000000000100-full committed, a1-s000000000900-full committed, a1-s000000000500-full committed")
}

func TestDamagedSaveGivesWayToTheOlder(t *testing.T) {
	w := newWorld(t)
	old := w.save("j1", 1, 1, full, 0, 1)
	bad := w.save("j1", 1, 2, full, 0, 1)
	w.commit(Quarantine(w.ix, "j1", bad, "n2", "rank 1: state.pt is missing"))
	wantEqual(t, "best", w.best("j1", false), old)
	if why := w.ix.Save("j1", bad).Unusable(); !strings.Contains(why, "quarantined: rank 1: state.pt is missing") {
		t.Error(why)
	}
	for _, facts := range [][]*weftv1.CheckpointFact{
		Quarantine(w.ix, "j1", bad, "n1", "again"), Quarantine(w.ix, "j1", "..", "n1", "no save"), Quarantine(w.ix, "../j1", bad, "n1", "no job"),
		must(w.report("n1", part("j1", 1, 2, full, 0, "v", 0, 1))), must(w.report("n1", part("j1", 1, 2, full, 0, "other", 0, 1))),
	} {
		if len(facts) > 0 {
			t.Errorf("facts about a damaged save: %v", facts)
		}
	}
	// Damage that is found before the last rank reports keeps the save from ever being committed.
	_ = must(w.report("n1", part("j1", 1, 3, full, 0, "v", 0, 1)))
	w.commit(Quarantine(w.ix, "j1", saveid.Name(1, 3, full), "n2", "rank 1: damaged"))
	if facts := must(w.report("n1", part("j1", 1, 3, full, 1, "v", 0, 1))); len(facts) > 0 {
		t.Error(facts)
	}
	wantEqual(t, "best after all", w.best("j1", false), old)
}

func TestRetention(t *testing.T) {
	w := newWorld(t)
	pol := Policy{Full: 2, Light: 1}
	if gone := w.retain("j1", pol); len(gone) > 0 {
		t.Error(gone)
	}
	f1 := w.save("j1", 1, 1, full, 0)
	l2 := w.save("j1", 1, 2, light, 0)
	_ = must(w.report("n1", part("j1", 1, 3, full, 0, "v", 0, 1))) // never complete
	f4 := w.save("j1", 1, 4, full, 0)
	wantEqual(t, "two full and one light", len(w.retain("j1", pol)), 0)
	f5 := w.save("j1", 1, 5, full, 0)
	wantEqual(t, "leased", strings.Join(w.retain("j1", pol, f1), " "), "a1-s000000000003-full")
	wantEqual(t, "the lease ended", strings.Join(w.retain("j1", pol), " "), f1)
	wantEqual(t, "again", len(w.retain("j1", pol)), 0)
	// Damage makes room: the older one stays although there are two newer ones.
	w.commit(Quarantine(w.ix, "j1", f5, "n1", "damaged"))
	f6 := w.save("j1", 1, 6, full, 0)
	wantEqual(t, "damaged ones do not count", len(w.retain("j1", pol)), 0)
	f7 := w.save("j1", 1, 7, full, 0)
	wantEqual(t, "oldest first to go", strings.Join(w.retain("j1", pol), " "), f5+" "+f4)
	wantEqual(t, "full saves do not push out light ones", w.ix.Save("j1", l2).Unusable(), "")
	wantEqual(t, "keep all", len(w.retain("j1", Policy{})), 0)
	wantEqual(t, "keep one", strings.Join(w.retain("j1", Policy{Full: 1, Light: 1}), " "), f6)
	wantEqual(t, "best", w.best("j1", false), f7)
	if facts := must(w.report("n1", part("j1", 1, 4, full, 0, "v", 0))); len(facts) > 0 {
		t.Errorf("a late report brought a deleted save back: %v", facts)
	}
	if why := w.ix.Save("j1", f4).Unusable(); !strings.Contains(why, "deleted: 2 newer ones are kept") {
		t.Error(why)
	}
}

func TestTombstonesAreBounded(t *testing.T) {
	w := newWorld(t)
	const n = maxTombstones + 40
	for step := range uint64(n + 1) {
		w.save("j1", 1, step, full, 0)
		w.retain("j1", Policy{Full: 1})
	}
	wantEqual(t, "saves known", len(List(w.ix, "j1")), maxTombstones+1)
	if w.ix.Save("j1", saveid.Name(1, n-1, full)) == nil || w.ix.Save("j1", saveid.Name(1, 0, full)) != nil {
		t.Error("not the oldest were forgotten")
	}
	if !bytes.Equal(Encode(w.refold()), Encode(w.ix)) {
		t.Error("folded anew it is another index")
	}
}

// TestApplyIsAllOrNothing: a commit that can't be read leaves the index as it was.
func TestApplyIsAllOrNothing(t *testing.T) {
	w := newWorld(t)
	w.save("j1", 1, 1, full, 0)
	good := ledger.FactEntry(must(Report(w.ix, "n1", part("j1", 1, 2, full, 0, "v", 0), 1))[0])
	before := Encode(w.ix)
	cursor := weftv1.Cursor_builder{Stream: new("SAVES"), Seq: new(uint64(9))}.Build()
	entry := func(kind, fact string, ignorable bool) *weftv1.Entry {
		return weftv1.Entry_builder{Kind: &kind, Fact: []byte(fact), Ignorable: &ignorable}.Build()
	}
	for what, e := range map[string]*weftv1.Entry{
		"unknown kind": entry("save_moved", "", false), "cut short": entry("part_verified", "\x0a\xff", false),
		"empty": entry("part_verified", "", false), "another kind than it says": entry("save_deleted", string(good.GetFact()), false),
	} {
		if err := Apply(w.ix, weftv1.Commit_builder{Entries: []*weftv1.Entry{good, e}, Cursors: []*weftv1.Cursor{cursor}}.Build()); err == nil {
			t.Errorf("%s: no error", what)
		}
		if !bytes.Equal(before, Encode(w.ix)) {
			t.Fatalf("%s: half of it was applied", what)
		}
	}
	var u *Unknown
	if err := Apply(w.ix, weftv1.Commit_builder{Entries: []*weftv1.Entry{entry("save_moved", "", false)}}.Build()); !errors.As(err, &u) || u.Kind != "save_moved" {
		t.Error(err)
	}
	if err := Apply(w.ix, weftv1.Commit_builder{Entries: []*weftv1.Entry{entry("save_moved", "x", true), good}, Cursors: []*weftv1.Cursor{cursor}}.Build()); err != nil {
		t.Error(err)
	}
	if w.ix.Save("j1", saveid.Name(1, 2, full)) == nil || w.ix.Cursor("SAVES").GetSeq() != 9 || w.ix.Cursor("OTHER") != nil {
		t.Error("what may be ignored kept the rest from being applied")
	}
	for _, b := range []string{"\xff", "\x12\x02\x0a\xff"} {
		if _, err := Decode([]byte(b)); err == nil {
			t.Errorf("snapshot %q was read", b)
		}
	}
}

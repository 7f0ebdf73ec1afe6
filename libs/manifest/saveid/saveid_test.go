package saveid

import (
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func TestNamesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attempt, step := rapid.Uint32Min(1).Draw(t, "attempt"), rapid.Uint64().Draw(t, "step")
		class := rapid.SampledFrom([]weftv1.SaveClass{weftv1.SaveClass_SAVE_CLASS_FULL, weftv1.SaveClass_SAVE_CLASS_LIGHT}).Draw(t, "class")
		name := Name(attempt, step, class)
		ref, err := Parse(name)
		if err != nil || ref.GetAttempt() != attempt || ref.GetStep() != step || ref.GetClass() != class || ref.GetSave() != name {
			t.Fatalf("%s became %v, %v", name, ref, err)
		}
		rank := rapid.Uint32().Draw(t, "rank")
		if got, ok := ParsePartDir(PartDir(rank)); !ok || got != rank {
			t.Fatalf("rank %d became %d, %v", rank, got, ok)
		}
	})
}

// TestOtherNames: each save has one name only, or two directories could claim to be it.
func TestOtherNames(t *testing.T) {
	for _, name := range []string{
		"", "a1-s1-full", "a1-s0000000000001-full", "a01-s000000000001-full", "a0-s000000000001-full", "a1-s000000000001-best", "a1-s000000000001-FULL",
		"a1-s000000000001-full-", "a1-s000000000001-full/..", "../a1-s000000000001-full", "a1-s+00000000001-full", "a+1-s000000000001-full",
		"a4294967296-s000000000001-full", "a1-s18446744073709551616-full", "a-1-s000000000001-full", " a1-s000000000001-full", "a1-s000000000001",
	} {
		if ref, err := Parse(name); err == nil {
			t.Errorf("%q is %v", name, ref)
		}
	}
	for _, dir := range []string{"", "rank-", "rank-01", "rank-+1", "rank--1", "rank-4294967296", "rank-1/", "1", "Rank-1"} {
		if r, ok := ParsePartDir(dir); ok {
			t.Errorf("%q is rank %d", dir, r)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a1-s000000000100-full")
	f.Add("a1-s0000000000100-light")
	f.Fuzz(func(t *testing.T, name string) {
		if ref, err := Parse(name); err == nil && Name(ref.GetAttempt(), ref.GetStep(), ref.GetClass()) != name {
			t.Fatalf("%q is taken for %v", name, ref)
		}
	})
}

func FuzzFileName(f *testing.F) {
	for _, s := range []string{"a", "a/b", "../a", "/a", "a/../b", "a\x00", "a//b", ".", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if FileName(name) && (!filepath.IsLocal(name) || filepath.Clean(name) != name || !utf8.ValidString(name) || strings.ContainsAny(name, "\\\x00\n\x1b")) {
			t.Fatalf("%q may name a file", name)
		}
	})
}

func good() *weftv1.PartRef {
	class := weftv1.SaveClass_SAVE_CLASS_FULL
	return weftv1.PartRef_builder{
		Job: new("j1"), Tenant: new("acme"), Attempt: new(uint32(1)), Step: new(uint64(7)), Class: &class, Save: new(Name(1, 7, class)),
		Declared: []uint32{0, 1, 5}, Ranks: []uint32{1}, Path: new("acme/j1/a1-s000000000007-full/rank-1"),
		Files: []*weftv1.SavedFile{
			weftv1.SavedFile_builder{Name: new("a"), Bytes: new(int64(3)), Rank: new(uint32(1))}.Build(),
			weftv1.SavedFile_builder{Name: new("b"), Bytes: new(int64(4)), Rank: new(uint32(1))}.Build(),
		},
	}.Build()
}

func TestCheck(t *testing.T) {
	if err := Check(good()); err != nil || Bytes(good()) != 7 {
		t.Fatalf("%v, %d bytes", err, Bytes(good()))
	}
	for what, change := range map[string]func(p *weftv1.PartRef){
		"nothing":            func(p *weftv1.PartRef) { proto.Reset(p) },
		"tenant":             func(p *weftv1.PartRef) { p.SetTenant("..") },
		"job":                func(p *weftv1.PartRef) { p.SetJob("j/1") },
		"long job":           func(p *weftv1.PartRef) { p.SetJob(strings.Repeat("j", 64)) },
		"save":               func(p *weftv1.PartRef) { p.SetSave("a1-s7-full") },
		"attempt":            func(p *weftv1.PartRef) { p.SetAttempt(2) },
		"step":               func(p *weftv1.PartRef) { p.SetStep(8) },
		"class":              func(p *weftv1.PartRef) { p.SetClass(weftv1.SaveClass_SAVE_CLASS_LIGHT) },
		"declares nobody":    func(p *weftv1.PartRef) { p.SetDeclared(nil) },
		"declares twice":     func(p *weftv1.PartRef) { p.SetDeclared([]uint32{0, 1, 1}) },
		"declares unsorted":  func(p *weftv1.PartRef) { p.SetDeclared([]uint32{1, 0}) },
		"declares too far":   func(p *weftv1.PartRef) { p.SetDeclared([]uint32{1, MaxRanks}) },
		"no rank":            func(p *weftv1.PartRef) { p.SetRanks(nil) },
		"two ranks":          func(p *weftv1.PartRef) { p.SetRanks([]uint32{0, 1}) },
		"undeclared rank":    func(p *weftv1.PartRef) { p.SetRanks([]uint32{2}) },
		"path":               func(p *weftv1.PartRef) { p.SetPath("acme/j1/a1-s000000000007-full/rank-5") },
		"path leads out":     func(p *weftv1.PartRef) { p.SetPath("acme/j1/a1-s000000000007-full/../../../etc") },
		"no files":           func(p *weftv1.PartRef) { p.SetFiles(nil) },
		"file leads out":     func(p *weftv1.PartRef) { p.GetFiles()[0].SetName("../a") },
		"file twice":         func(p *weftv1.PartRef) { p.GetFiles()[0].SetName("b") },
		"negative size":      func(p *weftv1.PartRef) { p.GetFiles()[0].SetBytes(-1) },
		"huge size":          func(p *weftv1.PartRef) { p.GetFiles()[0].SetBytes(MaxFileBytes + 1) },
		"another rank's":     func(p *weftv1.PartRef) { p.GetFiles()[0].SetRank(0) },
		"too many files":     func(p *weftv1.PartRef) { p.SetFiles(many(MaxFiles+1, 8)) },
		"too long all names": func(p *weftv1.PartRef) { p.SetFiles(many(MaxFiles, 200)) },
	} {
		p := good()
		change(p)
		if Check(p) == nil {
			t.Errorf("%s: it passed", what)
		}
	}
	p := good()
	if p.SetFiles(many(MaxFiles, 100)); Check(p) != nil {
		t.Errorf("as many files as there may be: %v", Check(p))
	}
}

func many(n, length int) (out []*weftv1.SavedFile) {
	for i := range n {
		name := strings.Repeat("x", length-4) + string([]byte{'0' + byte(i/1000), '0' + byte(i/100%10), '0' + byte(i/10%10), '0' + byte(i%10)})
		out = append(out, weftv1.SavedFile_builder{Name: &name, Bytes: new(int64(1)), Rank: new(uint32(1))}.Build())
	}
	return out
}

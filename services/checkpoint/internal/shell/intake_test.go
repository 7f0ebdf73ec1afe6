package shell

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	"github.com/weft-fabric/weft/libs/ledger/memledger"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

func TestReportsBecomeCheckpoints(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	first := f.write("j1", 1, 10, full, 0, "0-1")
	f.report(f.verify(first))
	wantFacts(t, r.run().fabric, "verified a1-s000000000010-full 0 on n0")
	wantEqual(t, "best while a rank is missing", r.best(), "")
	f.report(f.verify(first)) // the agent is unsure and says it again
	f.report(f.verify(f.write("j1", 1, 10, full, 1, "0-1")))
	wantFacts(t, r.run().fabric, committedFacts("a1-s000000000010-full")...)
	wantEqual(t, "best", r.best(), "a1-s000000000010-full")
	wantEqual(t, "cursor", f.cursor(), 3)
	wantEqual(t, "errors", len(r.errs), 0)
}

// TestDamagedSaveIsNotAnnounced: between the agent's look and this one a byte was lost.
func TestDamagedSaveIsNotAnnounced(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(f *fabric, save string) error
		why    string
	}{
		"a bit":      {func(f *fabric, s string) error { f.damage(s, 1); return nil }, "rank 1: state.bin: its SHA-256 is"},
		"cut short":  {func(f *fabric, s string) error { return os.Truncate(f.file(s, 1, "state.bin"), 3) }, "rank 1: state.bin: it has 3 bytes"},
		"missing":    {func(f *fabric, s string) error { return os.Remove(f.file(s, 1, "state.bin")) }, "rank 1: state.bin: it is missing"},
		"no record":  {func(f *fabric, s string) error { return os.Remove(f.file(s, 1, "part.json")) }, "rank 1: it has no part.json"},
		"a link":     {func(f *fabric, s string) error { return os.Symlink("/etc/passwd", f.file(s, 1, "link")) }, "rank 1: open "},
		"more of it": {func(f *fabric, s string) error { return os.WriteFile(f.file(s, 1, "x"), nil, 0o600) }, `rank 1: file "x" is not listed`},
		"part a link": {func(f *fabric, s string) error {
			d := f.file(s, 1, "")
			return errors.Join(os.Rename(d, d+"x"), os.Symlink(d+"x", d))
		}, "rank 1: open "},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t, t.TempDir())
			r := f.lead(t.Context())
			old := f.save(10)
			r.run()
			bad := f.save(20)
			if err := c.damage(f, bad); err != nil {
				t.Fatal(err)
			}
			r.run()
			wantFacts(t, f, append(committedFacts(old), "verified "+bad+" 0 on n0", "quarantined "+bad+" on n1: "+c.why)...)
			wantEqual(t, "best", r.best(), old)
			if a, err := r.locate(bad); err != nil || !strings.Contains(a.GetError(), "quarantined: rank 1") {
				t.Errorf("located: %v, %v", a, err)
			}
			if a, err := r.locate(old); err != nil || a.GetError() != "" || len(a.GetCopies()) != 2 {
				t.Errorf("the older one: %v, %v", a, err)
			}
			f.save(30)
			wantEqual(t, "best afterwards", r.run().best(), "a1-s000000000030-full")
		})
	}
}

// TestPoison: input that makes no sense is passed over, once and for good, and what comes behind it is not held up.
func TestPoison(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	part := f.verify(f.write("j1", 1, 10, full, 0, "0-1"))
	change := func(do func(p *weftv1.PartRef)) []byte {
		p := proto.CloneOf(part)
		do(p)
		b, err := proto.Marshal(weftv1.SaveReport_builder{Node: new("n0"), Part: p}.Build())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	poison := map[string][]byte{
		"garbage":            []byte("\xff\xff\xff"),
		"nothing":            nil,
		"no part":            mustMarshal(weftv1.SaveReport_builder{Node: new("n0")}.Build()),
		"another node's":     mustMarshal(weftv1.SaveReport_builder{Node: new("n9"), Part: part}.Build()),
		"path leads out":     change(func(p *weftv1.PartRef) { p.SetPath("../../etc/passwd") }),
		"job leads out":      change(func(p *weftv1.PartRef) { p.SetJob("../../etc") }),
		"no hash":            change(func(p *weftv1.PartRef) { p.SetManifestHash("") }),
		"another hash":       change(func(p *weftv1.PartRef) { p.SetManifestHash(strings.Repeat("0", 64)) }),
		"file not verified":  change(func(p *weftv1.PartRef) { p.GetFiles()[0].SetBlake3("") }),
		"another file hash":  change(func(p *weftv1.PartRef) { p.GetFiles()[0].SetBlake3(strings.Repeat("0", 64)) }),
		"no files":           change(func(p *weftv1.PartRef) { p.SetFiles(nil) }),
		"rank not declared":  change(func(p *weftv1.PartRef) { p.SetRanks([]uint32{7}) }),
		"names a wrong step": change(func(p *weftv1.PartRef) { p.SetStep(11) }),
	}
	for what, b := range poison {
		f.send(bus.SubjectSave("n0"), b)
		if r.run(); len(f.facts()) > 0 {
			t.Fatalf("%s: %v", what, f.facts())
		}
	}
	wantEqual(t, "errors", len(r.errs), 0)
	good := f.save(20)
	r.run()
	wantFacts(t, f, committedFacts(good)...)
	wantEqual(t, "cursor", f.cursor(), uint64(len(poison)+2))
	for range idleCursor {
		f.send(bus.SubjectSave("n0"), poison["garbage"])
	}
	r.run()
	if got := f.cursor(); got < idleCursor {
		t.Errorf("after %d reports without consequence the cursor is at %d: a restart reads them all again", idleCursor, got)
	}
	next := f.lead(t.Context())
	wantEqual(t, "errors after a restart", len(next.errs), 0)
	// The part that the poison spoke of lies on the disk, and it is whole.
	wantFacts(t, f, append(committedFacts(good), "verified a1-s000000000010-full 0 on n0")...)
}

func mustMarshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func TestTwoRanksThatDisagree(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	f.report(f.verify(f.write("j1", 1, 10, full, 0, "0-1")))
	f.report(f.verify(f.write("j1", 1, 10, full, 1, "0-2")))
	r.run()
	wantFacts(t, f, "verified a1-s000000000010-full 0 on n0")
}

// TestRestart: the next replica goes on where the log says, with what came meanwhile and with what was under way.
func TestRestart(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	r.run()
	b := f.save(20)
	r.pool.hold = true // it reads the reports and dies before the bytes are read back
	r.run()
	wantFacts(t, f, committedFacts(a)...)
	wantEqual(t, "cursor", f.cursor(), 2)
	c := f.save(30)
	next := f.lead(t.Context())
	wantFacts(t, f, committedFacts(a, b, c)...)
	wantEqual(t, "best", next.best(), c)
	wantEqual(t, "errors", len(next.errs), 0)
	var one, two []byte
	next.proj.View(func(ix *keeper.Index, _ ledger.Position) { one = keeper.Encode(ix) })
	again := f.lead(t.Context())
	again.proj.View(func(ix *keeper.Index, _ ledger.Position) { two = keeper.Encode(ix) })
	wantEqual(t, "folded anew", string(two), string(one))
	wantFacts(t, f, committedFacts(a, b, c)...)

	// The old one wakes up, and its word counts no more.
	r.pool.hold = false
	r.run()
	f.save(40)
	r.run()
	wantFacts(t, f, committedFacts(a, b, c)...)
	if r.writer.Leading() {
		t.Error("it believes that it leads")
	}
	again.run()
	wantEqual(t, "best at last", again.best(), "a1-s000000000040-full")
}

// TestAppendsThatFail: what was decided is decided again; nothing is said twice, and nothing is left out.
func TestAppendsThatFail(t *testing.T) {
	for _, fault := range []faultledger.Fault{faultledger.Drop, faultledger.LoseAck, faultledger.Late} {
		for n := range 4 {
			t.Run(fmt.Sprintf("fault %d after %d", fault, n), func(t *testing.T) {
				f := newFabric(t, t.TempDir())
				f.policy = keeper.Policy{Full: 1}
				r := f.lead(t.Context())
				plan := append(make([]faultledger.Fault, n), fault)
				f.log.PlanAppends(plan...)
				var want []string
				saves := []string{}
				for step := range uint64(4) {
					saves = append(saves, f.save(step))
					r.run()
					f.log.Land(t.Context())
					r.run()
					want = append(want, committedFacts(saves[step])...)
					if step > 0 {
						want = append(want, "deleted "+saves[step-1])
					}
				}
				if !r.writer.Leading() { // what came late made it step down
					r = f.lead(t.Context())
				}
				wantFacts(t, f, want...)
				wantEqual(t, "best", r.best(), saves[3])
				wantEqual(t, "on disk", strings.Join(f.onDisk(), " "), saves[3])
				if n < 3 && len(r.errs) == 0 && fault != faultledger.Late {
					t.Error("no append failed")
				}
			})
		}
	}
}

func TestBusOutage(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	f.bus.SetDown(true)
	for range 3 {
		if _, _, err := r.shell.Step(t.Context(), f.now); !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("a step without the bus: %v", err)
		}
	}
	f.bus.SetDown(false)
	r.run()
	wantFacts(t, f, committedFacts(a)...)
}

// TestStreamMadeAnew: the cursor speaks of the old stream; the new one is read from its start.
func TestStreamMadeAnew(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	r.run()
	f.bus.Recreate(bus.StreamSaves)
	b := f.save(20)
	r.run()
	wantFacts(t, f, committedFacts(a, b)...)
	wantEqual(t, "cursor", f.cursor(), 2)
	_, created, err := f.bus.Inbox(bus.StreamSaves, "").Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	commits := f.commits()
	wantEqual(t, "the stream that the cursor speaks of", commits[len(commits)-1].GetCursors()[0].GetCreatedNs(), created)
	f.bus.Recreate(bus.StreamSaves)
	c := f.save(30)
	f.lead(t.Context())
	wantFacts(t, f, committedFacts(a, b, c)...)
}

// TestTruthIsOnTheDisk: without log and reports, all is found again.
func TestTruthIsOnTheDisk(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a, b, bad := f.save(10), f.save(20), f.save(30)
	r.run()
	f.damage(bad, 0)
	f.write("j1", 1, 40, full, 0, "0-1") // never complete
	if err := os.MkdirAll(filepath.Join(f.root, "acme/j1/.staging/a1-s000000000050-full.r0.1"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.log = faultledger.Wrap(memledger.New())
	f.bus.Recreate(bus.StreamSaves)
	r = f.lead(t.Context())
	wantFacts(t, f, append(committedFacts(a, b), "verified "+bad+" 1 on n1", "verified a1-s000000000040-full 0 on n0")...)
	wantEqual(t, "best", r.best(), b)
	f.lead(t.Context()) // and nothing is found twice
	wantEqual(t, "facts", len(f.facts()), 8)
}

// TestUnseenDirectory: where the saves are not seen from here, the agents' verification counts and nothing is deleted.
func TestUnseenDirectory(t *testing.T) {
	f := newFabric(t, t.TempDir())
	f.policy = keeper.Policy{Full: 1}
	saves := []string{f.save(10), f.save(20)}
	root := f.root
	f.root = ""
	r := f.lead(t.Context())
	wantFacts(t, f, append(committedFacts(saves...), "deleted "+saves[0])...)
	f.root = root
	wantEqual(t, "on disk", strings.Join(f.onDisk(), " "), strings.Join(saves, " "))
	if a, err := r.locate(saves[1]); err != nil || a.GetError() != "" || a.GetCopies()[1].GetNode() != "n1" {
		t.Errorf("located: %v, %v", a, err)
	}
}

// TestSaveNotSeenYet: a shared file system may show a part late; the agent's word stands.
func TestSaveNotSeenYet(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	hidden := filepath.Join(t.TempDir(), "hidden")
	if err := os.Rename(filepath.Join(f.root, "acme/j1", a), hidden); err != nil {
		t.Fatal(err)
	}
	r.run()
	wantFacts(t, f, committedFacts(a)...)
	if _, err := r.locate(a); err == nil || !strings.Contains(err.Error(), "not to be seen yet") {
		t.Errorf("located: %v", err)
	}
	if err := os.Rename(hidden, filepath.Join(f.root, "acme/j1", a)); err != nil {
		t.Fatal(err)
	}
	if l, err := r.locate(a); err != nil || l.GetError() != "" {
		t.Errorf("located once it is seen: %v, %v", l, err)
	}
}

func TestTrim(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	r.run()
	left := func() int {
		in, err := f.bus.Inbox(bus.StreamSaves, "").Next(t.Context(), 100)
		if err != nil {
			t.Fatal(err)
		}
		return len(in)
	}
	r.advance(trimEvery)
	wantEqual(t, "reports kept for an hour after their commit", left(), 2)
	b := f.save(20)
	r.run()
	r.advance(trimEvery)
	wantEqual(t, "later reports", left(), 2)
	r.advance(trimEvery)
	wantEqual(t, "all consumed", left(), 0)
	wantFacts(t, f, committedFacts(a, b)...)
}

// TestFollowerDoesNothing: it neither commits nor answers.
func TestFollowerDoesNothing(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.start(t.Context())
	a := f.save(10)
	r.run()
	wantFacts(t, f)
	if _, err := r.located(f.ask(bus.SubjectRPC("checkpoint", "locate"), "j1", a)); !errors.Is(err, bus.ErrNoAnswer) {
		t.Errorf("a follower answered: %v", err)
	}
	r.elect()
	if _, next, err := r.shell.Step(t.Context(), f.now); err != nil || next.After(f.now.Add(time.Minute)) {
		t.Errorf("%v, %v", next, err)
	}
	r.run()
	wantFacts(t, f, committedFacts(a)...)
	r.writer.Resign()
	r.run()
	if _, err := r.located(f.ask(bus.SubjectRPC("checkpoint", "locate"), "j1", a)); !errors.Is(err, bus.ErrNoAnswer) {
		t.Errorf("one that resigned answered: %v", err)
	}
}

// TestManyReports: more than the window holds.
func TestManyReports(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.start(t.Context())
	const n = 3*window + 7
	for step := range uint64(n) {
		f.save(step)
	}
	r.elect()
	r.run()
	wantEqual(t, "facts", len(f.facts()), 3*n)
	wantEqual(t, "best", r.best(), saveid.Name(1, n-1, full))
	wantEqual(t, "cursor", f.cursor(), 2*n)
}

package shell

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

func wantRefusal(t *testing.T, err error, code, part string) {
	t.Helper()
	var r *bus.Refusal
	if !errors.As(err, &r) || r.Code != code || !strings.Contains(r.Message, part) {
		t.Errorf("%v, want %s that says %q", err, code, part)
	}
}

func TestLocate(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	r.run()
	for _, subject := range []string{bus.SubjectRPC("checkpoint", "locate"), bus.SubjectNodeRPC("checkpoint", "locate", "n7")} {
		p := f.ask(subject, "j1", a)
		r.run()
		l, err := r.located(p)
		if err != nil || l.GetError() != "" || l.GetSave().GetStep() != 10 || len(l.GetCopies()) != 2 {
			t.Fatalf("%s: %v, %v", subject, l, err)
		}
		c := l.GetCopies()[1]
		if c.GetNode() != "n1" || c.GetTier() != "local" || c.GetPath() != saveid.Path("acme", "j1", a, 1) || c.GetRanks()[0] != 1 {
			t.Errorf("copy %v", c)
		}
	}
	f.report(f.verify(f.write("j1", 1, 20, full, 0, "0-1")))
	r.run()
	if l, err := r.locate(saveid.Name(1, 20, full)); err != nil || !strings.Contains(l.GetError(), "incomplete: 1 of 2 ranks") {
		t.Errorf("incomplete: %v, %v", l, err)
	}
	for _, save := range []string{saveid.Name(1, 30, full), "", "../x"} {
		_, err := r.locate(save)
		wantRefusal(t, err, bus.CodeNotFound, "nobody ever reported it")
	}
	for _, method := range []string{"locate", "list"} {
		p := f.bus.Caller().Call(bus.SubjectRPC("checkpoint", method), []byte("\xff"), time.Hour)
		r.run()
		_, err := r.located(p)
		wantRefusal(t, err, bus.CodeInvalid, "Request")
	}
}

func TestList(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	f.save(10)
	f.saveOf("j1", 1, 15, light)
	f.report(f.verify(f.write("j1", 1, 20, full, 0, "0-1")))
	f.saveOf("j2", 1, 99, full)
	r.run()
	p := f.bus.Caller().Call(bus.SubjectRPC("checkpoint", "list"), mustMarshal(weftv1.SavesRequest_builder{Job: new("j1")}.Build()), time.Hour)
	r.run()
	a, _ := p.Poll()
	m := &weftv1.SavesReply{}
	if a.Err != nil || proto.Unmarshal(a.Data, m) != nil {
		t.Fatal(a.Err)
	}
	var got []string
	for _, s := range m.GetSaves() {
		got = append(got, s.GetSave().GetSave()+" "+s.GetState())
	}
	wantEqual(t, "list", strings.Join(got, ", "),
		"a1-s000000000020-full partial, a1-s000000000015-light committed, a1-s000000000010-full committed")
}

// TestDamageFoundBeforeARestore: a save that was whole when it was committed is looked at again, and everybody who waits
// for it hears of the damage.
func TestDamageFoundBeforeARestore(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(f *fabric, save string) error
		why    string
	}{
		"a bit":        {func(f *fabric, s string) error { f.damage(s, 1); return nil }, "SHA-256"},
		"part missing": {func(f *fabric, s string) error { return os.RemoveAll(f.file(s, 1, "")) }, "it is missing"},
		"save missing": {func(f *fabric, s string) error { return os.RemoveAll(filepath.Join(f.root, "acme/j1", s)) }, "it is missing"},
		"crowded": {func(f *fabric, s string) error {
			var errs []error
			for i := range 2100 {
				errs = append(errs, os.Mkdir(f.file(s, 1, "d")+strings.Repeat("x", i%100)+string(rune('a'+i/100)), 0o755))
			}
			return errors.Join(errs...)
		}, "too much"},
		"another part, as whole": {func(f *fabric, s string) error {
			b, err := os.ReadFile(f.file(s, 1, "part.json"))
			return errors.Join(err, os.WriteFile(f.file(s, 1, "part.json"), append(b, '\n'), 0o600))
		}, "not the one that was reported"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t, t.TempDir())
			r := f.lead(t.Context())
			old, bad := f.save(10), f.save(20)
			r.run()
			if err := c.damage(f, bad); err != nil {
				t.Fatal(err)
			}
			r.pool.hold = true
			first, second := f.ask(bus.SubjectRPC("checkpoint", "locate"), "j1", bad), f.ask(bus.SubjectNodeRPC("checkpoint", "locate", "n1"), "j1", bad)
			r.run()
			if _, done := first.Poll(); done {
				t.Fatal("answered before the bytes were read")
			}
			r.pool.hold = false
			r.run()
			for _, p := range []bus.Pending{first, second} {
				if l, err := r.located(p); err != nil || !strings.Contains(l.GetError(), c.why) || len(l.GetCopies()) > 0 {
					t.Errorf("located: %v, %v; want %q", l, err, c.why)
				}
			}
			facts := f.facts()
			if last := facts[len(facts)-1]; !strings.HasPrefix(last, "quarantined "+bad+" on n") || !strings.Contains(last, c.why) {
				t.Errorf("last fact %q", last)
			}
			wantEqual(t, "best", r.best(), old)
			if l, err := r.locate(old); err != nil || l.GetError() != "" {
				t.Errorf("the older one: %v, %v", l, err)
			}
		})
	}
}

// TestOneLookServesAnAttempt: many nodes ask at once, and the bytes are read once for all of them, and again for the next.
func TestOneLookServesAnAttempt(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	r.run()
	ask := func() *weftv1.LocateReply {
		t.Helper()
		l, err := r.locate(a)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	ask()
	f.damage(a, 0)
	r.advance(trustFor - 1)
	wantEqual(t, "within a minute", ask().GetError(), "")
	r.advance(1)
	if e := ask().GetError(); !strings.Contains(e, "SHA-256") {
		t.Errorf("after it: %q", e)
	}
}

// TestMissingPart: what was never seen here may still come into sight; after a minute it is missing.
func TestMissingPart(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	if err := os.RemoveAll(filepath.Join(f.root, "acme/j1", a)); err != nil {
		t.Fatal(err)
	}
	r.run() // on the agents' word
	_, err := r.locate(a)
	wantRefusal(t, err, bus.CodeUnavailable, "not to be seen yet")
	r.advance(missingFor - 1)
	_, err = r.locate(a)
	wantRefusal(t, err, bus.CodeUnavailable, "not to be seen yet")
	r.advance(1)
	if l, err := r.locate(a); err != nil || !strings.Contains(l.GetError(), "missing") {
		t.Errorf("%v, %v", l, err)
	}
	wantEqual(t, "best", r.best(), "")
}

// TestJobSeenElsewhere: a job whose directory is not here at all is its agents' matter.
func TestJobSeenElsewhere(t *testing.T) {
	f := newFabric(t, t.TempDir())
	r := f.lead(t.Context())
	a := f.save(10)
	if err := os.RemoveAll(filepath.Join(f.root, "acme/j1")); err != nil {
		t.Fatal(err)
	}
	r.run()
	for range 3 {
		if l, err := r.locate(a); err != nil || l.GetError() != "" {
			t.Errorf("%v, %v", l, err)
		}
		r.advance(10 * missingFor)
	}
}

func TestRetentionOnDisk(t *testing.T) {
	f := newFabric(t, t.TempDir())
	f.policy = keeper.Policy{Full: 2, Light: 1}
	r := f.lead(t.Context())
	disk := func(what string, want ...string) {
		t.Helper()
		wantEqual(t, what, strings.Join(f.onDisk(), " "), strings.Join(want, " "))
	}
	f10, l11, f20 := f.save(10), f.saveOf("j1", 1, 11, light), f.save(20)
	r.run()
	disk("as many as are kept", f10, l11, f20)
	if l, err := r.locate(f10); err != nil || l.GetError() != "" { // a restore begins
		t.Fatal(l, err)
	}
	f30, f40 := f.save(30), f.save(40)
	r.run()
	disk("the one under restore stays", f10, l11, f30, f40)
	if l, err := r.locate(f20); err != nil || !strings.Contains(l.GetError(), "deleted: 2 newer") {
		t.Errorf("deleted: %v, %v", l, err)
	}
	r.advance(leaseFor - 1)
	f50 := f.save(50)
	r.run()
	disk("until its lease ends", f10, l11, f40, f50)
	r.advance(1)
	f60, l61 := f.save(60), f.saveOf("j1", 1, 61, light)
	r.run()
	disk("afterwards", f50, f60, l61)
	wantEqual(t, "best", r.best(), f60)
	_ = f30

	// Damaged ones do not count: the older whole one stays, whatever is newer.
	bad := f.save(70)
	f.damage(bad, 0)
	f80 := f.save(80)
	r.run()
	disk("beside a damaged one", f60, l61, bad, f80)
	f.damage(f80, 0)
	if l, err := r.locate(f80); err != nil || l.GetError() == "" {
		t.Fatal(l, err)
	}
	wantEqual(t, "best again", r.best(), f60)
	disk("only the oldest is whole", f60, l61, bad, f80)
}

// TestDeletionSurvivesARestart: what the log gave up goes, though its leader died before it was removed.
func TestDeletionSurvivesARestart(t *testing.T) {
	f := newFabric(t, t.TempDir())
	f.policy = keeper.Policy{Full: 1}
	r := f.lead(t.Context())
	f.save(10)
	r.run()
	b := f.save(20)
	r.pool.hold = true
	r.run()
	for len(r.pool.queue) > 0 && len(f.facts()) < 7 { // the parts are read back, and then it dies
		queue := r.pool.queue
		r.pool.queue = nil
		for _, work := range queue {
			work(t.Context())()
		}
		r.run()
	}
	wantFacts(t, f, append(committedFacts("a1-s000000000010-full", b), "deleted a1-s000000000010-full")...)
	wantEqual(t, "on disk", len(f.onDisk()), 2)
	f.lead(t.Context())
	wantEqual(t, "on disk after the restart", strings.Join(f.onDisk(), " "), b)
	wantEqual(t, "facts", len(f.facts()), 7)
}

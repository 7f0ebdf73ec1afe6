package shell

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/bus/faultbus"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/ledger/faultledger"
	"github.com/weft-fabric/weft/libs/manifest/saveid"
	"github.com/weft-fabric/weft/services/checkpoint/keeper"
)

// machine lets everything happen to the service that may: reports in any order and twice, damage, lost appends, an outage of
// the bus, work that takes long, death, and a rival that was thought dead.
type machine struct {
	*fabric
	r       *replica
	old     *replica
	ctx     context.Context
	step    uint64
	parts   []string        // reported or to be
	whole   []string        // saves of which every part was reported
	damaged map[string]bool // saves that this test broke
	broken  map[string]bool // of those, broken before the service could look
}

func (m *machine) Save(t *rapid.T) {
	m.step++
	for rank := range uint32(2) {
		path := m.write("j1", 1, m.step, full, rank, "0-1")
		m.parts = append(m.parts, path)
		m.report(m.verify(path))
	}
	m.whole = append(m.whole, saveid.Name(1, m.step, full))
}

// Broken is a save that loses a byte just after the agents looked.
func (m *machine) Broken(t *rapid.T) {
	if len(m.damaged) > int(m.step)/4 {
		t.Skip("too few saves")
	}
	m.Save(t)
	save := saveid.Name(1, m.step, full)
	m.damaged[save], m.broken[save] = true, true
	m.damage(save, rapid.Uint32Range(0, 1).Draw(t, "rank"))
}

// Part writes one rank's part; the other's comes with a later call, or never. Its report may be lost.
func (m *machine) Part(t *rapid.T) {
	step, rank := rapid.Uint64Range(m.step, m.step+2).Draw(t, "step")+1000, rapid.Uint32Range(0, 1).Draw(t, "rank")
	name := saveid.Name(1, step, full)
	if _, err := os.Stat(m.file(name, rank, "")); err == nil || m.damaged[name] {
		t.Skip("it is there")
	}
	path := m.write("j1", 1, step, full, rank, "0-1")
	m.parts = append(m.parts, path)
	if rapid.Bool().Draw(t, "reported") {
		m.report(m.verify(path))
	}
}

// Repeat says a report again, if what it speaks of is still there and whole.
func (m *machine) Repeat(t *rapid.T) {
	if len(m.parts) == 0 {
		t.Skip("none")
	}
	path := rapid.SampledFrom(m.parts).Draw(t, "part")
	if _, err := os.Stat(filepath.Join(m.root, path)); err == nil && !m.damaged[strings.Split(path, "/")[2]] {
		m.report(m.verify(path))
	}
}

func (m *machine) Poison(t *rapid.T) {
	m.send(bus.SubjectSave("n0"), rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "bytes"))
}

// Damage breaks a save, but never more than one in four: then there is something to go back to.
func (m *machine) Damage(t *rapid.T) {
	saves := m.onDisk()
	if len(saves) == 0 || len(m.damaged) > int(m.step)/4 {
		t.Skip("too few saves")
	}
	save, rank := rapid.SampledFrom(saves).Draw(t, "save"), rapid.Uint32Range(0, 1).Draw(t, "rank")
	if _, err := os.Stat(m.file(save, rank, "")); err != nil || m.damaged[save] {
		t.Skip("no such part")
	}
	m.damaged[save] = true
	m.damage(save, rank)
}

func (m *machine) Fault(t *rapid.T) {
	m.log.PlanAppends(rapid.SampledFrom([]faultledger.Fault{faultledger.Drop, faultledger.LoseAck, faultledger.Late}).Draw(t, "fault"))
}

// Reading and trimming the reports fails, gives less than there is, or seems to fail.
func (m *machine) Reading(t *rapid.T) {
	m.r.saves.PlanReads(rapid.SliceOfN(rapid.SampledFrom([]faultbus.Fault{faultbus.Drop, faultbus.Delay, faultbus.Short}), 1, 4).Draw(t, "reads")...)
	m.r.saves.PlanTrims(rapid.SampledFrom([]faultbus.Fault{faultbus.None, faultbus.Drop, faultbus.LoseAck}).Draw(t, "trim"))
}

func (m *machine) Land(*rapid.T) { m.log.Land(m.ctx) }

func (m *machine) Hold(*rapid.T) { m.r.pool.hold = !m.r.pool.hold }

func (m *machine) Outage(*rapid.T) {
	m.bus.SetDown(true)
	_, _, _ = m.r.shell.Step(m.ctx, m.now)
	m.bus.SetDown(false)
}

func (m *machine) Run(t *rapid.T) {
	m.now = m.now.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "seconds")) * time.Second)
	m.r.run()
	if m.old != nil {
		m.old.run()
	}
}

func (m *machine) Die(*rapid.T) {
	if m.old != nil {
		m.old.shell.Close() // gone for good
	}
	m.old = m.r
	m.r = m.start(m.ctx)
	for m.r.writer.Lead(m.ctx, m.now) != nil { // a planned fault meets this append, too
		m.log.Land(m.ctx)
	}
}

// Restore does what the scheduler and the agents do: they take the newest save that was announced. The answer is honest.
func (m *machine) Restore(t *rapid.T) {
	m.settle()
	save := m.r.best()
	if save == "" {
		return
	}
	l, err := m.r.locate(save)
	if err != nil {
		t.Fatalf("%s: %v", save, err)
	}
	whole := true
	for rank := range uint32(2) {
		if _, err := os.Stat(m.file(save, rank, "state.bin")); err != nil {
			t.Fatalf("%s was announced and not given up, and its bytes are gone: %v", save, err)
		}
		whole = whole && !m.damaged[save]
	}
	if (l.GetError() == "") != whole && !m.trusted(save) {
		t.Fatalf("%s is whole: %v; located: %v", save, whole, l)
	}
	if l.GetError() != "" && m.r.best() == save {
		t.Fatalf("%s is damaged and would be chosen again", save)
	}
}

// trusted: it was looked at within the last minute, and broke since.
func (m *machine) trusted(save string) bool {
	return m.now.Before(m.r.shell.checked[saveKey{"j1", save}].Add(trustFor))
}

// settle ends all that is under way.
func (m *machine) settle() {
	m.r.pool.hold = false
	m.r.saves.Heal()
	m.r.run()
	m.log.Land(m.ctx)
	m.r.run()
	for !m.r.writer.Leading() {
		m.Die(nil)
		m.r.run()
	}
	m.r.run()
	if m.old != nil {
		m.old.run() // it finds that it leads no more, and stops answering
	}
}

// Check reads the log as others do.
func (m *machine) Check(t *rapid.T) {
	facts := m.facts()
	seen := map[string]bool{}
	var usable []string // and not deleted, as of each fact
	for _, f := range facts {
		key, _, _ := strings.Cut(f, " on ")
		if seen[key] {
			t.Fatalf("said twice: %s", f)
		}
		seen[key] = true
		if save, is := strings.CutPrefix(f, "committed "); is &&
			(!seen["verified "+save+" 0"] || !seen["verified "+save+" 1"] || seen["quarantined "+save] || seen["deleted "+save]) {
			t.Fatalf("%s was announced unverified, or after its end:\n%s", save, strings.Join(facts, "\n"))
		} else if is {
			if m.broken[save] {
				t.Fatalf("%s was announced and was never whole", save)
			}
			usable = append(usable, save)
		}
		if save, is := strings.CutPrefix(key, "quarantined "); is {
			usable = slices.DeleteFunc(usable, func(s string) bool { return s == save })
		}
		if save, is := strings.CutPrefix(f, "deleted "); is {
			usable = slices.DeleteFunc(usable, func(s string) bool { return s == save })
			newer := 0
			for _, s := range usable {
				if s > save { // of one attempt, names sort as steps do
					newer++
				}
			}
			if newer < m.policy.Full {
				t.Fatalf("%s was deleted with %d newer ones left, keep %d", save, newer, m.policy.Full)
			}
		}
	}
}

// end checks that nothing that was whole was forgotten.
func (m *machine) end(t *rapid.T) {
	m.settle()
	m.r.proj.View(func(ix *keeper.Index, _ ledger.Position) {
		for _, save := range m.whole {
			if s := ix.Save("j1", save); !m.damaged[save] && (s == nil || s.State != keeper.Committed && s.State != keeper.Deleted) {
				t.Fatalf("%s was reported, and is %+v", save, s)
			}
		}
	})
	m.Die(nil) // a rescan finds what nobody reported
	m.settle()
	m.Check(t)
	m.r.proj.View(func(ix *keeper.Index, _ ledger.Position) {
		for _, save := range m.onDisk() {
			s := ix.Save("j1", save)
			both := true
			for rank := range uint32(2) {
				_, err := os.Stat(m.file(save, rank, ""))
				both = both && err == nil
			}
			if both && !m.damaged[save] && (s == nil || s.State != keeper.Committed) {
				t.Fatalf("%s lies there whole, and is %+v", save, s)
			}
		}
	})
	if again := m.start(m.ctx); again.run() != nil {
		var a, b []byte
		again.proj.View(func(ix *keeper.Index, _ ledger.Position) { a = keeper.Encode(ix) })
		m.r.proj.View(func(ix *keeper.Index, _ ledger.Position) { b = keeper.Encode(ix) })
		if !slices.Equal(a, b) {
			t.Fatal("folded anew it is another index")
		}
	}
}

func TestAlways(t *testing.T) {
	dir, n := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		m := &machine{fabric: newFabric(rt, filepath.Join(dir, fmt.Sprint(n))), ctx: t.Context(), damaged: map[string]bool{}, broken: map[string]bool{}}
		if err := os.Mkdir(m.root, 0o755); err != nil {
			rt.Fatal(err)
		}
		m.policy = keeper.Policy{Full: rapid.IntRange(1, 3).Draw(rt, "keep")}
		m.r = m.lead(t.Context())
		rt.Repeat(rapid.StateMachineActions(m))
		m.end(rt)
		_ = os.RemoveAll(m.root)
	})
}

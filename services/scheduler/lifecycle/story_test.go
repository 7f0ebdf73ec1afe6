package lifecycle

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Stories: each file tells one thing a user or an operator would ask about. Commands and expected facts; run with
// -rewrite to write down what happens now, then read it as if a stranger had written it.
func TestStories(t *testing.T) {
	told := map[[2]cell.Phase]bool{}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			w := newWorld(t)
			w.told = told
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				w.t = t
				return w.run(d)
			})
		})
	}
	for from, tos := range cell.Moves {
		for _, to := range tos {
			if !told[[2]cell.Phase{from, to}] {
				t.Errorf("no story tells of the move from %q to %q", from, to)
			}
		}
	}
}

// t0 is when every story begins.
const t0 = int64(1_800_000_000_000_000_000)

// world is a cell in a story: its state, its clock, and short names for what has long ids.
type world struct {
	t     *testing.T
	s     *cell.State
	now   int64
	pol   Policy
	ids   map[string]string // name → id
	seq   uint64            // ledger
	facts []*weftv1.Commit
	told  map[[2]cell.Phase]bool // moves that a story showed
}

func newWorld(t *testing.T) *world {
	return &world{t: t, s: cell.NewState(), now: t0, pol: DefaultPolicy(), ids: map[string]string{}}
}

// do decides and folds one command, as the shell would, and says what happened.
func (w *world) do(c Command) string {
	before := cell.Hash(w.s)
	facts, err := Decide(w.s, c, w.now, w.pol)
	if cell.Hash(w.s) != before {
		w.t.Fatal("Decide changed the state")
	}
	if err != nil {
		var r *Refusal
		if !errors.As(err, &r) {
			w.t.Fatalf("%T fails with %v, which is no refusal", c, err)
		}
		field := ""
		if r.Field != "" {
			field = " (" + r.Field + ")"
		}
		return w.names("refused " + r.Code + field + ": " + r.Message + "\n")
	}
	return w.fold(facts)
}

func (w *world) fold(facts []*weftv1.Fact) string {
	if len(facts) == 0 {
		return "nothing\n"
	}
	entries := make([]*weftv1.Entry, len(facts))
	var b strings.Builder
	step := w.s.Overlay()
	for i, f := range facts {
		entries[i] = entry(w.t, f)
		b.WriteString(w.fact(f))
		was := phasesOf(step)
		cell.Evolve(step, f, w.now)
		for id, to := range phasesOf(step) {
			if from := was[id]; from != to {
				w.told[[2]cell.Phase{from, to}] = true
			}
		}
	}
	w.seq++
	commit := weftv1.Commit_builder{TimeNs: &w.now, Entries: entries}.Build()
	w.facts = append(w.facts, commit)
	if err := cell.Apply(w.s, commit, w.seq); err != nil {
		w.t.Fatal(err)
	}
	w.now++ // ledger time grows strictly
	return b.String()
}

func phasesOf(s *cell.State) map[string]cell.Phase {
	m := map[string]cell.Phase{}
	for j := range s.Jobs() {
		m[j.ID] = j.Phase
	}
	return m
}

func entry(t interface{ Fatal(...any) }, f *weftv1.Fact) *weftv1.Entry {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	m := f.ProtoReflect()
	kind := string(m.WhichOneof(m.Descriptor().Oneofs().Get(0)).Name())
	return weftv1.Entry_builder{Kind: &kind, Fact: data}.Build()
}

func (w *world) id(name string) string {
	if id, ok := w.ids[name]; ok {
		return id
	}
	id := fmt.Sprintf("01j%023d", len(w.ids)+1)
	w.ids[name] = id
	return id
}

// names puts short names back in place of ids.
func (w *world) names(s string) string {
	for name, id := range w.ids {
		s = strings.ReplaceAll(s, id, name)
	}
	return s
}

// fact writes a fact on one line: its kind, then what it says.
func (w *world) fact(f *weftv1.Fact) string {
	m := f.ProtoReflect()
	kind := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	return w.names(string(kind.Message().Name()) + w.fields(m.Get(kind).Message()) + "\n")
}

func (w *world) fields(m protoreflect.Message) string {
	var b strings.Builder
	fs := m.Descriptor().Fields()
	for i := range fs.Len() {
		f := fs.Get(i)
		if !m.Has(f) {
			continue
		}
		v := m.Get(f)
		switch {
		case f.Name() == "spec" || f.Name() == "inventory" || f.Name() == "spec_hash":
		case f.IsList() && f.Message() != nil:
			for j := range v.List().Len() {
				fmt.Fprintf(&b, " %s={%s}", f.Name(), strings.TrimSpace(w.fields(v.List().Get(j).Message())))
			}
		case f.IsList():
			var out []string
			for j := range v.List().Len() {
				out = append(out, v.List().Get(j).String())
			}
			fmt.Fprintf(&b, " %s=(%s)", f.Name(), strings.Join(out, ","))
		case f.Message() != nil:
			fmt.Fprintf(&b, " %s={%s}", f.Name(), strings.TrimSpace(w.fields(v.Message())))
		case f.Enum() != nil:
			e := f.Enum().Values().ByNumber(v.Enum())
			name := strings.ToLower(string(e.Name()))
			for _, p := range []string{"cause_kind_", "save_class_"} {
				name = strings.TrimPrefix(name, p)
			}
			fmt.Fprintf(&b, " %s=%s", f.Name(), name)
		case strings.HasSuffix(string(f.Name()), "_ns"):
			fmt.Fprintf(&b, " %s=%s", strings.TrimSuffix(string(f.Name()), "_ns"), w.when(v.Int()))
		case f.Kind() == protoreflect.StringKind && strings.ContainsAny(v.String(), " ="):
			fmt.Fprintf(&b, " %s=%q", f.Name(), v.String())
		default:
			fmt.Fprintf(&b, " %s=%s", f.Name(), v.String())
		}
	}
	return b.String()
}

// when writes a moment relative to the story's begin, to a millisecond.
func (w *world) when(at int64) string {
	if at == 0 {
		return "never"
	}
	since := time.Duration(at - t0).Round(time.Millisecond).String()
	if strings.HasPrefix(since, "-") {
		return since
	}
	return "+" + since
}

func arg(d *datadriven.TestData, key, otherwise string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return strings.Join(a.Vals, ",")
		}
	}
	return otherwise
}

// words is an argument for people: an underscore stands for a space.
func words(d *datadriven.TestData, key, otherwise string) string {
	return strings.ReplaceAll(arg(d, key, otherwise), "_", " ")
}

func has(d *datadriven.TestData, key string) bool {
	return slices.ContainsFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == key })
}

func list(d *datadriven.TestData, key string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func (w *world) num(d *datadriven.TestData, key string, otherwise int64) int64 {
	v := arg(d, key, "")
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		w.t.Fatalf("%s: %s=%s: %v", d.Pos, key, v, err)
	}
	return n
}

func (w *world) span(d *datadriven.TestData, key, otherwise string) int64 {
	return w.duration(d, arg(d, key, otherwise))
}

func (w *world) duration(d *datadriven.TestData, s string) int64 {
	v, err := time.ParseDuration(strings.TrimPrefix(s, "+"))
	if err != nil {
		w.t.Fatalf("%s: %v", d.Pos, err)
	}
	return int64(v)
}

// at is the n-th argument, which must be there.
func (w *world) at(d *datadriven.TestData, n int) string {
	if len(d.CmdArgs) <= n {
		w.t.Fatalf("%s: %s wants more arguments", d.Pos, d.Cmd)
	}
	return d.CmdArgs[n].Key
}

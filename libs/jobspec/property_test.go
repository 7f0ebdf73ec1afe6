package jobspec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// maybe sets a field or leaves it out.
func maybe[T any](t *rapid.T, g *rapid.Generator[T], label string) *T {
	if !rapid.Bool().Draw(t, "has "+label) {
		return nil
	}
	return new(g.Draw(t, label))
}

// text is anything that a program can receive, with what YAML could misread well represented.
func text() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom([]string{"", "~", "null", "true", "yes", "010", "1e3", "0x10", "- a", "a: b", "#", "{", "[", "'", "\"", "\\", "*a", "&a", "!!int", "|",
			">", "%", "@", "`", " a", "a ", "a\nb", "\n", "\t", "a\n\n", "\r\n", "é😀", "\u2028", "\u0085", "\ufeff", "\x1b[0m", "\x7f", "2026-01-01", "<<", "=", "---", "...", ":", "a:", "?"}),
		rapid.StringOfN(rapid.RuneFrom([]rune("ab \n\t:#-'\"\\{}[]é😀\u2028\u0085,&*!|>%@`")), 0, 12, -1),
		rapid.String(),
	).Filter(func(s string) bool {
		return !strings.ContainsRune(s, 0) && checkText(s) == "" && strings.ToValidUTF8(s, "") == s
	})
}

func token() *rapid.Generator[string] { return rapid.StringMatching(`[a-z0-9-]{1,12}`) }

func specs() *rapid.Generator[*weftv1.JobSpec] {
	return rapid.Custom(func(t *rapid.T) *weftv1.JobSpec {
		b := weftv1.JobSpec_builder{
			Name: new(token().Draw(t, "name")),
			Queue: new(rapid.StringMatching(`[a-z0-9-]{1,8}(/[a-z0-9-]{1,8}){0,3}`).Filter(func(q string) bool {
				return CheckQueue(q) == ""
			}).Draw(t, "queue")),
			Labels:    pairs(t, `[A-Za-z0-9][A-Za-z0-9._/-]{0,8}`, rapid.StringMatching(`[ -~]{0,12}`), "label"),
			Framework: maybe(t, rapid.Map(rapid.Int32Range(1, 3), func(i int32) weftv1.Framework { return weftv1.Framework(i) }), "framework"),
			Models:    rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"A100-80G", "H100-80G", "V100", "1e3", "true"}), 0, 3, rapid.ID).Draw(t, "models"),
			Bundle:    maybe(t, rapid.StringMatching(`b3-[0-9a-f]{64}`), "bundle"),
			Priority:  maybe(t, rapid.Int32Range(-1000, 1000), "priority"), Preemptible: maybe(t, rapid.Bool(), "preemptible"),
			LimitNs: maybe(t, rapid.Int64Range(int64(3e9), int64(maxTime)), "limit"), EstimateNs: maybe(t, rapid.Int64Range(int64(1e9), int64(3e9)), "estimate"),
			HangAfterNs: maybe(t, rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(10e9, int64(maxTime))), "hang"),
		}
		if rapid.Bool().Draw(t, "resize") {
			b.Resize = new(weftv1.Resize_RESIZE_RESTART)
		}
		if rapid.Bool().Draw(t, "spot") {
			b.Spot, b.Mixed = new(false), new(false)
		}
		if rapid.Bool().Draw(t, "one role") {
			b.Groups = []*weftv1.Group{group(t, soleGroup)}
		} else {
			for _, name := range rapid.SliceOfNDistinct(token(), 1, 3, rapid.ID).Draw(t, "roles") {
				b.Groups = append(b.Groups, group(t, name))
			}
		}
		switch rapid.IntRange(0, 3).Draw(t, "topology") {
		case 1:
			b.Topology = weftv1.TopologyConstraint_builder{Required: new(weftv1.TopologyLevel(rapid.Int32Range(1, 5).Draw(t, "level")))}.Build()
		case 2:
			b.Topology = weftv1.TopologyConstraint_builder{Preferred: new(weftv1.TopologyLevel(rapid.Int32Range(1, 5).Draw(t, "level")))}.Build()
		case 3:
			b.Topology = weftv1.TopologyConstraint_builder{
				Required:  new(weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK),
				Preferred: new(rapid.SampledFrom([]weftv1.TopologyLevel{weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE, weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK}).Draw(t, "level")),
			}.Build()
		}
		ns := rapid.Int64Range(0, int64(maxTime))
		if rapid.Bool().Draw(t, "has checkpoint") {
			b.Checkpoint = weftv1.CheckpointPolicy_builder{
				LightNs: maybe(t, ns, "light"), FullNs: maybe(t, ns, "full"), DisasterNs: maybe(t, ns, "disaster"), GraceNs: maybe(t, ns, "grace"),
				ResumeFromLight: maybe(t, rapid.Bool(), "from light"),
			}.Build()
		}
		if rapid.Bool().Draw(t, "has restart") {
			b.Restart = weftv1.RestartPolicy_builder{Max: maybe(t, rapid.Uint32Range(0, 1000), "max"), BackoffNs: maybe(t, ns, "backoff")}.Build()
		}
		return b.Build()
	})
}

func group(t *rapid.T, name string) *weftv1.Group {
	b := weftv1.Group_builder{
		Name: &name, Min: maybe(t, rapid.Uint32Range(1, 100), "min"), Max: maybe(t, rapid.Uint32Range(100, 2000), "max"),
		CpuMilli:    maybe(t, rapid.Int64Range(0, maxCores*1000), "cpu"),
		MemoryBytes: maybe(t, rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(minMemory, maxMemory), rapid.Map(rapid.Int64Range(0, 64), func(i int64) int64 { return i << 30 })), "memory"),
		Env:         pairs(t, `[A-Z][A-Z0-9_]{0,8}`, text(), "env"),
		Command:     rapid.SliceOfN(text(), 1, 4).Filter(func(s []string) bool { return strings.TrimSpace(s[0]) != "" }).Draw(t, "command"),
	}
	if g := maybe(t, rapid.Int64Range(0, 16), "gpus"); g != nil {
		b.GpuMilli = new(*g * 1000)
	}
	return b.Build()
}

func pairs(t *rapid.T, keys string, values *rapid.Generator[string], label string) []*weftv1.KeyValue {
	var p parser
	var out []*weftv1.KeyValue
	names := rapid.SliceOfNDistinct(rapid.StringMatching(keys).Filter(func(s string) bool { return label != "env" || p.checkEnv(s) == "" }), 0, 3, rapid.ID).Draw(t, label+" names")
	slices.Sort(names)
	for _, k := range names {
		out = append(out, weftv1.KeyValue_builder{Key: &k, Value: new(values.Draw(t, label))}.Build())
	}
	return out
}

// Format and Parse are inverse, before and after defaults; neither they nor the defaults change what a job is.
func TestFormatRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := specs().Draw(t, "spec")
		for _, s := range []*weftv1.JobSpec{spec, WithDefaults(spec)} {
			m, err := Parse([]byte(Format(s, "01jd0000000000000000000000")))
			if err != nil {
				t.Fatalf("%v\n%s", err, Format(s, ""))
			}
			if !proto.Equal(m.Spec, s) {
				t.Fatalf("changed:\n%s\nbecame\n%s", Format(s, ""), Format(m.Spec, ""))
			}
			if m.Hash != Hash(spec) || m.ID != "01jd0000000000000000000000" {
				t.Fatalf("another job: id %s, hash %s", m.ID, m.Hash)
			}
		}
	})
}

// Whatever comes, Parse answers with a manifest that survives Format, or with one line.
func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*/*.yaml")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := ParseQueues(b); err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("not one line: %q", err)
		}
		m, err := Parse(b)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") || err.Error() == "" {
				t.Errorf("not one line: %q", err)
			}
			return
		}
		text := Format(m.Spec, m.ID)
		if len(text) > MaxManifest {
			return // quoting may make it longer
		}
		again, err := Parse([]byte(text))
		if err != nil || !proto.Equal(again.Spec, m.Spec) || again.Hash != m.Hash {
			t.Errorf("%v\nof %q\nbecame\n%s", err, b, text)
		}
	})
}

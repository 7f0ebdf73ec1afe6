package jobspec

import (
	"bytes"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Format writes the manifest of a spec, before or after defaults; Parse reads the same spec from it. id may be empty.
func Format(spec *weftv1.JobSpec, id string) string {
	meta := &mapping{}
	meta.text("name", spec.GetName(), spec.HasName())
	meta.text("queue", spec.GetQueue(), spec.HasQueue())
	meta.text("id", id, id != "")
	meta.pairs("labels", spec.GetLabels())
	doc := &mapping{}
	doc.text("apiVersion", APIVersion, true)
	doc.text("kind", "Job", true)
	doc.object("metadata", meta)
	doc.object("spec", formatSpec(spec))
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	// Encoding a tree of plain scalars into memory cannot fail.
	_ = enc.Encode(doc.node())
	_ = enc.Close()
	return out.String()
}

func formatSpec(spec *weftv1.JobSpec) *mapping {
	s := &mapping{}
	if spec.HasFramework() {
		s.plain("framework", enumName(frameworks, int(spec.GetFramework())))
	}
	if gs := spec.GetGroups(); len(gs) == 1 && gs[0].GetName() == soleGroup {
		s.entries = append(s.entries, formatGroup(gs[0]).entries...)
	} else {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, g := range gs {
			m := &mapping{}
			m.text("name", g.GetName(), true)
			m.entries = append(m.entries, formatGroup(g).entries...)
			list.Content = append(list.Content, m.node())
		}
		s.add("groups", list)
	}
	if spec.HasResize() {
		s.plain("resize", enumName(resizes, int(spec.GetResize())))
	}
	s.list("models", spec.GetModels())
	s.truth("mixed", spec.GetMixed(), spec.HasMixed())
	if t := spec.GetTopology(); spec.HasTopology() {
		m := &mapping{flow: true}
		if t.HasRequired() {
			m.plain("required", enumName(levels, int(t.GetRequired())))
		}
		if t.HasPreferred() {
			m.plain("preferred", enumName(levels, int(t.GetPreferred())))
		}
		s.object("topology", m)
	}
	s.text("bundle", spec.GetBundle(), spec.HasBundle())
	s.text("image", spec.GetImage(), spec.HasImage())
	s.list("secrets", spec.GetSecrets())
	if c := spec.GetCheckpoint(); spec.HasCheckpoint() {
		m := &mapping{flow: true}
		m.duration("light", c.GetLightNs(), c.HasLightNs())
		m.duration("full", c.GetFullNs(), c.HasFullNs())
		m.duration("disaster", c.GetDisasterNs(), c.HasDisasterNs())
		m.duration("grace", c.GetGraceNs(), c.HasGraceNs())
		m.truth("resume_from_light", c.GetResumeFromLight(), c.HasResumeFromLight())
		s.object("checkpoint", m)
	}
	if r := spec.GetRestart(); spec.HasRestart() {
		m := &mapping{flow: true}
		m.number("max", int64(r.GetMax()), r.HasMax())
		m.duration("backoff", r.GetBackoffNs(), r.HasBackoffNs())
		s.object("restart", m)
	}
	s.duration("hang_after", spec.GetHangAfterNs(), spec.HasHangAfterNs())
	s.duration("limit", spec.GetLimitNs(), spec.HasLimitNs())
	s.duration("estimate", spec.GetEstimateNs(), spec.HasEstimateNs())
	s.number("priority", int64(spec.GetPriority()), spec.HasPriority())
	s.truth("preemptible", spec.GetPreemptible(), spec.HasPreemptible())
	s.truth("spot", spec.GetSpot(), spec.HasSpot())
	return s
}

func formatGroup(g *weftv1.Group) *mapping {
	m := &mapping{}
	switch {
	case g.HasMin() && g.HasMax() && g.GetMin() == g.GetMax():
		m.number("workers", int64(g.GetMin()), true)
	case g.HasMin() || g.HasMax():
		w := &mapping{flow: true}
		w.number("min", int64(g.GetMin()), g.HasMin())
		w.number("max", int64(g.GetMax()), g.HasMax())
		m.object("workers", w)
	}
	if g.HasGpuMilli() {
		m.plain("gpus", trimFraction(g.GetGpuMilli()))
	}
	m.text("mig", g.GetMig(), g.HasMig())
	if g.HasCpuMilli() {
		m.plain("cpu", formatMilli(g.GetCpuMilli()))
	}
	if g.HasMemoryBytes() {
		m.plain("memory", formatBytes(g.GetMemoryBytes()))
	}
	m.list("command", g.GetCommand())
	m.pairs("env", g.GetEnv())
	return m
}

// trimFraction writes thousandths as a decimal fraction: 500 is 0.5.
func trimFraction(milli int64) string {
	s := strconv.FormatInt(milli/1000, 10)
	if rest := milli % 1000; rest != 0 {
		s += "." + strings.TrimRight(strconv.FormatInt(1000+rest, 10)[1:], "0")
	}
	return s
}

func enumName(words []string, number int) string {
	if number < 1 || number > len(words) {
		return words[0]
	}
	return words[number-1]
}

// mapping builds one YAML mapping in the order of its calls.
type mapping struct {
	entries []*yaml.Node
	flow    bool
}

func (m *mapping) node() *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Content: m.entries}
	if m.flow || len(m.entries) == 0 {
		n.Style = yaml.FlowStyle
	}
	return n
}

func (m *mapping) add(key string, v *yaml.Node) { m.entries = append(m.entries, quoted(key), v) }

// quoted is a text that reads back as text, whatever it looks like.
func quoted(s string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if strings.ContainsAny(s, "\n\r\u0085\u2028\u2029\ufeff") {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}

func (m *mapping) plain(key, v string) {
	m.add(key, &yaml.Node{Kind: yaml.ScalarNode, Value: v})
}

func (m *mapping) text(key, v string, has bool) {
	if has {
		m.add(key, quoted(v))
	}
}

func (m *mapping) number(key string, v int64, has bool) {
	if has {
		m.plain(key, strconv.FormatInt(v, 10))
	}
}

func (m *mapping) truth(key string, v, has bool) {
	if has {
		m.plain(key, strconv.FormatBool(v))
	}
}

func (m *mapping) duration(key string, ns int64, has bool) {
	if has {
		m.plain(key, formatDuration(ns))
	}
}

func (m *mapping) object(key string, v *mapping) { m.add(key, v.node()) }

func (m *mapping) list(key string, vs []string) {
	if len(vs) == 0 {
		return
	}
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, v := range vs {
		n.Content = append(n.Content, quoted(v))
	}
	m.add(key, n)
}

func (m *mapping) pairs(key string, kvs []*weftv1.KeyValue) {
	if len(kvs) == 0 {
		return
	}
	in := &mapping{}
	for _, kv := range kvs {
		in.text(kv.GetKey(), kv.GetValue(), true)
	}
	m.object(key, in)
}

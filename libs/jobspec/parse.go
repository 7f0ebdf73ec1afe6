package jobspec

import (
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Names of the enumerations, in the order of their numbers in the proto minus one.
var (
	frameworks = []string{"none", "pytorch", "tensorflow", "mpi"}
	resizes    = []string{"restart", "live"}
	levels     = []string{"clique", "node", "block", "rack", "cell"}
)

// width orders the topology levels from narrow to wide.
var width = map[weftv1.TopologyLevel]int{
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_CLIQUE: 1,
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_NODE:   2,
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_RACK:   3,
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_BLOCK:  4,
	weftv1.TopologyLevel_TOPOLOGY_LEVEL_CELL:   5,
}

var (
	groupFields = []string{"workers", "gpus", "mig", "cpu", "memory", "command", "env"}
	specFields  = append([]string{
		"framework", "groups", "resize", "models", "mixed", "topology", "files", "bundle", "image", "secrets", "checkpoint",
		"restart", "hang_after", "limit", "estimate", "priority", "preemptible", "spot",
	}, groupFields...)
)

// soleGroup is the name of the group of a job with one role.
const soleGroup = "worker"

// Parse reads a manifest. Errors are *Error.
func Parse(manifest []byte) (*Manifest, error) {
	p := &parser{lines: map[string]int{}, job: true}
	m := &Manifest{lines: p.lines}
	root := p.document(manifest)
	// status is what `weft get` adds; submit passes over it.
	doc := p.object(root, "", "apiVersion", "kind", "metadata", "spec", "status")
	p.header(doc, root)
	b := &weftv1.JobSpec_builder{}
	p.metadata(doc, m, b)
	p.spec(doc, m, b)
	if p.err != nil {
		return nil, p.err
	}
	m.Spec = b.Build()
	m.Hash = Hash(m.Spec)
	m.Tenant = Tenant(m.Spec.GetQueue())
	return m, nil
}

func (p *parser) header(doc object, root *yaml.Node) {
	if p.err != nil {
		return
	}
	if !doc.has("kind") {
		p.fail(root, "kind", "is missing; write kind: Job")
	}
	n, at := doc.at("kind")
	switch kind := p.text(n, at); {
	case p.err != nil || kind == "Job":
	case slices.Contains([]string{"PyTorchJob", "TFJob", "TrainJob", "MPIJob"}, kind):
		p.fail(n, at, "%s is not read yet; write kind: Job with spec.framework, spec.workers and spec.command", kind)
	case strings.HasPrefix(kind, "Queue"):
		p.fail(n, at, "%s is no job; apply queues by: weft queues apply FILE", clip(kind))
	default:
		p.fail(n, at, "%q is not known; write kind: Job", clip(kind))
	}
	if !doc.has("apiVersion") {
		p.fail(root, "apiVersion", "is missing; write apiVersion: %s", APIVersion)
	}
	n, at = doc.at("apiVersion")
	if v := p.text(n, at); p.err == nil && v != APIVersion {
		p.fail(n, at, "%q is not known; write apiVersion: %s", clip(v), APIVersion)
	}
}

func (p *parser) metadata(doc object, m *Manifest, b *weftv1.JobSpec_builder) {
	if p.err == nil && !doc.has("metadata") {
		p.fail(doc.node, "metadata", "is missing; write metadata: {name: …, queue: …}")
	}
	n, at := doc.at("metadata")
	o := p.object(n, at, "name", "queue", "labels", "id")
	for _, f := range []string{"name", "queue"} {
		if p.err == nil && !o.has(f) {
			cure := "write a name of 1-63 characters a-z 0-9 -"
			if f == "queue" {
				cure = "write the queue, such as demo/vision (see: weft queues)"
			}
			p.fail(n, join(at, f), "is missing; %s", cure)
		}
	}
	n, at = o.at("name")
	name := p.text(n, at)
	if p.err == nil && !tokenRE.MatchString(name) {
		p.fail(n, at, "%q is not a name; use 1-63 characters a-z 0-9 -", clip(name))
	}
	b.Name = &name
	n, at = o.at("queue")
	queue := p.text(n, at)
	if why := CheckQueue(queue); p.err == nil && why != "" {
		p.fail(n, at, "%s", why)
	}
	b.Queue = &queue
	if o.has("id") {
		n, at = o.at("id")
		if m.ID = p.text(n, at); p.err == nil && !ulidRE.MatchString(m.ID) {
			p.fail(n, at, "%q is not a job id; write a lower-case ULID (26 characters), or leave it out to get one", clip(m.ID))
		}
	}
	if o.has("labels") {
		n, at = o.at("labels")
		b.Labels = p.keyValues(n, at, func(k string) string {
			if !labelRE.MatchString(k) {
				return "is not a label; use up to 63 letters, digits and . _ / -"
			}
			return ""
		}, func(n *yaml.Node, at string) string {
			if n.Value == "" && n.ShortTag() == "!!str" {
				return p.text(n, at)
			}
			return p.word(n, at, 253)
		})
	}
}

// keyValues reads a mapping of texts, sorted by key.
func (p *parser) keyValues(n *yaml.Node, at string, check func(k string) string, value func(*yaml.Node, string) string) []*weftv1.KeyValue {
	var out []*weftv1.KeyValue
	p.pairs(n, at, func(key string, k, v *yaml.Node) {
		full := join(at, key)
		if why := check(key); why != "" {
			p.fail(k, full, "%s", why)
			return
		}
		out = append(out, weftv1.KeyValue_builder{Key: &key, Value: new(value(v, full))}.Build())
	})
	slices.SortFunc(out, func(a, b *weftv1.KeyValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	return out
}

func (p *parser) spec(doc object, m *Manifest, b *weftv1.JobSpec_builder) {
	if p.err == nil && !doc.has("spec") {
		p.fail(doc.node, "spec", "is missing; write at least spec: {command: [python3, train.py]}")
	}
	n, at := doc.at("spec")
	o := p.object(n, at, specFields...)
	if o.has("framework") {
		n, at := o.at("framework")
		b.Framework = new(weftv1.Framework(p.enum(n, at, frameworks...) + 1))
		if p.err == nil && b.Framework != nil && *b.Framework == weftv1.Framework_FRAMEWORK_MPI {
			p.fail(n, at, "mpi is not built yet; use framework: none, whose ranks get RANK and WORLD_SIZE")
		}
	}
	p.groups(o, b)
	if o.has("resize") {
		n, at := o.at("resize")
		if b.Resize = new(weftv1.Resize(p.enum(n, at, resizes...) + 1)); *b.Resize == weftv1.Resize_RESIZE_LIVE {
			p.fail(n, at, "live is not built yet; use resize: restart, a new size is then a new attempt from the newest save")
		}
	}
	p.models(o, b)
	p.topology(o, b)
	p.shipping(o, m, b)
	p.policies(o, b)
	p.times(o, b)
	if o.has("priority") {
		n, at := o.at("priority")
		b.Priority = new(int32(p.integer(n, at, -1000, 1000)))
	}
	if o.has("preemptible") {
		b.Preemptible = new(p.boolean(o.at("preemptible")))
	}
	if o.has("spot") {
		n, at := o.at("spot")
		if b.Spot = new(p.boolean(n, at)); *b.Spot {
			p.fail(n, at, "spot machines are not built yet; leave it out, the job then uses any machine")
		}
	}
}

func (p *parser) groups(o object, b *weftv1.JobSpec_builder) {
	if p.err != nil {
		return
	}
	if !o.has("groups") {
		g := p.group(o)
		g.Name = proto.String(soleGroup)
		b.Groups = []*weftv1.Group{g.Build()}
		return
	}
	for _, f := range groupFields {
		if o.has(f) {
			n, at := o.at(f)
			p.fail(n, at, "belongs into each of spec.groups; move it there")
		}
	}
	n, at := o.at("groups")
	seen := map[string]bool{}
	var total uint64
	p.items(n, at, "write one entry a role, such as - {name: ps, workers: 2, command: […]}", func(_ int, v *yaml.Node, at string) {
		g := p.object(v, at, append([]string{"name"}, groupFields...)...)
		if p.err == nil && !g.has("name") {
			p.fail(v, join(at, "name"), "is missing; write the role, such as ps")
		}
		n, at := g.at("name")
		name := p.text(n, at)
		switch {
		case p.err != nil:
			return
		case !tokenRE.MatchString(name):
			p.fail(n, at, "%q is not a name; use 1-63 characters a-z 0-9 -", clip(name))
		case seen[name]:
			p.fail(n, at, "%q appears twice; give each role a name of its own", name)
		}
		seen[name] = true
		gb := p.group(g)
		gb.Name = &name
		built := gb.Build()
		b.Groups = append(b.Groups, built)
		_, most := Size(built)
		if total += uint64(most); total > maxRanks {
			p.fail(v, "spec.groups", "make more than %d ranks together; ask for fewer workers", maxRanks)
		}
	})
	if p.err == nil && len(b.Groups) == 0 {
		p.fail(n, at, "is empty; write one entry a role, or leave it out and write spec.workers")
	}
}

// group reads the fields that each role has.
func (p *parser) group(o object) *weftv1.Group_builder {
	g := &weftv1.Group_builder{}
	if p.err != nil {
		return g
	}
	p.workers(o, g)
	if o.has("gpus") {
		n, at := o.at("gpus")
		if g.GpuMilli = new(p.gpus(n, at)); p.err == nil && *g.GpuMilli%1000 != 0 {
			p.fail(n, at, "parts of a card are not built yet; use whole cards (gpus: 1), or 0 for none")
		}
	}
	if o.has("mig") {
		n, at := o.at("mig")
		profile := p.text(n, at)
		switch {
		case p.err != nil:
		case !migRE.MatchString(profile):
			p.fail(n, at, "%q is not a MIG profile; write one such as 1g.10gb", clip(profile))
		default:
			p.fail(n, at, "MIG slices are not built yet; use whole cards (gpus: 1)")
		}
	}
	if o.has("cpu") {
		g.CpuMilli = new(p.cpu(o.at("cpu")))
	}
	if o.has("memory") {
		g.MemoryBytes = new(p.memory(o.at("memory")))
	}
	if p.err == nil && !o.has("command") {
		p.fail(o.node, join(o.path, "command"), "is missing; write a list such as [python3, train.py]")
	}
	n, at := o.at("command")
	p.items(n, at, "write [python3, train.py], or [sh, -c, '…'] for a shell line", func(i int, v *yaml.Node, at string) {
		s := p.text(v, at)
		if why := checkText(s); why != "" {
			p.fail(v, at, "%s", why)
		}
		if i == 0 && strings.TrimSpace(s) == "" {
			p.fail(v, at, "is empty; write the program to run")
		}
		g.Command = append(g.Command, s)
	})
	if p.err == nil && len(g.Command) == 0 {
		p.fail(n, at, "is empty; write a list such as [python3, train.py]")
	}
	if o.has("env") {
		n, at := o.at("env")
		if n.Kind == yaml.SequenceNode {
			p.fail(n, at, "must be a mapping, not a list; write env: {NAME: value}")
		}
		g.Env = p.keyValues(n, at, p.checkEnv, func(n *yaml.Node, at string) string {
			s := p.text(n, at)
			if why := checkText(s); why != "" {
				p.fail(n, at, "%s", why)
			}
			return s
		})
	}
	return g
}

func (p *parser) workers(o object, g *weftv1.Group_builder) {
	if !o.has("workers") {
		return
	}
	n, at := o.at("workers")
	if n.Kind == yaml.ScalarNode {
		v := uint32(p.integer(n, at, 1, maxRanks))
		g.Min, g.Max = new(v), new(v)
		return
	}
	w := p.object(n, at, "min", "max")
	if w.has("min") {
		n, at := w.at("min")
		g.Min = new(uint32(p.integer(n, at, 1, maxRanks)))
	}
	if w.has("max") {
		n, at := w.at("max")
		g.Max = new(uint32(p.integer(n, at, 1, maxRanks)))
	}
	switch {
	case p.err != nil:
	case g.Min == nil && g.Max == nil:
		p.fail(n, at, "is empty; write a number, or {min: 2, max: 8}")
	case g.Min != nil && g.Max != nil && *g.Max < *g.Min:
		p.fail(n, at, "max %d is below min %d; write the smaller number as min", *g.Max, *g.Min)
	}
}

func (p *parser) models(o object, b *weftv1.JobSpec_builder) {
	n, at := o.at("models")
	p.items(n, at, "write models: [A100-80G]", func(_ int, v *yaml.Node, at string) {
		s := p.text(v, at)
		switch {
		case p.err != nil:
		case !modelRE.MatchString(s):
			p.fail(v, at, "%q is not a model; write one as `weft nodes` shows it, such as A100-80G", clip(s))
		case slices.Contains(b.Models, s):
			p.fail(v, at, "%q appears twice; keep one of them", s)
		}
		b.Models = append(b.Models, s)
	})
	if p.err == nil && n != nil && len(b.Models) == 0 {
		p.fail(n, at, "is empty; name a model, or leave it out to accept any")
	}
	if o.has("mixed") {
		n, at := o.at("mixed")
		if b.Mixed = new(p.boolean(n, at)); *b.Mixed {
			p.fail(n, at, "gangs of mixed models are not built yet; leave it out, the whole gang then gets one of spec.models")
		}
	}
}

func (p *parser) topology(o object, b *weftv1.JobSpec_builder) {
	if !o.has("topology") {
		return
	}
	n, at := o.at("topology")
	t := p.object(n, at, "required", "preferred")
	tb := &weftv1.TopologyConstraint_builder{}
	if t.has("required") {
		n, at := t.at("required")
		tb.Required = new(weftv1.TopologyLevel(p.enum(n, at, levels...) + 1))
	}
	if t.has("preferred") {
		n, at := t.at("preferred")
		tb.Preferred = new(weftv1.TopologyLevel(p.enum(n, at, levels...) + 1))
		if p.err == nil && tb.Required != nil && width[*tb.Preferred] >= width[*tb.Required] {
			p.fail(n, at, "%s is not narrower than required %s; write a narrower level, or leave it out",
				levels[*tb.Preferred-1], levels[*tb.Required-1])
		}
	}
	if p.err == nil && tb.Required == nil && tb.Preferred == nil {
		p.fail(n, at, "is empty; write required or preferred, one of %s", strings.Join(levels, ", "))
	}
	b.Topology = tb.Build()
}

// shipping reads what travels with the job.
func (p *parser) shipping(o object, m *Manifest, b *weftv1.JobSpec_builder) {
	if o.has("files") {
		n, at := o.at("files")
		m.Files = p.word(n, at, 1024)
		if clean := path.Clean(m.Files); p.err == nil && path.IsAbs(m.Files) {
			p.fail(n, at, "%q is an absolute path; write one relative to the manifest, such as .", clip(m.Files))
		} else if p.err == nil && (clean == ".." || strings.HasPrefix(clean, "../")) {
			p.fail(n, at, "%q leaves the manifest's directory; move the manifest beside the files, and write files: .", clip(m.Files))
		}
	}
	if o.has("bundle") {
		n, at := o.at("bundle")
		s := p.text(n, at)
		switch {
		case p.err != nil:
		case o.has("files"):
			p.fail(n, at, "stands beside files; keep one: files to ship a directory, bundle for files already uploaded")
		case !digestRE.MatchString(s):
			p.fail(n, at, "%q is not a digest; write b3- and 64 hex digits, or use files to ship a directory", clip(s))
		}
		b.Bundle = &s
	}
	if o.has("image") {
		n, at := o.at("image")
		p.word(n, at, 512)
		p.fail(n, at, "container images are not built yet; ship code by files: . and use what the nodes have installed")
	}
	if o.has("secrets") {
		n, at := o.at("secrets")
		p.items(n, at, "write secrets: [wandb]", func(_ int, v *yaml.Node, at string) {
			if s := p.text(v, at); p.err == nil && !tokenRE.MatchString(s) {
				p.fail(v, at, "%q is not a secret's name; use 1-63 characters a-z 0-9 -", clip(s))
			}
		})
		p.fail(n, at, "secrets are not built yet; let the script read a file on the nodes that only your user may read")
	}
}

func (p *parser) policies(o object, b *weftv1.JobSpec_builder) {
	if o.has("checkpoint") {
		n, at := o.at("checkpoint")
		c := p.object(n, at, "light", "full", "disaster", "grace", "resume_from_light")
		cb := &weftv1.CheckpointPolicy_builder{}
		for _, f := range []struct {
			name string
			to   **int64
		}{{"light", &cb.LightNs}, {"full", &cb.FullNs}, {"disaster", &cb.DisasterNs}, {"grace", &cb.GraceNs}} {
			if c.has(f.name) {
				n, at := c.at(f.name)
				*f.to = new(p.duration(n, at, 0, "10m"))
			}
		}
		if c.has("resume_from_light") {
			cb.ResumeFromLight = new(p.boolean(c.at("resume_from_light")))
		}
		b.Checkpoint = cb.Build()
	}
	if o.has("restart") {
		n, at := o.at("restart")
		r := p.object(n, at, "max", "backoff")
		rb := &weftv1.RestartPolicy_builder{}
		if r.has("max") {
			n, at := r.at("max")
			rb.Max = new(uint32(p.integer(n, at, 0, 1000)))
		}
		if r.has("backoff") {
			n, at := r.at("backoff")
			rb.BackoffNs = new(p.duration(n, at, 0, "10s"))
		}
		b.Restart = rb.Build()
	}
}

func (p *parser) times(o object, b *weftv1.JobSpec_builder) {
	if o.has("hang_after") {
		n, at := o.at("hang_after")
		b.HangAfterNs = new(p.duration(n, at, 0, "10m"))
		if d := time.Duration(*b.HangAfterNs); p.err == nil && d != 0 && d < 10*time.Second {
			p.fail(n, at, "%v is shorter than a script beats; write at least 10s, or 0s to switch it off", d)
		}
	}
	if o.has("limit") {
		n, at := o.at("limit")
		b.LimitNs = new(p.duration(n, at, time.Second, "12h"))
	}
	if o.has("estimate") {
		n, at := o.at("estimate")
		b.EstimateNs = new(p.duration(n, at, time.Second, "9h"))
		if p.err == nil && b.LimitNs != nil && *b.EstimateNs > *b.LimitNs {
			p.fail(n, at, "%s is longer than spec.limit %s, which would end the job; raise the limit or lower the estimate",
				formatDuration(*b.EstimateNs), formatDuration(*b.LimitNs))
		}
	}
}

// Size returns the smallest and largest number of workers of a group, with or without defaults.
func Size(g *weftv1.Group) (least, most uint32) {
	least = max(1, g.GetMin())
	return least, max(least, g.GetMax())
}

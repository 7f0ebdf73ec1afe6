package jobspec

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// ParseQueues reads a queues file; parents come before their children in the answer. Errors are *Error.
//
//	queues:
//	  - {name: acme, quota: {gpu: 16}, weight: 2}
//	  - {name: acme/vision, limit: {gpu: 8, cpu: 64, memory: 256Gi}}
func ParseQueues(b []byte) ([]*weftv1.QueueSet, error) {
	p := &parser{lines: map[string]int{}}
	root := p.document(b)
	doc := p.object(root, "", "apiVersion", "kind", "queues")
	if doc.has("kind") {
		n, at := doc.at("kind")
		if k := p.text(n, at); p.err == nil && k != "Queues" {
			p.fail(n, at, "%q is no queues file; write kind: Queues, or submit a job by: weft submit FILE", clip(k))
		}
	}
	if doc.has("apiVersion") {
		n, at := doc.at("apiVersion")
		if v := p.text(n, at); p.err == nil && v != APIVersion {
			p.fail(n, at, "%q is not known; write apiVersion: %s", clip(v), APIVersion)
		}
	}
	if p.err == nil && !doc.has("queues") {
		p.fail(root, "queues", "is missing; write queues: [{name: acme, weight: 1}]")
	}
	var out []*weftv1.QueueSet
	seen := map[string]bool{}
	n, at := doc.at("queues")
	p.items(n, at, "write one entry a queue, such as - {name: acme, weight: 1}", func(_ int, v *yaml.Node, at string) {
		if q := p.queue(v, at, seen); p.err == nil {
			out = append(out, q)
		}
	})
	if p.err == nil && len(out) == 0 {
		p.fail(n, at, "is empty; write one entry a queue, such as - {name: acme, weight: 1}")
	}
	if p.err != nil {
		return nil, p.err
	}
	slices.SortStableFunc(out, func(a, b *weftv1.QueueSet) int {
		return strings.Count(a.GetQueue(), "/") - strings.Count(b.GetQueue(), "/")
	})
	return out, nil
}

func (p *parser) queue(v *yaml.Node, at string, seen map[string]bool) *weftv1.QueueSet {
	o := p.object(v, at, "name", "quota", "limit", "lend", "weight", "priority", "removed")
	if p.err == nil && !o.has("name") {
		p.fail(v, join(at, "name"), "is missing; write a queue path such as acme/vision")
	}
	n, field := o.at("name")
	name := p.text(n, field)
	if why := CheckQueue(name); p.err == nil && why != "" {
		p.fail(n, field, "%s", why)
	} else if p.err == nil && seen[name] {
		p.fail(n, field, "%q appears twice; keep one of them", name)
	}
	seen[name] = true
	b := weftv1.QueueSet_builder{Queue: &name, Weight: new(int64(1))}
	if o.has("quota") {
		gpu, cpu, mem := p.amounts(o.at("quota"))
		b.Quota = weftv1.Amounts_builder{GpuMilli: gpu, CpuMilli: cpu, MemoryBytes: mem}.Build()
	}
	if o.has("limit") {
		gpu, cpu, mem := p.amounts(o.at("limit"))
		b.Limit = weftv1.Limits_builder{GpuMilli: gpu, CpuMilli: cpu, MemoryBytes: mem}.Build()
		p.withinLimit(o, b)
	}
	if o.has("lend") {
		gpu, cpu, mem := p.amounts(o.at("lend"))
		b.Lend = weftv1.Limits_builder{GpuMilli: gpu, CpuMilli: cpu, MemoryBytes: mem}.Build()
	}
	if o.has("weight") {
		n, field := o.at("weight")
		b.Weight = new(p.integer(n, field, 0, 1_000_000))
	}
	if o.has("priority") {
		n, field := o.at("priority")
		b.Priority = new(int32(p.integer(n, field, -1000, 1000)))
	}
	if o.has("removed") {
		b.Removed = new(p.boolean(o.at("removed")))
	}
	return b.Build()
}

// withinLimit refuses a quota above the limit of the same queue: it could never be used.
func (p *parser) withinLimit(o object, b weftv1.QueueSet_builder) {
	if p.err != nil || b.Quota == nil {
		return
	}
	n, at := o.at("quota")
	q, l := b.Quota, b.Limit
	switch {
	case l.HasGpuMilli() && q.GetGpuMilli() > l.GetGpuMilli():
		p.fail(n, at+".gpu", "is above the queue's limit; lower the quota or raise limit.gpu")
	case l.HasCpuMilli() && q.GetCpuMilli() > l.GetCpuMilli():
		p.fail(n, at+".cpu", "is above the queue's limit; lower the quota or raise limit.cpu")
	case l.HasMemoryBytes() && q.GetMemoryBytes() > l.GetMemoryBytes():
		p.fail(n, at+".memory", "is above the queue's limit; lower the quota or raise limit.memory")
	}
}

func (p *parser) amounts(n *yaml.Node, at string) (gpu, cpu, mem *int64) {
	o := p.object(n, at, "gpu", "cpu", "memory")
	if o.has("gpu") {
		gpu = new(p.gpuTotal(o.at("gpu")))
	}
	if o.has("cpu") {
		cpu = new(p.cpuTotal(o.at("cpu")))
	}
	if o.has("memory") {
		mem = new(p.memoryTotal(o.at("memory")))
	}
	return gpu, cpu, mem
}

package lifecycle

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/weft-fabric/weft/libs/cell"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

func (w *world) run(d *datadriven.TestData) string {
	switch d.Cmd {
	case "policy":
		w.pol.Fence = time.Duration(w.span(d, "fence", w.pol.Fence.String()))
		w.pol.Silent = time.Duration(w.span(d, "silent", w.pol.Silent.String()))
		return ""
	case "nodes": // several alike, said hello already
		for _, a := range d.CmdArgs {
			if len(a.Vals) == 0 {
				w.do(Report{w.hello(d, a.Key)})
			}
		}
		return ""
	case "queue":
		return w.do(ApplyQueues{Queues: []*weftv1.QueueSet{queueSet(w, d)}})
	case "submit":
		return w.do(w.submit(d))
	case "cancel":
		return w.do(Cancel{Tenant: arg(d, "tenant", ""), Job: w.id(w.at(d, 0)), By: arg(d, "by", "")})
	case "place":
		return w.do(Place{Plan: arg(d, "plan", ""), Start: w.start(d)})
	case "hello":
		return w.do(Report{w.hello(d, w.at(d, 0))})
	case "started", "exit", "hung", "released", "launch-failed", "restore-failed", "device":
		return w.do(Report{w.report(d)})
	case "saved":
		class := weftv1.SaveClass_SAVE_CLASS_FULL
		if has(d, "light") {
			class = weftv1.SaveClass_SAVE_CLASS_LIGHT
		}
		return w.do(Checkpointed{Job: w.id(w.at(d, 0)), Voided: has(d, "voided"), Save: weftv1.SaveRef_builder{
			Save: new(arg(d, "save", "")), Attempt: new(uint32(w.num(d, "attempt", 1))), Step: new(uint64(w.num(d, "step", 0))), Class: &class,
		}.Build()})
	case "doubt": // the ledger lost its end, and what is left was adopted
		return w.fold(Doubt(w.s))
	case "silent":
		return w.do(Silent{Node: w.at(d, 0)})
	case "back":
		return w.do(Back{Node: w.at(d, 0)})
	case "takeover":
		return w.do(TakeOver{})
	case "cordon":
		return w.do(Cordon{Node: w.at(d, 0), By: arg(d, "by", ""), Reason: arg(d, "reason", ""), Drain: has(d, "drain"), Undo: has(d, "undo")})
	case "shutdown":
		return w.do(ShutDown{})
	case "evict":
		e := weftv1.Evict_builder{Beneficiary: new(w.id(arg(d, "for", ""))), Nodes: list(d, "nodes")}
		for _, v := range list(d, "victims") {
			e.Victims = append(e.Victims, w.id(v))
		}
		return w.do(Evict{Evict: e.Build()})
	case "claim":
		return w.do(Claim{Job: w.id(w.at(d, 0)), Nodes: list(d, "nodes")})
	case "tick": // after so long
		if len(d.CmdArgs) > 0 {
			w.now += w.duration(d, w.at(d, 0))
		}
		return w.do(Tick{})
	case "wait":
		w.now += w.duration(d, w.at(d, 0))
		return ""
	}
	return w.show(d)
}

func (w *world) show(d *datadriven.TestData) string {
	var b strings.Builder
	switch d.Cmd {
	case "job":
		j := w.s.Job(w.id(w.at(d, 0)))
		if j == nil {
			a, ok := w.s.Archived(w.id(w.at(d, 0)))
			if !ok {
				return "no such job\n"
			}
			return fmt.Sprintf("archived, %s\n", a.Phase)
		}
		fmt.Fprintf(&b, "%s attempts=%d restarts=%d", j.Phase, j.Attempts, j.Restarts)
		for _, x := range []struct {
			show bool
			text string
		}{
			{j.Degraded, "degraded"}, {j.Cancel, "cancel-by=" + j.CancelBy}, {j.NotBefore != 0, "not-before=" + w.when(j.NotBefore)},
			{j.Cause != nil, "cause=" + strconv.Quote(cell.Describe(j.Cause))}, {j.Reason != "", "reason=" + strconv.Quote(j.Reason)},
			{j.GPUNanos != 0, "gpu=" + time.Duration(j.GPUNanos).Round(time.Millisecond).String()},
			{j.GPULost != 0, "lost=" + time.Duration(j.GPULost).Round(time.Millisecond).String()},
		} {
			if x.show {
				b.WriteString(" " + x.text)
			}
		}
		b.WriteString("\n")
	case "node":
		n := w.s.Node(w.at(d, 0))
		f := cell.Free(w.s, n)
		fmt.Fprintf(&b, "%s boot=%s generation=%d devices=%v cpu=%d ports=%v", n.Condition, n.BootID, n.Generation, f.DeviceMilli, f.CPUMilli, f.Ports)
		if n.Cordoned {
			b.WriteString(" cordoned")
		}
		for _, st := range n.Strays {
			fmt.Fprintf(&b, " stray=%s/%d", st.Job, st.Attempt)
		}
		b.WriteString("\n")
	case "assignment":
		for _, a := range Assignment(w.s, w.at(d, 0), w.seq).GetAttempts() {
			a.ClearSpec() // a hash
			b.WriteString("attempt" + w.fields(a.ProtoReflect()) + "\n")
		}
		if b.Len() == 0 {
			return "nothing\n"
		}
	case "deadline":
		return w.when(NextDeadline(w.s, w.pol)) + "\n"
	case "usage":
		t := cell.QueueTotals(w.s, w.at(d, 0))
		return fmt.Sprintf("used=%+v demand=%+v active=%d waiting=%d\n", t.Used, t.Demand, t.Active, t.Waiting)
	case "events":
		for i, c := range w.facts {
			for _, e := range CloudEvents(uint64(i+1), c, w.s) {
				fmt.Fprintf(&b, "%s %s %s\n", e.Tenant, e.Type, e.JSON)
			}
		}
	default:
		w.t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	}
	return w.names(b.String())
}

func queueSet(w *world, d *datadriven.TestData) *weftv1.QueueSet {
	q := weftv1.QueueSet_builder{Queue: new(w.at(d, 0)), Weight: new(w.num(d, "weight", 1))}
	if has(d, "removed") {
		q.Removed = new(true)
	}
	if has(d, "gpus") {
		q.Limit = weftv1.Limits_builder{GpuMilli: new(1000 * w.num(d, "gpus", 0))}.Build()
	}
	return q.Build()
}

func (w *world) submit(d *datadriven.TestData) Submit {
	name := w.at(d, 0)
	least := w.num(d, "workers", 1)
	spec := weftv1.JobSpec_builder{
		Name: new(arg(d, "name", name)), Queue: new(arg(d, "queue", "demo")),
		Groups: []*weftv1.Group{weftv1.Group_builder{
			Name: new("worker"), Min: new(uint32(least)), Max: new(uint32(w.num(d, "max", least))),
			GpuMilli: new(1000 * w.num(d, "gpus", 1)), CpuMilli: new(int64(1000)), MemoryBytes: new(int64(1 << 30)),
			Command: []string{"true"},
		}.Build()},
		Checkpoint: weftv1.CheckpointPolicy_builder{GraceNs: new(w.span(d, "grace", "30s")), ResumeFromLight: some(has(d, "light"))}.Build(),
		Restart:    weftv1.RestartPolicy_builder{Max: new(uint32(w.num(d, "restarts", 3))), BackoffNs: new(w.span(d, "backoff", "10s"))}.Build(),
		LimitNs:    some(w.span(d, "limit", "0s")), Preemptible: new(arg(d, "preemptible", "true") == "true"), Models: list(d, "models"),
	}.Build()
	return Submit{
		Tenant: arg(d, "tenant", cell.Tenant(spec.GetQueue())), Job: w.id(arg(d, "id", name)), Spec: spec,
		SpecHash: arg(d, "hash", "b3-"+name), By: arg(d, "by", "ann"),
	}
}

// start reads `place JOB n1=(0,1) n2=(0)`: devices by node, ranks in that order; for a job without cards n1=2 is a count.
func (w *world) start(d *datadriven.TestData) *weftv1.Start {
	id := w.id(w.at(d, 0))
	each, milli := cell.DevicesPerWorker(w.s.Job(id).Spec.GetGroups()[0])
	st := weftv1.Start_builder{Job: &id}
	rank := uint32(0)
	for _, a := range d.CmdArgs[1:] {
		if a.Key == "plan" {
			continue
		}
		n := w.s.Node(a.Key)
		if n == nil {
			n = &cell.Node{Name: a.Key}
		}
		p := weftv1.Placement_builder{Node: &n.Name, Generation: &n.Generation, Group: new(uint32(0)), FirstRank: new(rank)}
		count := uint32(len(a.Vals)) / uint32(max(each, 1))
		if each == 0 {
			c, _ := strconv.ParseUint(a.Vals[0], 10, 32)
			count = uint32(c)
		} else {
			p.Milli = &milli
			for _, v := range a.Vals {
				c, _ := strconv.ParseUint(v, 10, 32)
				p.Devices = append(p.Devices, uint32(c))
			}
		}
		p.Count = &count
		rank += count
		st.Placements = append(st.Placements, p.Build())
	}
	return st.Build()
}

func (w *world) hello(d *datadriven.TestData, node string) *weftv1.Report {
	inv := weftv1.Inventory_builder{
		Host: new(node + ".example.org"), Address: new("10.0.0." + strings.TrimLeft(node, "abcdefghijklmnopqrstuvwxyz-")),
		CpuMilli: new(1000 * w.num(d, "cpu", 16)), MemoryBytes: new(int64(64 << 30)), PortBase: new(uint32(20000)), PortCount: new(uint32(w.num(d, "ports", 100))),
		AgentVersion: new(arg(d, "agent", "1")),
	}
	failed := "," + arg(d, "failed", "") + ","
	for i := range w.num(d, "gpus", 4) {
		health := weftv1.DeviceHealth_DEVICE_HEALTH_OK
		if strings.Contains(failed, fmt.Sprintf(",%d,", i)) {
			health = weftv1.DeviceHealth_DEVICE_HEALTH_FAILED
		}
		inv.Devices = append(inv.Devices, weftv1.Device_builder{
			Uuid: new(fmt.Sprintf("GPU-%s-%d", node, i)), Model: new(arg(d, "model", "A100-80G")), Health: &health, Clique: new(uint32(1)),
		}.Build())
	}
	h := weftv1.Hello_builder{Inventory: inv.Build()}
	for _, x := range list(d, "held") {
		job, attempt, _ := strings.Cut(x, "/")
		n, _ := strconv.ParseUint(attempt, 10, 32)
		h.Held = append(h.Held, weftv1.HeldAttempt_builder{Job: new(w.id(job)), Attempt: new(uint32(n))}.Build())
	}
	return weftv1.Report_builder{Node: &node, BootId: new(arg(d, "boot", "b1")), TimeNs: &w.now, Hello: h.Build()}.Build()
}

func (w *world) report(d *datadriven.TestData) *weftv1.Report {
	node := w.at(d, 0)
	boot := "b1"
	if n := w.s.Node(node); n != nil {
		boot = n.BootID
	}
	r := weftv1.Report_builder{Node: &node, BootId: new(arg(d, "boot", boot)), TimeNs: new(w.now + w.span(d, "at", "0s"))}
	if d.Cmd == "device" {
		n := w.num(d, "device", 0)
		r.DeviceFault = weftv1.DeviceFault_builder{
			Device: new(uint32(n)), Uuid: new(fmt.Sprintf("GPU-%s-%d", node, n)), Reason: new(words(d, "reason", "xid 79")), Recovered: new(has(d, "recovered")),
		}.Build()
		return r.Build()
	}
	job := w.id(w.at(d, 1))
	attempt := uint32(1)
	if j := w.s.Job(job); j != nil {
		attempt = max(j.Attempts, 1)
	}
	attempt = uint32(w.num(d, "attempt", int64(attempt)))
	switch d.Cmd {
	case "started":
		r.RanksStarted = weftv1.RanksStarted_builder{Job: &job, Attempt: &attempt}.Build()
	case "exit":
		e := weftv1.RanksExited_builder{Job: &job, Attempt: &attempt}
		e.Exits = append(e.Exits, weftv1.RankExit_builder{
			Rank: new(uint32(w.num(d, "rank", 0))), ExitCode: new(int32(w.num(d, "code", 0))), Signal: new(int32(w.num(d, "signal", 0))),
			TimeNs: r.TimeNs, LastWords: some(words(d, "words", "")),
		}.Build())
		r.RanksExited = e.Build()
	case "hung":
		r.RanksHung = weftv1.RanksHung_builder{
			Job: &job, Attempt: &attempt, Rank: new(uint32(w.num(d, "rank", 0))), Step: new(w.num(d, "step", 0)), SilentNs: new(w.span(d, "silent", "10m")),
		}.Build()
	case "released":
		r.AttemptReleased = weftv1.AttemptReleased_builder{Job: &job, Attempt: &attempt, Completed: new(has(d, "completed"))}.Build()
	case "launch-failed":
		k := cmp.Or(weftv1.CauseKind(weftv1.CauseKind_value["CAUSE_KIND_"+strings.ToUpper(strings.ReplaceAll(arg(d, "kind", "launch-failed"), "-", "_"))]))
		r.LaunchFailed = weftv1.LaunchFailed_builder{Job: &job, Attempt: &attempt, Kind: &k, Message: new(words(d, "message", ""))}.Build()
	case "restore-failed":
		r.RestoreFailed = weftv1.RestoreFailed_builder{Job: &job, Attempt: &attempt, Save: new(arg(d, "save", "")), Message: new(words(d, "message", ""))}.Build()
	}
	return r.Build()
}

package export

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-fabric/weft/libs/cell"
	"github.com/weft-fabric/weft/libs/ledger"
	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/telemetry/internal/shell"
	"github.com/weft-fabric/weft/services/telemetry/window"
)

// Collector implements prometheus.Collector over the store and the projection.
type Collector struct {
	store *shell.Store
	proj  *ledger.Projection[*cell.State]
	now   func() time.Time
}

// NewCollector makes a collector.
func NewCollector(store *shell.Store, proj *ledger.Projection[*cell.State], now func() time.Time) *Collector {
	return &Collector{store: store, proj: proj, now: now}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, list := range [][]*def{sampled, owned} {
		for _, d := range list {
			out <- d.desc
		}
	}
}

// scrape gathers one answer; what is read under a lock is gathered first and sent after.
type scrape struct {
	out  []prometheus.Metric
	text map[int32]string
}

func (s *scrape) put(d *def, v float64, labels ...string) {
	// A text that is not UTF-8 spoils its own series, not the scrape.
	m, err := prometheus.NewConstMetric(d.desc, d.kind, v, labels...)
	if err == nil {
		s.out = append(s.out, m)
	}
}

func (s *scrape) gpu(i int32) string {
	t, ok := s.text[i]
	if !ok {
		t = strconv.Itoa(int(i))
		s.text[i] = t
	}
	return t
}

func (s *scrape) truth(d *def, v bool, labels ...string) {
	n := 0.0
	if v {
		n = 1
	}
	s.put(d, n, labels...)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	s := &scrape{text: map[int32]string{}}
	now := c.now().UnixNano()
	c.store.Read(func(w *window.Window, h *window.Holders) { s.samples(w, h, now) })
	c.proj.View(func(st *cell.State, at ledger.Position) {
		s.put(ledgerPosition, float64(at.Seq))
		s.nodes(st)
		s.queues(st)
		s.jobs(st)
	})
	for _, m := range s.out {
		out <- m
	}
}

// sum is what the devices of one job add up to.
type sum struct {
	total float64
	n     int
}

// aggregates are the metrics of devices that are shown by job too; a mean where it says so, else a sum.
var aggregates = map[metric.ID]struct {
	def  *def
	mean bool
}{
	metric.Power:        {jobPower, false},
	metric.MemoryUsage:  {jobMemory, false},
	metric.Utilization:  {jobUtilization, true},
	metric.TensorActive: {jobTensor, true},
}

func (s *scrape) samples(w *window.Window, h *window.Holders, now int64) {
	jobs := map[*def]map[window.Holder]sum{}
	s.put(rejected, float64(w.Rejected()))
	for _, name := range w.Nodes() {
		st, _ := w.Stats(name)
		s.put(received, float64(st.Received), name)
		s.put(lost, float64(st.Lost), name)
		s.put(duplicates, float64(st.Duplicates), name)
		s.put(late, float64(st.Late), name)
		s.put(age, float64(now-st.ArrivedNS)/1e9, name)
		w.Latest(name, now, func(k window.Key, v float64, at int64) {
			d := sampled[k.Metric]
			switch {
			case len(d.labels) == 1 && k.Device < 0:
				s.put(d, v, name)
			case len(d.labels) == 2 && k.Device >= 0:
				s.put(d, v, name, s.gpu(k.Device))
			}
			if a, ok := aggregates[k.Metric]; ok {
				charge(jobs, a.def, h.At(window.Place{Node: name, Device: k.Device}, at), v)
			}
		})
	}
	for _, a := range aggregates {
		for who, x := range jobs[a.def] {
			v := x.total
			if a.mean {
				v /= float64(x.n)
			}
			s.put(a.def, v, who.Job, who.Name, who.Queue)
		}
	}
}

// charge adds a value to whoever held the whole device when it was measured; of a shared one nobody can tell the parts.
func charge(jobs map[*def]map[window.Holder]sum, d *def, holders []window.Holder, v float64) {
	if len(holders) != 1 || holders[0].Milli < 1000 {
		return
	}
	if jobs[d] == nil {
		jobs[d] = map[window.Holder]sum{}
	}
	who := window.Holder{Job: holders[0].Job, Name: holders[0].Name, Queue: holders[0].Queue}
	x := jobs[d][who]
	jobs[d][who] = sum{x.total + v, x.n + 1}
}

func (s *scrape) nodes(st *cell.State) {
	for n := range st.Nodes() {
		s.truth(nodeReady, n.Condition == cell.Ready, n.Name)
		s.truth(nodeLost, n.Condition == cell.Lost, n.Name)
		s.truth(nodeCordoned, n.Cordoned || n.Draining, n.Name)
		if n.Inventory == nil {
			continue
		}
		s.put(nodeGPUs, float64(len(n.Inventory.GetDevices())), n.Name)
		free := int64(0)
		for _, m := range cell.Free(st, n).DeviceMilli {
			free += m
		}
		s.put(nodeGPUsFree, float64(free)/1000, n.Name)
		for i, d := range n.Inventory.GetDevices() {
			gpu := s.gpu(int32(i))
			s.put(gpuInfo, 1, n.Name, gpu, d.GetUuid(), d.GetPci(), d.GetModel(), strconv.FormatBool(n.Inventory.GetSimulated()))
			s.truth(gpuHealthy, d.GetHealth() != weftv1.DeviceHealth_DEVICE_HEALTH_FAILED, n.Name, gpu)
		}
	}
}

func (s *scrape) queues(st *cell.State) {
	jobs := map[string]map[cell.Phase]int{}
	for j := range st.Jobs() {
		q := jobs[j.Spec.GetQueue()]
		if q == nil {
			q = map[cell.Phase]int{}
			jobs[j.Spec.GetQueue()] = q
		}
		q[j.Phase]++
	}
	for q := range st.Queues() {
		for _, p := range cell.Phases {
			s.put(queueJobs, float64(jobs[q.Path][p]), q.Path, string(p))
		}
		s.put(queueUsed, float64(cell.QueueUsage(st, q.Path).GPUMilli)/1000, q.Path)
		s.put(queueDemand, float64(cell.QueueDemand(st, q.Path).GPUMilli)/1000, q.Path)
		s.put(queueQuota, float64(q.Set.GetQuota().GetGpuMilli())/1000, q.Path)
		if q.Set.GetLimit().HasGpuMilli() {
			s.put(queueLimit, float64(q.Set.GetLimit().GetGpuMilli())/1000, q.Path)
		}
	}
}

func (s *scrape) jobs(st *cell.State) {
	held := map[string]int64{}
	for _, h := range shell.Held(st) {
		held[h.Who.Job] += h.Who.Milli
		s.put(gpuAllocation, float64(h.Who.Milli)/1000, h.Place.Node, s.gpu(h.Place.Device), h.Who.Job, h.Who.Name, h.Who.Queue, h.Who.Tenant, strconv.Itoa(int(h.Who.Attempt)))
	}
	for j := range st.ActiveJobs() {
		labels := []string{j.ID, j.Spec.GetName(), j.Spec.GetQueue()}
		s.put(jobGPUs, float64(held[j.ID])/1000, labels...)
		if j.Attempt != nil {
			s.put(jobRanks, float64(j.Attempt.Size), labels...)
		}
		s.truth(jobRunning, j.Phase == cell.Running, labels...)
		s.put(jobRestarts, float64(j.Restarts), labels...)
	}
}

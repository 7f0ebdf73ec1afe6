// Package export shows the window and the state of the cell to Prometheus. It owns the names on /metrics and the table
// of them in docs/metrics.md.
//
// Series of devices carry node and gpu alone; the job that holds a device is joined through weft_gpu_allocation_info.
// A state that changes is never a label.
package export

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weft-fabric/weft/libs/metric"
)

// def is one metric on /metrics.
type def struct {
	name   string
	kind   prometheus.ValueType
	unit   string
	labels []string
	help   string
	desc   *prometheus.Desc
}

// Metrics that come not from the agents' samples but from the ledger and from the service itself.
var (
	gpuInfo        = own("weft_gpu_info", gauge, "1", "Always 1: what the device is.", "node", "gpu", "uuid", "pci", "model", "simulated")
	gpuHealthy     = own("weft_gpu_healthy", gauge, "1", "1 if the device may be used, 0 if it is failed.", "node", "gpu")
	gpuAllocation  = own("weft_gpu_allocation_info", gauge, "1", "Share of the device that the job holds; join other series of the device with it by node and gpu.", "node", "gpu", "job", "name", "queue", "tenant", "attempt")
	nodeReady      = own("weft_node_ready", gauge, "1", "1 if the node is in contact.", "node")
	nodeLost       = own("weft_node_lost", gauge, "1", "1 if the node was silent for longer than the fence.", "node")
	nodeCordoned   = own("weft_node_cordoned", gauge, "1", "1 if the node takes no new work.", "node")
	nodeGPUs       = own("weft_node_gpus", gauge, "{gpu}", "Devices that the node has, failed ones too.", "node")
	nodeGPUsFree   = own("weft_node_gpus_free", gauge, "{gpu}", "Devices of the node that nobody holds, in fractions.", "node")
	queueJobs      = own("weft_queue_jobs", gauge, "{job}", "Jobs of the queue by phase; ended ones until they are archived.", "queue", "phase")
	queueUsed      = own("weft_queue_gpus_used", gauge, "{gpu}", "Devices held by the queue and those below it.", "queue")
	queueDemand    = own("weft_queue_gpus_demand", gauge, "{gpu}", "Devices that waiting jobs of the queue and those below it ask for at least.", "queue")
	queueQuota     = own("weft_queue_gpus_quota", gauge, "{gpu}", "Devices guaranteed to the queue.", "queue")
	queueLimit     = own("weft_queue_gpus_limit", gauge, "{gpu}", "Most devices that the queue may hold; absent if it has no limit.", "queue")
	jobGPUs        = own("weft_job_gpus", gauge, "{gpu}", "Devices that the job holds.", "job", "name", "queue")
	jobRanks       = own("weft_job_ranks", gauge, "{rank}", "Ranks of the job's attempt.", "job", "name", "queue")
	jobRunning     = own("weft_job_running", gauge, "1", "1 once every rank of the job's attempt has started, 0 before and while it is being ended.", "job", "name", "queue")
	jobRestarts    = own("weft_job_restarts", gauge, "{restart}", "Restarts of the job that were charged.", "job", "name", "queue")
	jobPower       = own("weft_job_gpu_power_watts", gauge, "W", "Power of the whole devices that the job holds, summed.", "job", "name", "queue")
	jobMemory      = own("weft_job_gpu_memory_usage_bytes", gauge, "By", "Memory in use on the whole devices that the job holds, summed.", "job", "name", "queue")
	jobUtilization = own("weft_job_gpu_utilization_ratio", gauge, "1", "Mean utilization of the whole devices that the job holds.", "job", "name", "queue")
	jobTensor      = own("weft_job_gpu_tensor_active_ratio", gauge, "1", "Mean tensor activity of the whole devices that the job holds.", "job", "name", "queue")
	received       = own("weft_metric_batches_received_total", counter, "{batch}", "Batches of samples taken from the node, duplicates left out.", "node")
	lost           = own("weft_metric_batches_lost_total", counter, "{batch}", "Batches of samples that the node numbered and that never came.", "node")
	duplicates     = own("weft_metric_batches_duplicate_total", counter, "{batch}", "Batches that came more than once.", "node")
	late           = own("weft_metric_batches_late_total", counter, "{batch}", "Batches that came after their successors.", "node")
	rejected       = own("weft_metric_batches_rejected_total", counter, "{batch}", "Batches that could not be read.")
	age            = own("weft_metric_age_seconds", gauge, "s", "Time since the node's newest batch came.", "node")
	ledgerPosition = own("weft_telemetry_ledger_position", gauge, "{commit}", "Sequence of the newest commit that this service has read.")
)

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// Every metric: those of the samples in the order of the catalogue, ours in the order of the declarations above.
var (
	sampled = sampledDefs()
	owned   []*def
)

func own(name string, kind prometheus.ValueType, unit, help string, labels ...string) *def {
	d := &def{name: name, kind: kind, unit: unit, help: help, labels: labels}
	d.desc = prometheus.NewDesc(name, help, labels, nil)
	owned = append(owned, d)
	return d
}

func sampledDefs() []*def {
	out := make([]*def, metric.Count)
	for _, m := range metric.All() {
		d := &def{name: m.Name, unit: m.Unit, help: m.Help, kind: gauge, labels: []string{"node"}}
		if m.Kind == metric.Counter {
			d.kind = counter
		}
		if m.Scope == metric.Device {
			d.labels = append(d.labels, "gpu")
		}
		d.desc = prometheus.NewDesc(d.name, d.help, d.labels, nil)
		out[m.ID] = d
	}
	return out
}

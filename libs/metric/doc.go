// Package metric owns the vocabulary of measurements and their form on the wire: the one table that maps a name on
// /metrics to its unit, its OpenTelemetry name, the NVML field and the DCGM field it stands for, and the columnar codec
// of MetricBatch. A later rename is one edit in catalogue.go.
//
// It never samples, stores or exposes anything, and has no clock. Absent is not zero: a value that was not measured has
// no entry, in a Values as on the wire.
package metric

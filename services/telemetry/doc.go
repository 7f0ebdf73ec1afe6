// Package telemetry is the service that owns the fabric's measurements: it reads what the agents sample, keeps the last
// minutes of it, joins it to who held which device when, and shows it to Prometheus.
//
// It never decides anything, writes no ledger, and loses nothing silently: a batch that did not arrive is counted, and a
// value that was not measured is absent, never zero.
package telemetry

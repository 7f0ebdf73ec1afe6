// Package sample measures one machine, devices and host, on a grid of times, and publishes a batch a second.
//
// It owns the cadence, the numbering of batches and the queue of those that could not be sent yet. Loss is allowed and
// counted: a batch that is given up leaves a gap in the numbers, which every reader sees. It never judges a value, and
// never sends an old value as new: what was not measured at a time is absent at that time.
package sample

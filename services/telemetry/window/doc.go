// Package window keeps the last minutes of every node's samples: raw batches for two minutes, one-second rollups of the
// main metrics for fifteen, the newest value of each series, and the account of what never arrived.
//
// It is pure: no clock, no goroutines, no I/O. Each node has a timeline of its own, by the times in its batches, so a
// node whose clock is off is still one consistent story; only the age of what is known goes by the time of arrival.
package window

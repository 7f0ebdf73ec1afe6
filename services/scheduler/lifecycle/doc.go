// Package lifecycle decides what becomes true of jobs and nodes: a command, a state and a time give facts, or a refusal.
//
// It owns the rules of a job's life (retries, cancel, grace, limits, what a failure costs), of a node's (silence, loss,
// reboot, drain), and the three things that follow from the ledger alone: a node's desired set, the cell's events, and the
// next deadline. It never chooses a place, never does I/O or asks the clock, and keeps nothing between calls.
//
// How an attempt ends. The first failure stops the whole attempt at once: its ranks get SIGTERM, and SIGKILL after the
// job's grace. A better cause that arrives within a second replaces it, since the first report is often a consequence.
// The attempt ends when every node has released it, or is lost; only then may its devices be given again. Then the job is
// queued again (after a backoff if the failure was its own), fails, or is cancelled.
//
// The backoff doubles with each charged restart, from the job's restart.backoff, and is capped at Policy.MaxBackoff.
// Failures that are not the job's own cost no restart and no backoff; a busy port waits Policy.PortBackoff, so that a
// foreign process on it does not make the fabric spin.
package lifecycle
